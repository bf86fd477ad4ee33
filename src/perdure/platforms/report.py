"""What a session says about its runs: the file that ``PERDURE_SESSION_REPORT`` names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunReport:
    """How one run of a session stands.

    Attributes:
        name: Its name.
        folder: Its folder, as the session sees it.
        status: ``"running"``, ``"paused"``, ``"finished"`` or ``"failed"``.
        reason: Why it stopped; empty while it runs.
        step: Finished steps at the last save.
        epoch: Epoch at the last save.
        resumed_from: Step that the session began with; None for a fresh start.
        session: Number of the session in this run, from 1.
        checkpoint: Name of the newest checkpoint; None before the first.
    """

    name: str
    folder: Path
    status: str
    reason: str = ""
    step: int = 0
    epoch: int = 0
    resumed_from: int | None = None
    session: int = 1
    checkpoint: str | None = None


@dataclass(frozen=True)
class SessionReport:
    """How a session stands.

    Attributes:
        status: ``"paused"`` if any of its runs is.
        runs: Its runs, in the order in which they were started.
        updated_s: When it was last written, seconds since 1970.
    """

    status: str
    runs: tuple[RunReport, ...] = ()
    updated_s: float = 0.0

    @property
    def reason(self) -> str:
        """Why the first run that is not finished stopped."""
        return next((run.reason for run in self.runs if run.status != "finished"), "")


def read_report(path: Path) -> SessionReport | None:
    """The report of a session; None if there is none, so that the script does not use Perdure, or not yet."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        updated_s = path.stat().st_mtime
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    runs = [_run(entry) for entry in document.get("runs", []) if isinstance(entry, dict)]
    return SessionReport(str(document.get("status", "")), tuple(runs), updated_s)


def _run(entry: dict[str, Any]) -> RunReport:
    return RunReport(
        name=str(entry.get("name", "")),
        folder=Path(str(entry.get("folder", ""))),
        status=str(entry.get("status", "")),
        reason=str(entry.get("reason") or ""),
        step=int(entry.get("step") or 0),
        epoch=int(entry.get("epoch") or 0),
        resumed_from=entry.get("resumed_from"),
        session=int(entry.get("session") or 1),
        checkpoint=entry.get("checkpoint"),
    )
