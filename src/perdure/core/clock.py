"""Time, injected, so that tests can fast-forward it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What Perdure asks of a clock."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; for durations and deadlines."""

    def time(self) -> float:
        """Seconds since 1970, UTC; for labels only."""


class SystemClock:
    """The machine's clocks.

    ``CLOCK_BOOTTIME`` and not ``CLOCK_MONOTONIC``: the window of a session goes on while a laptop sleeps, and
    the start times of processes are given on the same scale (proc(5), ``starttime``).
    """

    def monotonic(self) -> float:
        """Seconds since the machine was started, sleep included."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()
