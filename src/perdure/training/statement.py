"""The short plain statement at the start of a run: where am I, what survives, when does the window close."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.core.intervals import format_bytes, format_duration
from perdure.core.limits import Limits
from perdure.core.say import say, warn
from perdure.training.schedule import SaveSchedule
from perdure.training.session import Session

if TYPE_CHECKING:
    from perdure.training.run import Run


def state_at_start(
    run: Run, session: Session, limits: Limits, schedule: SaveSchedule, reports: Iterable[str]
) -> None:
    """Say it, on stderr."""
    place = session.place
    for report in reports:
        warn(f"{run.name}: {report}")
    mode = "" if place.mode == "process" else f" ({place.mode})"
    if run.finished:
        say(f"{run.name}: finished at step {run.step}; nothing is left to do")
        return
    begins = "starts afresh" if run.resumed_from is None else f"resumes at step {run.step}, epoch {run.epoch}"
    say(f"{run.name}: {begins} on {place.platform}{mode}, {run.device}; {place.survives}")
    say(f"{run.name}: {_window(run.time_left, session)}; saves {schedule}; {_disk(run, limits)}")


def _window(left_s: float, session: Session) -> str:
    if not math.isfinite(left_s):
        return "no time limit"
    closes = datetime.fromtimestamp(session.clock.time() + left_s).astimezone()
    return f"the window closes in {format_duration(max(left_s, 0))}, at {closes:%H:%M:%S %Z}"


def _disk(run: Run, limits: Limits) -> str:
    folder = run.folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return f"free space in {folder} is unknown"
    budget = f", budget {format_bytes(limits.disk_bytes)}" if limits.disk_bytes else ""
    return f"{format_bytes(free)} free{budget} in {folder}"
