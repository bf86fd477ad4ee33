"""``perdure status``: every run below a folder, and how it stands."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import psutil

from perdure.checkpoint.search import list_run
from perdure.cli.options import Json, Names, Root, folder_of_runs
from perdure.cli.output import ago, note, say, say_json
from perdure.core.intervals import format_bytes, format_duration
from perdure.core.paths import RunPaths
from perdure.core.runs import find_runs, pick_run, read_json


def status_command(names: Names = None, root: Root = None, json: Json = False) -> None:
    """How each run stands. Progress, newest checkpoint, speed, time left, and why it stopped."""
    folder = folder_of_runs(root)
    runs = [pick_run(folder, name) for name in names] if names else find_runs(folder)
    facts = [facts_of(run) for run in runs]
    if json:
        say_json({"root": str(folder), "runs": facts})
    elif facts:
        for line in "\n\n".join(describe(fact) for fact in facts).splitlines():
            say(line)
    else:
        note(f"no runs below {folder}")


def facts_of(run: RunPaths) -> dict[str, Any]:
    """What is known about a run: its session file, checked against its process, and its newest checkpoint."""
    session, problem = read_json(run.session_json)
    newest = next((found.manifest for found in list_run(run) if found.manifest and not found.error), None)
    facts = {"run": run.folder.name, "folder": str(run.folder), **session, "problem": problem}
    facts["status"] = status_of(session) if session else "damaged" if problem else "unknown"
    facts["newest"] = newest and {
        "step": newest.position.step,
        "epoch": newest.position.epoch,
        "created": newest.created,
        "healthy": newest.healthy,
        "finished": newest.finished,
        "bytes": sum(entry.nbytes for entry in newest.entries),
    }
    return facts


def status_of(session: Mapping[str, Any]) -> str:
    """The status in a session file, or "killed" where it says "running" and its process on this machine is gone."""
    status = str(session.get("status", "unknown"))
    here = session.get("host") == socket.gethostname()
    if status == "running" and here and not psutil.pid_exists(int(session.get("pid", 0))):
        return "killed"
    return status


def describe(facts: Mapping[str, Any]) -> str:
    """A run for people: one head line and one line a topic."""
    lines = [f"{facts['run']}  {facts['status']}{_progress(facts)}"]
    topics = {
        "why": "" if facts["status"] == "finished" else facts.get("reason") or "",
        "session": _session(facts),
        "checkpoint": _checkpoint(facts.get("newest")),
        "speed": _speed(facts.get("speeds") or {}),
        "metrics": "  ".join(f"{k} {v:.6g}" for k, v in (facts.get("metrics") or {}).items()),
        "problem": facts.get("problem") or "",
    }
    lines += [f"  {topic:<11} {text}" for topic, text in topics.items() if text]
    return "\n".join(lines)


def _progress(facts: Mapping[str, Any]) -> str:
    step = facts.get("step", (facts.get("newest") or {}).get("step"))
    if step is None:
        return ""
    plan = facts.get("plan") or {}
    if plan.get("unit") == "epochs" and plan.get("count"):
        return f", step {step}, epoch {facts.get('epoch', 0)} of {plan['count']}"
    return f", step {step} of {plan['count']}" if plan.get("count") else f", step {step}"


def _session(facts: Mapping[str, Any]) -> str:
    if "session" not in facts:
        return ""
    place = ", ".join(str(facts[key]) for key in ("platform", "mode") if facts.get(key))
    text = f"{facts['session']}" + (f" on {place}" if place else "")
    if updated := ago(facts.get("updated")):
        text += f", last heard of {updated}"
    left = facts.get("left_s")
    if facts["status"] == "running" and left is not None:
        text += f", window closes in {format_duration(max(float(left), 0))}"
    return text


def _checkpoint(newest: Mapping[str, Any] | None) -> str:
    if not newest:
        return "none yet"
    text = f"step {newest['step']}, {ago(newest['created'])}, {format_bytes(newest['bytes'])}"
    return text + ("" if newest["healthy"] else ", holds NaN or Inf")


def _speed(speeds: Mapping[str, Any]) -> str:
    parts = []
    if speeds.get("steps_per_s"):
        parts.append(f"{speeds['steps_per_s']:.3g} steps/s")
    if speeds.get("save_s") is not None:
        parts.append(f"{format_duration(float(speeds['save_s']))} a save")
    if speeds.get("save_every"):
        parts.append(f"saves {speeds['save_every']}")
    return ", ".join(parts)
