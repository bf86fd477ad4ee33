"""Where the time of the loop goes: waiting for data, copying, saving, and the steps themselves."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from perdure.core.clock import Clock
from perdure.hardware.use import LoopTimes

STRETCH_S = 60.0
"""Seconds that the recent times are about."""

_MARK_S = 5.0


@dataclass(frozen=True)
class _Mark:
    """Sums up to one instant."""

    at_s: float = 0.0
    steps: int = 0
    batches: int = 0
    wait_s: float = 0.0
    save_s: float = 0.0


class LoopClock:
    """Adds up times; a stretch is the difference of two sums. A step costs two additions and a comparison.

    Args:
        clock: Where "now" comes from.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._batches = 0
        self._wait_s = 0.0
        self._save_s = 0.0
        self._copy_s: float | None = None
        self.begin(0)

    def now(self) -> float:
        """Seconds on the session's clock."""
        return self._clock.monotonic()

    def begin(self, step: int) -> None:
        """The loop begins, at this step."""
        self._batches, self._wait_s, self._save_s = 0, 0.0, 0.0
        self._first = self._sums(step)
        self._marks = deque([self._first])

    def first_step_done(self, step: int) -> None:
        """Recent times begin here: in the first step workers start and kernels are compiled."""
        self._marks = deque([self._sums(step)])

    def waited(self, seconds: float) -> None:
        """A batch was waited for."""
        self._batches += 1
        self._wait_s += seconds

    def saved(self, seconds: float) -> None:
        """A save took so long."""
        self._save_s += seconds

    def copied(self, seconds: float | None) -> None:
        """Bringing one batch to the device took so long; None if that could not be measured."""
        self._copy_s = seconds

    def boundary(self, step: int) -> float:
        """A boundary is reached.

        Args:
            step: Finished steps.

        Returns:
            The time of it.
        """
        now = self._clock.monotonic()
        if now - self._marks[-1].at_s >= _MARK_S:
            self._marks.append(self._sums(step))
            while len(self._marks) > 2 and now - self._marks[1].at_s >= STRETCH_S:
                self._marks.popleft()
        return now

    def recent(self, step: int) -> LoopTimes:
        """Times of the last ``STRETCH_S`` seconds, or of somewhat more."""
        return self._since(self._marks[0], step)

    def session(self, step: int) -> LoopTimes:
        """Times since the loop began in this session."""
        return self._since(self._first, step)

    def _sums(self, step: int) -> _Mark:
        return _Mark(self._clock.monotonic(), step, self._batches, self._wait_s, self._save_s)

    def _since(self, mark: _Mark, step: int) -> LoopTimes:
        now = self._sums(step)
        copy_s = None if self._copy_s is None else self._copy_s * (now.batches - mark.batches)
        return LoopTimes(
            steps=now.steps - mark.steps,
            wait_s=now.wait_s - mark.wait_s,
            copy_s=copy_s,
            save_s=now.save_s - mark.save_s,
            total_s=now.at_s - mark.at_s,
        )
