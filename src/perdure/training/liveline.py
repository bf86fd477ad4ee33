"""The line that a run says every few minutes: how far it is, how fast, what the cards do, how long to go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.core.intervals import format_duration, format_number
from perdure.core.limits import Window
from perdure.hardware.told import card_facts, card_line
from perdure.hardware.use import CardUse, LoopTimes

_METRICS = 4


@dataclass(frozen=True)
class Progress:
    """How far the run is.

    Attributes:
        text: In words: ``"step 1200, epoch 3 of 50"``.
        done: Steps or epochs that are done, parts of an epoch too.
        count: How many there are in all.
    """

    text: str
    done: float
    count: float


def live_line(
    progress: Progress,
    cards: Sequence[CardUse],
    recent: LoopTimes,
    metrics: Mapping[str, float],
    to_go_s: float | None,
    window: Window,
) -> str:
    """The line.

    Args:
        progress: How far the run is.
        cards: What the cards did lately.
        recent: Where the time of the loop went lately.
        metrics: Newest values; the first few are shown.
        to_go_s: Time to the end of the run; None if it cannot be told.
        window: The session's.
    """
    total_s = recent.total_s or 1.0
    parts = [
        progress.text,
        f"{format_number(recent.steps / total_s)} steps/s",
        *(f"{name} {value:.4g}" for name, value in itertools.islice(metrics.items(), _METRICS)),
        *(card_line(card_facts(card)) for card in cards),
        f"{100 * recent.wait_s / total_s:.0f} % of the time waiting for data",
    ]
    if to_go_s is not None:
        parts.append(f"done in about {format_duration(_roughly(to_go_s))}")
    if math.isfinite(window.length_s):
        parts.append(f"the window closes in {format_duration(max(0.0, window.left_s))}")
    return "; ".join(parts)


def _roughly(seconds: float) -> float:
    """To ten seconds, or to a minute where it is many."""
    unit = 10 if seconds < 600 else 60
    return float(max(unit, round(seconds / unit) * unit))
