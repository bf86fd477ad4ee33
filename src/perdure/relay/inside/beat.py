"""What a session says of itself while it runs: one line ``@perdure {json}`` now and then, for who watches."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.core.paths import RunPaths
from perdure.core.runs import read_json
from perdure.platforms.report import RunReport, SessionReport

PREFIX = "@perdure "

_NUMBER = re.compile(r"(?<![0-9A-Za-z])\d+(?![0-9A-Za-z])")


def run_facts(report: SessionReport | None, working: Path) -> list[dict[str, Any]]:
    """How each run of a session stands, as the marker and the lines have it.

    Args:
        report: What the session reports; None if its script does not use Perdure, or not yet.
        working: The working folder.
    """
    return [_facts(run, working) for run in report.runs] if report else []


def _facts(run: RunReport, working: Path) -> dict[str, Any]:
    session, _ = read_json(RunPaths(run.folder).session_json)
    plan, speeds = _mapping(session.get("plan")), _mapping(session.get("speeds"))
    folder = os.path.relpath(run.folder, working)
    return {
        "name": run.name,
        "status": run.status,
        "step": run.step,
        "epoch": run.epoch,
        "checkpoint": run.checkpoint,
        "count": plan.get("count"),
        "unit": plan.get("unit") or "",
        "steps_per_s": speeds.get("steps_per_s"),
        "reason": run.reason,
        "resumed_from": run.resumed_from,
        "folder": "" if folder.startswith("..") else Path(folder).as_posix(),
    }


def beat(session: int, report: SessionReport | None, working: Path, *, now_s: float, left_s: float) -> str:
    """One line.

    Args:
        session: Number of the session.
        report: How its runs stand.
        working: The working folder.
        now_s: Seconds since 1970.
        left_s: Seconds until its window closes.
    """
    newest = _newest(report)
    value = {
        "session": session,
        "said_s": round(now_s, 1),
        "left_s": round(left_s, 1),
        "platform_session": platform_session(),
        "runs": [{k: v for k, v in run.items() if k not in ("folder",)} for run in run_facts(report, working)],
        "metrics": _mapping(newest.get("metrics")),
        "cards": _cards(newest),
    }
    return PREFIX + json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def platform_session(environment: Mapping[str, str] = os.environ) -> str:
    """The platform's number of this session; empty if it does not say.

    On Kaggle it is in ``KAGGLE_CONTAINER_NAME``, by the notes of other projects; not tried here.
    """
    found = _NUMBER.findall(environment.get("KAGGLE_CONTAINER_NAME", ""))
    return found[-1] if found else ""


def _newest(report: SessionReport | None) -> Mapping[str, Any]:
    """``session.json`` of the run that was started last."""
    return read_json(RunPaths(report.runs[-1].folder).session_json)[0] if report and report.runs else {}


def _cards(session: Mapping[str, Any]) -> list[dict[str, Any]]:
    gpu = _mapping(session.get("gpu"))
    cards = gpu.get("recent") or gpu.get("cards") or []
    return [
        {
            "name": card.get("name", ""),
            "busy_percent": card.get("busy_percent"),
            "memory_used_bytes": card.get("memory_peak_bytes"),
            "memory_total_bytes": card.get("memory_total_bytes"),
        }
        for card in cards
        if isinstance(card, Mapping)
    ]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
