"""When to save."""

from __future__ import annotations

from perdure.core.clock import Clock
from perdure.core.intervals import Interval, format_duration

_FIRST_S = 10.0
_SHORTEST_S = 10.0
_LONGEST_S = 600.0
_COST_SHARE = 0.01


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
        self._auto_s = _FIRST_S

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

    def saved(self, step: int, seconds: float) -> None:
        """A save was made; ``seconds`` is what it cost training."""
        self._saved_at_s = self._clock.monotonic()
        self._saved_step = step
        self._epochs = 0
        self._auto_s = min(max(seconds / _COST_SHARE, _SHORTEST_S), _LONGEST_S)

    def __str__(self) -> str:
        if self.interval.unit != "auto":
            return str(self.interval)
        return f"every {format_duration(self._auto_s)} (auto: costs at most 1 % of the time)"
