"""What the figures mean: verdicts in plain words, each with its evidence and the first remedy.

The rules and their thresholds are in ``rules.py``. A verdict is silent where the evidence is thin, where the figure
it needs was not told, and where a graver one explains it: a card that waits for data is not called idle as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.intervals import format_bytes, format_duration
from perdure.hardware import remedies, rules
from perdure.hardware.rules import MIN_SAMPLES
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

MIN_LOOP_S = 20.0
MIN_STEPS = 5
LONG_STEP_S = 300.0
"""A loop is judged after this many steps, or after one where steps take minutes."""


def judge(cards: Sequence[CardUse], loop: LoopTimes, around: Circumstances) -> list[Verdict]:
    """What is wrong while a run trains; the gravest first, empty if nothing is or the evidence is thin.

    Args:
        cards: What the cards did over a stretch of the loop.
        loop: Where its time went.
        around: What else matters.
    """
    lost = [rules.lost(card, around.platform) for card in cards if card.lost and card.visible_as is not None]
    seen = [card for card in cards if card.visible_as is not None and not card.lost]
    if not _enough(loop):
        return lost
    if not around.device.startswith("cuda"):
        return lost + rules.beside_the_cpu(seen, loop)
    main = _main(seen, around.device)
    if main is None and lost:
        return lost
    return lost + _on_a_card(main, seen, loop, around)


def _on_a_card(
    main: CardUse | None, seen: Sequence[CardUse], loop: LoopTimes, around: Circumstances
) -> list[Verdict]:
    watched = [card for card in seen if card.samples >= MIN_SAMPLES]
    grave = rules.starved(main, loop, around)
    if not grave and main is not None and main in watched:
        grave = rules.idle(main, watched, loop)
    touched = [card for card in watched if card is main or card.memory_own_bytes != 0]
    if grave or main is None or main not in watched:
        return grave + rules.memory_full(touched)
    return [
        *rules.second_idle(watched, loop),
        *rules.memory_full(touched),
        *(verdict for card in touched for verdict in rules.throttled(card)),
        *rules.slow_precision(main, around),
        *rules.memory_unused(main),
    ]


def after_the_end(
    cards: Sequence[CardUse], idle_s: float, around: Circumstances, *, platform: str = "local"
) -> list[Verdict]:
    """What is wrong after a run has ended: an interactive session that still holds its card.

    A session of a script ends by itself, so nothing is said there. On a machine of one's own only memory that is
    held is worth a word.

    Args:
        cards: The cards, as last seen.
        idle_s: Seconds since the end.
        around: What else matters.
        platform: ``"local"``, ``"kaggle"`` or ``"colab"``.
    """
    seen = [card for card in cards if card.visible_as is not None and not card.lost]
    own = sum(card.memory_own_bytes or 0 for card in seen)
    if around.mode != "interactive" or not seen:
        return []
    if platform == "local" and own < remedies.HELD_BYTES:
        return []
    since = f", {format_duration(idle_s)} so far" if idle_s >= 1 else ""
    costs = f" and uses up {remedies.QUOTA[platform]}{since}" if platform in remedies.QUOTA else since
    held = f" ({format_bytes(own)} of its memory)" if own else ""
    sentence = f"the run has ended, but this session still holds {rules.names(seen)}{held}{costs}"
    evidence = {"idle_s": idle_s, "cards": float(len(seen)), "memory_own_bytes": float(own)}
    return [Verdict("holding-the-card", sentence, remedies.let_go(platform), evidence)]


def _enough(loop: LoopTimes) -> bool:
    """Whether there is enough of the loop to judge."""
    if loop.total_s < MIN_LOOP_S:
        return False
    return loop.steps >= MIN_STEPS or (loop.steps >= 1 and loop.total_s >= LONG_STEP_S)


def _main(seen: Sequence[CardUse], device: str) -> CardUse | None:
    """The card that the run trains on."""
    _, _, number = device.partition(":")
    return next((card for card in seen if card.visible_as == int(number or 0)), None)
