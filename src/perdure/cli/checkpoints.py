"""``perdure checkpoints``: what is on disk, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from perdure.checkpoint.manifest import Manifest
from perdure.checkpoint.search import Found, list_run
from perdure.cli.options import Json, Names, Root, folder_of_runs
from perdure.cli.output import ago, complain, note, say, say_json, table
from perdure.core.intervals import format_bytes
from perdure.core.paths import RunPaths
from perdure.core.runs import find_runs, pick_run

HEADS = ("run", "checkpoint", "step", "epoch", "made", "why", "size", "state", "metrics")

EMPTY = "is empty: nothing was tracked in it"
HINT_EMPTY = "track in the script what has to survive: run.track(model=model, optimizer=optimizer)"
HINT = "run.save() in the loop asks for one; perdure status says how the run stands"


def checkpoints_command(names: Names = None, root: Root = None, json: Json = False) -> None:
    """The checkpoints of each run, newest first. When and why made, how large, healthy or not, metrics. Exit code
    1 if a run that is named has none, or its newest good one is empty."""
    folder = folder_of_runs(root)
    runs = [pick_run(folder, name) for name in names] if names else find_runs(folder)
    rows = [facts_of(run, found) for run in runs for found in list_run(run)]
    disk = {run.folder.name: disk_of(run.folder) for run in runs}
    if json:
        say_json({"root": str(folder), "disk_bytes": disk, "checkpoints": rows})
    elif rows:
        _show(rows, disk)
    elif not names:
        note(f"no checkpoints below {folder}")
    missing = [what for name in names or () if (what := missing_in(name, rows))]
    for what in missing:
        complain(what, HINT_EMPTY if what.endswith(EMPTY) else HINT)
    if missing:
        raise typer.Exit(1)


def missing_in(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Why a run has no checkpoint that it could be continued from, in words; empty if it has one."""
    mine = [row for row in rows if row["run"] == name]
    good = [row for row in mine if not row["problem"]]
    if not mine:
        return f"{name} has no checkpoint"
    if not good:
        return f"every checkpoint of {name} is damaged"
    return f"the newest checkpoint of {name} {EMPTY}" if good[0]["empty"] else ""


def _show(rows: Sequence[dict[str, Any]], disk: Mapping[str, int]) -> None:
    for line in table(HEADS, [_cells(row) for row in rows]):
        say(line)
    for name, count in disk.items():
        note(f"{name}: {format_bytes(count)} on disk; checkpoints share tensors that did not change")


def facts_of(run: RunPaths, found: Found) -> dict[str, Any]:
    """One checkpoint as data."""
    facts: dict[str, Any] = {
        "run": run.folder.name,
        "folder": str(found.folder),
        "problem": found.error.args[0] if found.error else "",
    }
    manifest = found.manifest
    if manifest is not None:
        facts |= {
            "step": manifest.position.step,
            "epoch": manifest.position.epoch,
            "batch": manifest.position.batch,
            "created": manifest.created,
            "session": manifest.session,
            "reason": manifest.reason,
            "finished": manifest.finished,
            "healthy": manifest.healthy,
            "bytes": sum(entry.nbytes for entry in manifest.entries),
            "empty": is_empty(manifest),
            "metrics": dict(manifest.metrics),
        }
    return facts


def is_empty(manifest: Manifest) -> bool:
    """It holds nothing of the user's: no object, no variable, only where the loop and the generators were."""
    if any(entry.nbytes for entry in manifest.entries if not entry.name.startswith("generators/")):
        return False
    values = manifest.values if isinstance(manifest.values, Mapping) else {}
    return not values.get("objects") and not values.get("vars")


def disk_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _cells(row: dict[str, Any]) -> list[str]:
    name = Path(row["folder"]).name
    if "step" not in row:
        return [row["run"], name, "", "", "", "", "", f"damaged: {row['problem']}", ""]
    state = row["problem"] and f"damaged: {row['problem']}"
    health = "empty" if row["empty"] else "ok" if row["healthy"] else "holds NaN or Inf"
    state = state or health + (", finished" if row["finished"] else "")
    metrics = "  ".join(f"{key} {value:.6g}" for key, value in row["metrics"].items())
    numbers = [str(row["step"]), str(row["epoch"]), ago(row["created"]), row["reason"], format_bytes(row["bytes"])]
    return [row["run"], name, *numbers, state, metrics]
