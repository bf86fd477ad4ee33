"""When to save."""

from __future__ import annotations

import math

from perdure.core.clock import Clock
from perdure.core.intervals import Interval, format_duration

_FIRST_S = 10.0
_SHORTEST_S = 10.0
_LONGEST_S = 600.0
_COST_SHARE = 0.01
_LOSS_EVERY_S = 6 * 3600.0
_DISK_BYTES_PER_S = 20e6
_DISK_SHARE = 0.2

COST = "costs at most 1 % of the time"
YOUNG = "loses least if a session dies every 6 h"
DISK = "leaves the disk its rest"
"""Why an interval is what it is. The second is Young's rule, sqrt(2 x cost of a save x time between losses): J. W.
Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974). The third holds writing to
20 MB/s on average and to a fifth of the time."""


class SaveSchedule:
    """Says at a boundary whether a save is due.

    Args:
        interval: What the user asked for.
        clock: Where "now" comes from.
    """

    def __init__(self, interval: Interval, clock: Clock) -> None:
        self.interval = interval
        self._clock = clock
        self._saved_at_s = clock.monotonic()
        self._saved_step = 0
        self._epochs = 0
        self._auto_s = self._told_s = _FIRST_S
        self._why = COST

    def begin(self, step: int) -> None:
        """The loop begins here."""
        self._saved_at_s = self._clock.monotonic()
        self._saved_step = step

    def epoch_ended(self) -> None:
        """Another epoch is done."""
        self._epochs += 1

    def due(self, step: int) -> bool:
        """Whether to save now.

        Args:
            step: Finished steps.
        """
        unit, count = self.interval.unit, self.interval.count
        if unit == "steps":
            return step // count > self._saved_step // count
        if unit == "epochs":
            return self._epochs >= count
        period_s = self._auto_s if unit == "auto" else count
        return self._clock.monotonic() - self._saved_at_s >= period_s

    def begun(self, step: int) -> None:
        """A save was begun; the next is due an interval from here."""
        self._saved_at_s = self._clock.monotonic()
        self._saved_step = step
        self._epochs = 0

    def saved(self, cost_s: float, seconds: float, nbytes: int) -> bool:
        """A save was committed.

        Args:
            cost_s: How much time training lost by it: waiting, and slower steps.
            seconds: How long it took in all.
            nbytes: What was written.

        Returns:
            Whether the interval is quite another now than what was last told of.
        """
        wishes = {
            COST: max(cost_s / _COST_SHARE, _SHORTEST_S),
            YOUNG: math.sqrt(2 * cost_s * _LOSS_EVERY_S),
            DISK: max(nbytes / _DISK_BYTES_PER_S, seconds / _DISK_SHARE),
        }
        self._why = max(wishes, key=lambda why: wishes[why])
        self._auto_s = min(wishes[self._why], _LONGEST_S)
        if self.interval.unit != "auto" or self._told_s / 1.5 < self._auto_s < self._told_s * 1.5:
            return False
        self._told_s = self._auto_s
        return True

    @property
    def auto_s(self) -> float:
        """How often ``"auto"`` saves, by what was measured so far, in seconds."""
        return self._auto_s

    @property
    def patient(self) -> bool:
        """Whether a save may wait for the one before: an interval of time is no promise about a step."""
        return self.interval.unit not in ("steps", "epochs")

    def __str__(self) -> str:
        if self.interval.unit != "auto":
            return str(self.interval)
        return f"every {format_duration(self._auto_s)} (auto: {self._why})"
