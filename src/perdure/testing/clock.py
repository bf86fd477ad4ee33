"""A clock that tests move."""

from __future__ import annotations


class FakeClock:
    """Stands still until it is moved.

    Args:
        now_s: Where the monotonic clock begins.
        wall_s: Where the wall clock begins, seconds since 1970.
    """

    def __init__(self, now_s: float = 1000.0, wall_s: float = 1_800_000_000.0) -> None:
        self._now_s = now_s
        self._wall_s = wall_s

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return self._now_s

    def time(self) -> float:
        """Seconds since 1970, UTC."""
        return self._wall_s

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time does not run backwards; to set the wall clock back, use set_wall")
        self._now_s += seconds
        self._wall_s += seconds

    def set_wall(self, wall_s: float) -> None:
        """Set the wall clock, as a user or NTP does; the monotonic one goes on."""
        self._wall_s = wall_s
