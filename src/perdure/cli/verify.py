"""``perdure verify``: read every byte of every checkpoint and prove it against its digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.checkpoint.store import find_checkpoints
from perdure.checkpoint.verify import verify
from perdure.cli.options import Json, Root, folder_of_runs
from perdure.cli.output import note, say, say_json
from perdure.core.errors import NoCheckpointError
from perdure.core.intervals import format_bytes
from perdure.core.runs import find_runs, pick_run

Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN|FOLDER]...",
        help="Names of runs, or any folders that hold checkpoints; all runs if none.",
        show_default=False,
    ),
]


def verify_command(targets: Targets = None, root: Root = None, json: Json = False) -> None:
    """Prove every digest of every checkpoint; say what is wrong, and where. Exit code 1 if anything is."""
    folder = folder_of_runs(root)
    verdicts = [prove(checkpoint) for checkpoint in _checkpoints(folder, targets or [])]
    bad = sum(not verdict["ok"] for verdict in verdicts)
    if json:
        say_json({"root": str(folder), "bad": bad, "checkpoints": verdicts})
    else:
        for verdict in verdicts:
            for line in _describe(verdict):
                say(line)
        note(_summary(len(verdicts), bad, folder))
    if bad:
        raise typer.Exit(1)


def prove(checkpoint: Path) -> dict[str, Any]:
    """The verdict on one checkpoint as data."""
    verdict = verify(checkpoint)
    return {
        "folder": str(checkpoint),
        "ok": not verdict.problems,
        "problems": list(verdict.problems),
        "entries": verdict.entries,
        "bytes": verdict.bytes,
    }


def _checkpoints(root: Path, targets: list[str]) -> Iterator[Path]:
    """Folders of checkpoints, newest of each run first; a target is a run below the root, or else a folder."""
    runs = {run.folder.name: run.folder for run in find_runs(root)}
    for target in targets or runs:
        folder = runs.get(target) or _folder(root, target)
        found = (
            [folder] if (folder / "manifest.json").is_file() else [each.folder for each in find_checkpoints(folder)]
        )
        if targets and not found:
            raise NoCheckpointError(f"there is no checkpoint below {folder}", path=folder)
        yield from found


def _folder(root: Path, target: str) -> Path:
    return Path(target) if Path(target).is_dir() else pick_run(root, target).folder


def _describe(verdict: dict[str, Any]) -> list[str]:
    if verdict["ok"]:
        return [f"ok       {verdict['folder']}  {verdict['entries']} entries, {format_bytes(verdict['bytes'])}"]
    return [f"damaged  {verdict['folder']}", *(f"         - {problem}" for problem in verdict["problems"])]


def _summary(count: int, bad: int, folder: Path) -> str:
    if not count:
        return f"no checkpoints below {folder}"
    noun = "checkpoint" if count == 1 else "checkpoints"
    return f"{bad} of {count} {noun} damaged" if bad else f"{count} {noun} verified"
