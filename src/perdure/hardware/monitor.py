"""Looks at the cards every few seconds while a run trains: one light thread, NVML only."""

from __future__ import annotations

from perdure.core.clock import Clock
from perdure.hardware.use import CardUse

EVERY_S = 2.0
"""Seconds between two looks."""

WINDOW_S = 60.0
"""Seconds that the recent figures are about."""


class Monitor:
    """Samples the cards that this process sees. Nothing in it raises; trouble is told.

    Args:
        clock: Tells how long ago a sample was.
        every_s: Seconds between two looks.
        window_s: Seconds that ``use()`` looks back.
    """

    def __init__(self, clock: Clock, every_s: float = EVERY_S, window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._window_s = window_s

    def start(self) -> None:
        """Begin; once. A second call does nothing."""

    def stop(self) -> None:
        """End; what was seen stays readable. Returns when the thread has ended, or after a second."""

    def use(self, *, whole_session: bool = False) -> tuple[CardUse, ...]:
        """What the cards did lately, or since ``start()``; empty if NVML cannot be asked."""
        return ()

    @property
    def trouble(self) -> str:
        """Why nothing, or not everything, can be sampled; empty if all is well. To be said once."""
        return ""

    @property
    def cost_s(self) -> float:
        """CPU time that the thread took, seconds."""
        return 0.0
