"""What is mounted for reading, and the checkpoints that a run could go on from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.checkpoint.search import Found, find_checkpoints
from perdure.checkup.checks import Check
from perdure.core.errors import UnreadableError

_KINDS = frozenset({"datasets", "notebooks", "models", "competitions"})
"""Folders in which Kaggle sorts mounted inputs; the inputs are one or two folders below."""

_SHOWN = 5


@dataclass(frozen=True)
class Inputs:
    """What was found.

    Attributes:
        folders: The input folders that exist.
        mounted: What is in them, by path relative to them.
        found: The checkpoints below the input folders and the folder of runs, newest first.
        problems: What could not be looked at.
    """

    folders: tuple[Path, ...] = ()
    mounted: tuple[str, ...] = ()
    found: tuple[Found, ...] = ()
    problems: tuple[str, ...] = ()


def look_at_inputs(root: Path, folders: Sequence[Path]) -> Inputs:
    """List inputs and checkpoints. Nothing is read but names and manifests."""
    there = [folder for folder in folders if folder.is_dir()]
    mounted: list[str] = []
    found: list[Found] = []
    problems: list[str] = []
    for folder in there:
        mounted += [os.fspath(each.relative_to(folder)) for each in _mounts(folder)]
    for folder in (root, *there):
        try:
            found += find_checkpoints(folder)
        except UnreadableError as error:
            problems.append(error.what)
    found.sort(key=lambda item: item.key, reverse=True)
    return Inputs(tuple(there), tuple(mounted), tuple(found), tuple(problems))


def inputs_check(inputs: Inputs, wanted: Sequence[Path]) -> Check:
    """What is mounted."""
    if not wanted:
        return Check("inputs", "ok", "none here: checkpoints are looked for in the folder of runs")
    if not inputs.mounted:
        fact = f"nothing is mounted below {', '.join(map(str, wanted))}"
        return Check("inputs", "note", fact, "to go on from an earlier session, add its output as an input")
    fact = f"{len(inputs.mounted)} mounted: {_some(inputs.mounted)}"
    return Check("inputs", "ok", fact, details={"mounted": list(inputs.mounted)})


def checkpoints_check(inputs: Inputs) -> Check:
    """The newest checkpoint of each run, and how many are damaged."""
    if inputs.problems:
        fix = "a run will not start afresh while this cannot be looked at: put the rights or the mount in order"
        return Check("checkpoints", "failed", inputs.problems[0], fix, {"problems": list(inputs.problems)})
    if not inputs.found:
        return Check("checkpoints", "ok", "none found: a run starts afresh")
    newest: dict[str, Found] = {}
    bad = [item for item in inputs.found if item.error]
    for item in inputs.found:
        if item.manifest and not item.error:
            newest.setdefault(item.manifest.run, item)
    shown = [f"{name} at step {_step(item)} in {item.folder.parent.parent}" for name, item in newest.items()]
    details = {"newest": {name: str(item.folder) for name, item in newest.items()}, "damaged": _folders(bad)}
    fact = _some(shown) if shown else "none that is whole"
    if not bad:
        return Check("checkpoints", "ok", fact, details=details)
    noun = "is" if len(bad) == 1 else "are"
    fact = f"{fact}; {len(bad)} {noun} damaged: {bad[0].folder}: {bad[0].problem}"
    fix = "`perdure verify` says what is wrong; a run goes on from the newest whole one"
    return Check("checkpoints", "warning" if shown else "failed", fact, fix, details)


def _step(item: Found) -> str:
    manifest = item.manifest
    assert manifest is not None
    return f"{manifest.position.step}" + (", finished" if manifest.finished else "")


def _folders(found: Sequence[Found]) -> list[str]:
    return [str(item.folder) for item in found]


def _mounts(folder: Path) -> list[Path]:
    """Each mounted input, in Kaggle's old layout and in its new one."""
    mounts: list[Path] = []
    for each in _below(folder):
        if each.name in _KINDS:
            mounts += [inner for owner in _below(each) for inner in _below(owner) or [owner]]
        else:
            mounts.append(each)
    return mounts


def _below(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError:
        return []


def _some(items: Sequence[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
