"""Where this session runs, what survives it, and how long it lasts."""

from __future__ import annotations

import math
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perdure.checkup.checks import Check
from perdure.core.clock import Clock
from perdure.core.intervals import format_duration
from perdure.core.limits import Window
from perdure.platforms.place import Place

KAGGLE_WORKING = Path("/kaggle/working")
"""Is there in every session of Kaggle, also for a shell that was let in from outside and knows nothing of it."""

_KEEP = {
    ("kaggle", "interactive"): (
        "run it as a batch (Save Version > Save & Run All), or Notebook options > Persistence > Files only"
    ),
    ("colab", "interactive"): "mount Google Drive, and set PERDURE_ROOT to a folder on it",
}
_SHORT_S = 600.0
_JUMP_S = 1.0
_EARLIEST = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Instant:
    """Both clocks at the same moment."""

    wall_s: float
    monotonic_s: float

    @classmethod
    def now(cls, clock: Clock) -> Instant:
        """This moment."""
        return cls(clock.time(), clock.monotonic())


def platform_check(place: Place) -> Check:
    """Platform, mode, and what of the output outlives the session."""
    mode = "" if place.mode == "process" else f", {place.mode}"
    fact = f"{place.platform}{mode}: {place.survives}"
    details = {"platform": place.platform, "mode": place.mode, "survives": place.survives, "root": str(place.root)}
    if place.platform == "local" and KAGGLE_WORKING.is_dir():
        fact = (
            f"taken for a machine of your own, but {KAGGLE_WORKING} is there: this shell lacks Kaggle's variables"
        )
        return Check("platform", "warning", fact, "run it from a cell, or set PERDURE_PLATFORM=kaggle", details)
    hint = _KEEP.get((place.platform, place.mode), "")
    return Check("platform", "note" if hint else "ok", fact, hint, details)


def window_check(window: Window) -> Check:
    """How long the session may last, and how much of that is left."""
    if not math.isfinite(window.length_s):
        return Check("window", "ok", "none: this session may last for ever")
    left = window.left_s
    details = {"length_s": window.length_s, "left_s": left, "elapsed_s": window.elapsed_s}
    length, began = format_duration(window.length_s), format_duration(max(window.elapsed_s, 0))
    if left <= 0:
        return Check("window", "failed", f"{length}, and it closed already", "start a new session", details)
    fact = f"{length}, began {began} ago, closes in {format_duration(left)}"
    if left < _SHORT_S:
        return Check(
            "window", "warning", fact, "start a new session: little can be trained in what is left", details
        )
    return Check("window", "ok", fact, details=details)


def clock_check(begun: Instant, ended: Instant) -> Check:
    """Whether the wall clock can be believed. Windows are counted on the other one, which cannot be set."""
    jump_s = (ended.wall_s - begun.wall_s) - (ended.monotonic_s - begun.monotonic_s)
    shown = datetime.fromtimestamp(ended.wall_s, UTC)
    details = {"utc": shown.isoformat(timespec="seconds"), "jump_s": round(jump_s, 3)}
    fact = f"{shown:%Y-%m-%d %H:%M} UTC"
    harm = "dates of checkpoints will be wrong, and secure connections fail"
    if shown < _EARLIEST:
        return Check("clock", "warning", f"{fact}: that is in the past", f"set the clock: {harm}", details)
    if abs(jump_s) > _JUMP_S:
        way = "forward" if jump_s > 0 else "back"
        fact = f"{fact}: set {way} by {format_duration(abs(jump_s))} while we looked"
        return Check("clock", "warning", fact, f"find out what sets the clock: {harm}", details)
    return Check("clock", "ok", fact, details=details)


def python_check() -> Check:
    """The interpreter whose packages count; a terminal of a hosted session may have another one."""
    version = platform.python_version()
    return Check("python", "ok", f"{version}, {sys.executable}", details={"executable": sys.executable})
