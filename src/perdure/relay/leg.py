"""One session of a rehearsal: run, killed at a drawn moment, and what is known of its progress."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perdure.core.events import read_events
from perdure.core.paths import RunPaths
from perdure.core.runs import read_json
from perdure.platforms.local import LocalSession, SessionEnd
from perdure.platforms.report import RunReport, SessionReport

_LOOK_EVERY_S = 0.05
_ESTIMATE_EVERY_S = 0.25
_KILL_SHARES = (0.05, 0.95)
_HORIZON_S = 20.0
"""How long a session without a window is taken to last before it has told anything of itself."""


@dataclass(frozen=True)
class Leg:
    """A session of the chain, as it is reported.

    Attributes:
        name: ``session-0001``, or ``twin-1`` for an uninterrupted run.
        end: How it ended.
        begun: Steps that each of its runs began with.
        saved: Steps of each run at its last save.
        reached: Steps that each run had made when it ended, about; those beyond ``saved`` are lost.
    """

    name: str
    end: SessionEnd
    begun: Mapping[str, int]
    saved: Mapping[str, int]
    reached: Mapping[str, int]

    @property
    def lost_steps(self) -> int:
        """Steps that were made and not saved, about."""
        return sum(max(0, self.reached[name] - step) for name, step in self.saved.items())


class Killer:
    """Draws when a session is killed: at a share of the time that it is expected to last.

    What a run tells of itself while it works is used, so that a short training is killed before its end too.

    Args:
        generator: Where the share comes from.
    """

    def __init__(self, generator: random.Random) -> None:
        self._share = generator.uniform(*_KILL_SHARES)
        self._expected_s = math.inf
        self._estimated_at_s = -math.inf

    def is_due(self, session: LocalSession) -> bool:
        """Whether the session is to be killed now."""
        now_s = session.elapsed_s
        if now_s - self._estimated_at_s >= _ESTIMATE_EVERY_S:
            self._estimated_at_s = now_s
            self._expected_s = expected_s(session)
        return now_s >= self._share * self._expected_s


def run_leg(name: str, session: LocalSession, killer: Killer | None) -> Leg:
    """See a session to its end.

    Args:
        name: Its name.
        session: The session.
        killer: Ends it hard; None leaves it alone.
    """
    try:
        while session.poll():
            if killer is not None and killer.is_due(session):
                session.kill()
                break
            time.sleep(_LOOK_EVERY_S)
        ended_at_s = time.time()
    finally:
        end = session.finish()
    runs = end.report.runs if end.report else ()
    output = session.folders.output
    return Leg(
        name,
        end,
        begun={run.name: run.resumed_from or 0 for run in runs},
        saved={run.name: run.step for run in runs},
        reached={run.name: _reached(run, _seen_from(session, output, run), end, ended_at_s) for run in runs},
    )


def expected_s(session: LocalSession) -> float:
    """How long a session will last from its start, by its window and by what its runs say of themselves."""
    window_s, report = session.limits.window_s, session.report
    left_s = [_left_s(run, session.box.view(run.folder), report) for run in report.runs] if report else []
    known = [session.elapsed_s + seconds for seconds in left_s if seconds is not None]
    if window_s is None:
        return max(known, default=_HORIZON_S)
    return min(window_s, max(known, default=window_s))


def _left_s(run: RunReport, folder: Path, report: SessionReport) -> float | None:
    """Seconds that a run still needs after now, by the plan and the speed in its ``session.json``."""
    status, _ = read_json(RunPaths(folder).session_json)
    plan, speed = status.get("plan") or {}, (status.get("speeds") or {}).get("steps_per_s")
    count, step, epoch = plan.get("count"), status.get("step") or 0, status.get("epoch") or 0
    if not speed or not count or not step:
        return None
    steps = count if plan.get("unit") == "steps" else count * step / epoch if epoch else None
    if steps is None:
        return None
    return float((steps - step) / speed - (time.time() - report.updated_s))


def _seen_from(session: LocalSession, output: Path, run: RunReport) -> Path:
    """A run's folder, where the session's output is kept."""
    try:
        return output / run.folder.relative_to(session.folders.working)
    except ValueError:  # the script put it elsewhere
        return run.folder


def _reached(run: RunReport, folder: Path, end: SessionEnd, ended_at_s: float) -> int:
    """Steps that a run had made when it ended: what it logged, or what its speed since the last save says."""
    if run.status != "running" or end.report is None:
        return run.step
    paths = RunPaths(folder)
    lines = (line for line in read_events(paths.events) if line.get("session") == run.session)
    logged = max((int(line.get("step") or 0) for line in lines), default=0)
    status, _ = read_json(paths.session_json)
    speed = (status.get("speeds") or {}).get("steps_per_s") or 0.0
    return max(run.step, logged, run.step + int(speed * (ended_at_s - end.report.updated_s)))
