"""``perdure verify``: read every byte of every checkpoint and prove it against its digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.checkpoint.manifest import MANIFEST
from perdure.checkpoint.search import Found, find_checkpoints
from perdure.checkpoint.verify import Verdict, verify
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
    """Prove every byte of every checkpoint. Says what is wrong, and where; exit code 1 if anything is."""
    folder = folder_of_runs(root)
    verdicts = [verdict for found in _checkpoints(folder, targets or []) if (verdict := prove(found))]
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


def prove(found: Found) -> dict[str, Any] | None:
    """The verdict on one checkpoint as data; None if it was pruned meanwhile, by a training that goes on."""
    try:
        verdict = verify(found.folder)
    except NoCheckpointError:
        if found.error is None:
            return None
        verdict = Verdict((found.error.what,))  # a folder that could not be looked into
    return {
        "folder": str(found.folder),
        "ok": not verdict.problems,
        "problems": list(verdict.problems),
        "entries": verdict.entries,
        "bytes": verdict.bytes,
    }


def _checkpoints(root: Path, targets: list[str]) -> Iterator[Found]:
    """Checkpoints, newest of each run first; a target is a run below the root, or else a folder."""
    runs = {run.folder.name: run.folder for run in find_runs(root)}
    for target in targets or runs:
        folder = runs.get(target) or _folder(root, target)
        found = [Found(folder, None)] if (folder / MANIFEST).is_file() else find_checkpoints(folder)
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
