"""``perdure status``: every run below a folder, and how it stands."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import psutil
import typer

from perdure.checkpoint.search import list_run
from perdure.cli.options import Json, Names, Root, folder_of_runs
from perdure.cli.output import ago, complain, note, say, say_json
from perdure.core.errors import ConfigError
from perdure.core.intervals import format_bytes, format_duration, format_number
from perdure.core.paths import RunPaths
from perdure.core.runs import find_runs, pick_run, read_json
from perdure.hardware.told import card_line, loop_line

Require = Annotated[
    str | None,
    typer.Option(
        metavar="gpu",
        help="Exit code 1 unless the newest session of each run really used a card.",
        show_default=False,
    ),
]

BUSY_PERCENT = 1.0
"""A card that was less busy did nothing: a screen alone can take a part of that."""

NO_STEP = "made no step in its newest session"
HINT_OF_NO_STEP = "it was finished before, or ended too early: ask after a session that trains"
HINT = "perdure doctor --require gpu says what is wrong with the GPU, and the fix"


def status_command(names: Names = None, root: Root = None, require: Require = None, json: Json = False) -> None:
    """How each run stands. Progress, newest checkpoint, speed, cards, time left, and why it stopped."""
    if require not in (None, "gpu"):
        raise ConfigError(f"--require takes gpu, got {require!r}", hint="perdure status RUN --require gpu")
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
    if require and _lacks_gpu(facts):
        raise typer.Exit(1)


def _lacks_gpu(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the runs has not used a card, or there is none; it is said."""
    if not runs:
        complain("there is no run, so none has used a GPU", "say where the runs are with --root FOLDER")
        return True
    reasons = {str(run["run"]): why for run in runs if (why := gpu_unused(run))}
    for name, why in reasons.items():
        complain(f"{name} {why}", HINT_OF_NO_STEP if why == NO_STEP else HINT)
    return bool(reasons)


def gpu_unused(facts: Mapping[str, Any]) -> str:
    """Why it is not proved that the newest session of a run used a card, in words; empty if it is."""
    gpu = _mapping(facts.get("gpu"))
    if "loop" in facts and not _mapping(facts["loop"]).get("steps"):
        return NO_STEP
    if not str(gpu.get("device", "")).startswith("cuda"):
        return "did not train on a GPU in its newest session"
    cards = [card for card in _cards(gpu) if card.get("visible_as") is not None]
    known = [card for card in cards if card.get("busy_percent") is not None]
    if not known:
        return f"trains on {gpu['device']}, but nobody saw how busy it was: {gpu.get('trouble') or 'too short'}"
    busy = [card for card in known if card["busy_percent"] >= BUSY_PERCENT]
    if not busy:
        return f"trains on {gpu['device']}, but no card was busy: {'; '.join(map(card_line, known))}"
    if not gpu.get("own_peak_bytes") and not any(card.get("memory_own_bytes") for card in busy):
        return f"trains on {gpu['device']}, but has put nothing on a card"
    return ""


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
        "gpu": _gpu(_mapping(facts.get("gpu"))),
        "loop": loop_line(_mapping(facts.get("loop"))),
        "metrics": "  ".join(f"{k} {v:.6g}" for k, v in (facts.get("metrics") or {}).items()),
        "problem": facts.get("problem") or "",
    }
    lines += [f"  {topic:<11} {text}" for topic, text in topics.items() if text]
    for verdict in facts.get("verdicts") or ():
        lines += [f"  {'verdict':<11} {verdict['sentence']}", f"  {'remedy':<11} {verdict['remedy']}"]
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


def _gpu(gpu: Mapping[str, Any]) -> str:
    if not gpu:
        return ""
    seen = "; ".join(map(card_line, _cards(gpu)))
    trouble = f"not fully watched: {gpu['trouble']}" if gpu.get("trouble") else ""
    beside = "" if str(gpu.get("device")).startswith("cuda") else "not used: the run trains on the CPU"
    return "; ".join(text for text in (seen or str(gpu.get("device", "")), beside, trouble) if text)


def _cards(gpu: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [card for card in gpu.get("cards") or () if isinstance(card, Mapping)]


def _mapping(value: Any) -> Mapping[str, Any]:
    """An object of a session file; empty where another version has something else there."""
    return value if isinstance(value, Mapping) else {}


def _speed(speeds: Mapping[str, Any]) -> str:
    parts = []
    if speeds.get("steps_per_s"):
        parts.append(f"{format_number(speeds['steps_per_s'])} steps/s")
    if speeds.get("save_s") is not None:
        parts.append(f"{format_duration(float(speeds['save_s']))} a save")
    if speeds.get("save_every"):
        parts.append(f"saves {speeds['save_every']}")
    return ", ".join(parts)
