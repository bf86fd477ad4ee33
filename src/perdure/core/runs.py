"""What a folder of runs says about itself, read without writing, locking or loading anything."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perdure.core.errors import NoCheckpointError, UnreadableError
from perdure.core.paths import RunPaths


def find_runs(root: Path) -> list[RunPaths]:
    """The runs directly below a folder, by name; none where there is no such folder.

    Raises:
        UnreadableError: The folder is there and cannot be listed.
    """
    try:
        folders = [entry for entry in os.scandir(root) if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnreadableError(
            f"the folder of runs cannot be listed: {root}: {error.strerror}",
            path=root,
            hint="check its permissions",
        ) from error
    runs = (RunPaths(root / entry.name) for entry in folders)
    return sorted((run for run in runs if is_run(run)), key=lambda run: run.folder.name)


def is_run(run: RunPaths) -> bool:
    """Does this folder hold a run?"""
    return run.run_json.is_file() or run.session_json.is_file() or run.checkpoints.is_dir()


def pick_run(root: Path, name: str) -> RunPaths:
    """The run of that name below a folder.

    Raises:
        NoCheckpointError: There is none; the hint names the closest one, or all there are.
    """
    runs = find_runs(root)
    for run in runs:
        if run.folder.name == name:
            return run
    raise NoCheckpointError(
        f"there is no run {name!r} below {root}",
        path=root / name,
        hint=did_you_mean(name, (run.folder.name for run in runs)) or "say where the runs are with --root FOLDER",
    )


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """A question that names the closest of the words, or else all of them; empty where there are none."""
    known = sorted(words)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"there are: {', '.join(known)}" if known else ""


def read_json(path: Path) -> tuple[Mapping[str, Any], str]:
    """A JSON object that another process may be replacing at this moment.

    Returns:
        The object, and what is wrong with the file; the object is empty if anything is, or if there is no file.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return {}, f"{path.name} is damaged: it is not JSON"
    return (value, "") if isinstance(value, dict) else ({}, f"{path.name} is damaged: it holds no JSON object")
