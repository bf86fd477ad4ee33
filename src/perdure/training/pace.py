"""How long things take in this run, and when it must therefore stop."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Literal

from perdure.core.clock import Clock
from perdure.core.intervals import format_duration
from perdure.core.limits import Window

Gap = Literal["step", "tail"]
"""From one boundary to the next: a step, or the last step of a pass with all that comes after it."""

_FIRST_SAVE_BYTES_PER_S = 50e6  # a slow network disk; replaced by what is measured at the first save
_SAVE_FACTOR = 1.5
_LEAVE_S, _LEAVE_SHARE, _LEAVE_MOST_S = 0.5, 0.02, 5.0


class Pace:
    """Learns the time between boundaries and the time of a save.

    Args:
        clock: Where "now" comes from.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gaps: dict[Gap, deque[float]] = {"step": deque(maxlen=200), "tail": deque(maxlen=20)}
        self._saves: deque[float] = deque(maxlen=10)
        self._beside: list[float] | None = None
        self._since = clock.monotonic()
        self._kind: Gap | None = None
        self._first_s: float | None = None
        self.training_s = 0.0
        self.state_bytes = 0

    def now(self) -> float:
        """Seconds on the session's clock."""
        return self._clock.monotonic()

    def boundary(self) -> None:
        """A boundary is reached: the gap that ends here is learned."""
        now = self._clock.monotonic()
        if self._first_s is None:
            self._first_s = now - self._since
        elif self._kind is not None:
            self._gaps[self._kind].append(now - self._since)
            if self._beside is not None and self._kind == "step":
                self._beside.append(now - self._since)
        self.training_s += now - self._since
        self._since = now

    def leave(self, upcoming: Gap) -> None:
        """The boundary is left; ``upcoming`` is the gap that begins. Time spent in it is nobody's."""
        self._since = self._clock.monotonic()
        self._kind = upcoming

    def saved(self, seconds: float) -> None:
        """A save took so long."""
        self._saves.append(seconds)

    def begin_beside(self) -> None:
        """A save beside the training begins here."""
        self._beside = []

    def end_beside(self) -> float:
        """It has ended.

        Returns:
            How much longer its steps took in all than steps do, in seconds.
        """
        beside, self._beside = self._beside or [], None
        usual = statistics.median(self._gaps["step"]) if self._gaps["step"] else 0.0
        return max(0.0, sum(beside) - len(beside) * usual)

    @property
    def last_save_s(self) -> float | None:
        """Time of the newest save, None before the first."""
        return self._saves[-1] if self._saves else None

    @property
    def steps_per_s(self) -> float | None:
        """Speed over the recent steps."""
        recent = list(self._gaps["step"])[-50:]
        total = sum(recent)
        return len(recent) / total if total > 0 else None

    def expected_s(self, upcoming: Gap) -> float:
        """Time to the next boundary, from the slowest recent one of its kind.

        The first of the session says little (workers start, kernels are compiled), and counts only until there
        is another.
        """
        slowest_step = max(self._gaps["step"], default=self._first_s or 0.0)
        return max(slowest_step, max(self._gaps[upcoming], default=0.0))

    def expected_save_s(self) -> float:
        """Time of the final save, learned, with a floor before the first."""
        if self._saves:
            return max(self._saves) * _SAVE_FACTOR + 0.05
        return 0.25 + self.state_bytes / _FIRST_SAVE_BYTES_PER_S

    def stop_reason(self, window: Window, margin_s: float, upcoming: Gap) -> str | None:
        """Why the run must stop at this boundary, None if there is time for another step.

        Args:
            window: The session's.
            margin_s: What the platform needs after the script has ended.
            upcoming: The gap that would begin.
        """
        # the process itself has to end too, workers and interpreter, on a machine that may be busy
        leave_s = min(_LEAVE_S + _LEAVE_SHARE * window.length_s, _LEAVE_MOST_S)
        needed = self.expected_s(upcoming) + self.expected_save_s() + margin_s + leave_s
        if window.left_s > needed:
            return None
        return (
            f"the window of {format_duration(window.length_s)} closes in {format_duration(max(window.left_s, 0))}"
        )
