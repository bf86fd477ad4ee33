"""Durations, byte counts and "how often": parsed once, at the border."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from perdure.core.errors import ConfigError

Duration = str | float | timedelta
"""A duration at the public border: ``"90 s"``, ``"5 min"``, ``"12 h"``, a timedelta, or seconds."""

_NUMBER = r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*"
_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_BYTES = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_COUNTS = {"step": "steps", "steps": "steps", "epoch": "epochs", "epochs": "epochs"}

Unit = Literal["auto", "seconds", "steps", "epochs"]


@dataclass(frozen=True)
class Interval:
    """How often something happens.

    Attributes:
        unit: What is counted; ``"auto"`` lets Perdure choose from what saving costs.
        count: How many of it; 0 for ``"auto"``.
    """

    unit: Unit
    count: float = 0

    def __str__(self) -> str:
        if self.unit == "auto":
            return "auto"
        if self.unit == "seconds":
            return f"every {format_duration(self.count)}"
        noun = self.unit[:-1] if self.count == 1 else self.unit
        return f"every {int(self.count)} {noun}"


def parse_duration(value: Duration, *, what: str = "duration") -> float:
    """Seconds of a duration.

    Args:
        value: ``"30s"``, ``"5 min"``, ``"1.5 h"``, a timedelta, or a number of seconds.
        what: What it is for; named in the error.

    Returns:
        Seconds, finite and greater than 0.

    Raises:
        ConfigError: It is no duration, or not a positive finite one.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        seconds = _measure(value, _SECONDS, what, 'a duration such as "90 s", "5 min" or "12 h"')
    if not math.isfinite(seconds) or seconds <= 0:
        raise ConfigError(f"{what} must be greater than zero, got {value!r}", hint='try "5 min"')
    return seconds


def parse_bytes(value: str | int, *, what: str = "size") -> int:
    """Bytes of a size such as ``"200MB"`` or ``"19.5 GiB"``.

    Raises:
        ConfigError: It is no size, or not a positive one.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        count = float(value)
    else:
        count = _measure(value, _BYTES, what, 'a size such as "200MB" or "20 GB"')
    if not math.isfinite(count) or count < 1:
        raise ConfigError(f"{what} must be at least one byte, got {value!r}", hint='try "20 GB"')
    return int(count)


def parse_interval(value: Duration) -> Interval:
    """How often to save, from what the user wrote.

    Args:
        value: ``"auto"``, ``"5 min"``, ``"200 steps"``, ``"1 epoch"``, or a timedelta. A bare number is refused,
            since it does not say of what.

    Raises:
        ConfigError: It is none of these.
    """
    want = 'one of "auto", "5 min", "200 steps", "1 epoch" or a timedelta'
    if isinstance(value, timedelta):
        return Interval("seconds", parse_duration(value, what="save_every"))
    if not isinstance(value, str):
        raise ConfigError(
            f"save_every must be {want}, got {value!r}", hint=f'say of what: "{value} steps" or "{value} s"'
        )
    if value.strip().lower() == "auto":
        return Interval("auto")
    match = re.fullmatch(_NUMBER + r"([A-Za-z]+)\s*", value)
    unit = _COUNTS.get(match.group(2).lower()) if match else None
    if match and unit:
        count = float(match.group(1))
        if count < 1 or count != int(count):
            raise ConfigError(f"save_every must be a whole number of {unit} from 1 up, got {value!r}")
        return Interval("steps" if unit == "steps" else "epochs", count)
    return Interval("seconds", _positive(_measure(value, _SECONDS, "save_every", want), value))


def format_duration(seconds: float) -> str:
    """A duration for people: ``"850 ms"``, ``"42 s"``, ``"4 min 05 s"``, ``"11 h 58 min"``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 and seconds != int(seconds) else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"


def format_bytes(count: float) -> str:
    """A byte count for people, in powers of 1000: ``"512 B"``, ``"1.5 MB"``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _measure(value: object, units: dict[str, float] | dict[str, int], what: str, want: str) -> float:
    match = re.fullmatch(_NUMBER + r"([A-Za-z]+)\s*", value) if isinstance(value, str) else None
    if match:
        word = match.group(2)
        for name in (word, word.lower(), word.upper()):
            if name in units:
                return float(match.group(1)) * units[name]
    raise ConfigError(f"{what} must be {want}, got {value!r}", hint="write a number and a unit")


def _positive(seconds: float, value: object) -> float:
    if not math.isfinite(seconds) or seconds <= 0:
        raise ConfigError(f"save_every must be greater than zero, got {value!r}", hint='try "5 min"')
    return seconds


def format_number(value: float) -> str:
    """Three figures, and never a power of ten: ``0.0213``, ``12.3``, ``1543``."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
