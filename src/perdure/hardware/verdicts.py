"""What the figures mean: verdicts in plain words, each with its evidence and the first remedy."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.hardware.use import CardUse, Circumstances, LoopTimes, Verdict

CODES = (
    "card-lost",
    "card-idle",
    "second-card-idle",
    "starved",
    "memory-nearly-full",
    "memory-unused",
    "throttled",
    "slow-precision",
    "holding-the-card",
)
"""Every code that a verdict may have."""


def judge(cards: Sequence[CardUse], loop: LoopTimes, around: Circumstances) -> list[Verdict]:
    """What is wrong while a run trains; the gravest first, empty if nothing is or the evidence is thin.

    Args:
        cards: What the cards did over a stretch of the loop.
        loop: Where its time went.
        around: What else matters.
    """
    return []


def after_the_end(
    cards: Sequence[CardUse], idle_s: float, around: Circumstances, *, platform: str = "local"
) -> list[Verdict]:
    """What is wrong after a run has ended: an interactive session that still holds its card.

    Args:
        cards: The cards, as last seen.
        idle_s: Seconds since the end.
        around: What else matters.
        platform: ``"local"``, ``"kaggle"`` or ``"colab"``.
    """
    return []
