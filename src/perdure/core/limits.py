"""What a platform allows, and the window of the present session."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from perdure.core.clock import Clock
from perdure.core.intervals import Duration, parse_bytes, parse_duration


@dataclass(frozen=True)
class Limits:
    """What a platform allows a session. ``None`` means "no such limit".

    Args:
        window: How long a session may last: ``"12 h"``, a timedelta, or seconds.
        disk: How much the output folder may hold: ``"20 GB"`` or bytes.
        margin: Time to keep free at the end of the window, beyond the final save: for the platform to
            commit the output. Learned margins come on top.
    """

    window: Duration | None = None
    disk: str | int | None = None
    margin: Duration | None = None

    def __post_init__(self) -> None:
        _ = (
            self.window_s,
            self.disk_bytes,
            self.margin_s,
        )  # a wrong value is refused here, not at the deadline

    @property
    def window_s(self) -> float | None:
        """Length of a session in seconds."""
        return None if self.window is None else parse_duration(self.window, what="limits.window")

    @property
    def disk_bytes(self) -> int | None:
        """Bytes that the output folder may hold."""
        return None if self.disk is None else parse_bytes(self.disk, what="limits.disk")

    @property
    def margin_s(self) -> float | None:
        """Seconds to keep free at the end of the window."""
        return None if self.margin is None else parse_duration(self.margin, what="limits.margin")

    def over(self, base: Limits) -> Limits:
        """These limits, with what they leave open taken from ``base``."""
        mine = {k: v for k, v in vars(self).items() if v is not None}
        return replace(base, **mine)


@dataclass(frozen=True)
class Window:
    """When the present session began and when it closes, on the scale of ``clock.monotonic()``.

    The session clock is never part of a checkpoint: each session has a window of its own.

    Attributes:
        clock: Where "now" comes from.
        started_s: Start of the session (of its container where there is one).
        length_s: How long it may last; infinite where there is no limit.
    """

    clock: Clock
    started_s: float
    length_s: float = math.inf

    @property
    def deadline_s(self) -> float:
        """When it closes."""
        return self.started_s + self.length_s

    @property
    def elapsed_s(self) -> float:
        """Time used so far."""
        return self.clock.monotonic() - self.started_s

    @property
    def left_s(self) -> float:
        """Time left; negative after the deadline, infinite without one."""
        return self.deadline_s - self.clock.monotonic()
