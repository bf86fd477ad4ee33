"""Finding checkpoints: in a run folder, and anywhere below an input folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perdure.checkpoint.manifest import MANIFEST, Manifest
from perdure.checkpoint.reader import check_sizes, is_gone, read_manifest, run_folder_of, unreadable
from perdure.core.errors import CheckpointError, NoCheckpointError, UnreadableError
from perdure.core.paths import RunPaths

MAX_DEPTH = 8
"""Folders between an input root and ``checkpoints``; hosts nest theirs two to four deep."""

LOOKS = 20
"""A writer prunes at most once a save; nobody loses this race twenty times."""

_STEP = re.compile(r"step-(\d{1,18})(-\w+)*")
_CHECKPOINTS = "checkpoints"
_NEVER = frozenset({"lost+found", "quarantine", "tensors", "__pycache__", "node_modules"})


@dataclass(frozen=True)
class Found:
    """A checkpoint that was found, good or bad.

    Attributes:
        folder: Where it is.
        manifest: What it is; None if that cannot be told.
        error: What is wrong with it; None if it looks right. Digests are not computed here.
    """

    folder: Path
    manifest: Manifest | None
    error: CheckpointError | None = None

    @property
    def problem(self) -> str:
        """What is wrong with it, in words; empty if it looks right."""
        return self.error.what if self.error else ""

    @property
    def key(self) -> tuple[tuple[int, int, int, int, bool], int]:
        """Sort key: greater is newer. Without a manifest the name of the folder has to do."""
        if self.manifest:
            return self.manifest.key
        match = _STEP.fullmatch(self.folder.name)
        return ((int(match.group(1)) if match else 0, 0, 0, 0, False), 0)


def look_at(folder: Path) -> Found | None:
    """One checkpoint folder, by its manifest and the sizes of its files; None if it is not there (any more)."""
    manifest = None
    try:
        manifest = _manifest(folder)
        check_sizes(folder, manifest)
    except NoCheckpointError:
        return None
    except CheckpointError as error:
        if is_gone(folder / MANIFEST):  # pruned while we looked
            return None
        return Found(folder, manifest, error)
    return Found(folder, manifest)


def _manifest(folder: Path) -> Manifest:
    """``read_manifest``, parsed once for each state of the file: a save lists its run folder several times."""
    try:
        state = os.stat(folder / MANIFEST)
    except OSError:
        return read_manifest(folder)  # with the typed error
    return _parsed(folder, state.st_ino, state.st_ctime_ns, state.st_size)


@lru_cache(maxsize=8)  # few: values can be large
def _parsed(folder: Path, *_: int) -> Manifest:
    return read_manifest(folder)


def step_folders(checkpoints: Path) -> list[Path]:
    """The folders in ``checkpoints`` that are named as checkpoints are; none if there is no such folder.

    Raises:
        UnreadableError: It cannot be listed.
    """
    try:
        names = os.listdir(checkpoints)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(checkpoints, error) from error
    return [checkpoints / name for name in sorted(names) if _STEP.fullmatch(name)]


def list_run(paths: RunPaths) -> list[Found]:
    """The checkpoints of one run folder, newest first.

    A writer may commit new ones and prune those that were listed before they are looked at: all could seem to be
    gone where there never was a moment without any. So where some are, the folder is looked at again, until two
    looks agree.

    Raises:
        UnreadableError: The folder cannot be listed; or it changes faster than it can be looked at.
    """
    before = None
    for _ in range(LOOKS):
        folders = step_folders(paths.checkpoints)
        found = [look_at(folder) for folder in folders]
        seen = [(folder, item is not None) for folder, item in zip(folders, found, strict=True)]
        if all(found) or seen == before:
            break
        before = seen
    else:
        if not any(found):
            raise replaced_too_fast(paths.checkpoints)
    return newest_first([item for item in found if item])


def replaced_too_fast(where: Path) -> UnreadableError:
    """The typed error of a reader that lost the race with a writer ``LOOKS`` times."""
    what = "the checkpoints are replaced faster than they can be read"
    return UnreadableError(what, path=where, hint="try again")


def newest_first(found: list[Found]) -> list[Found]:
    """Sorted, the newest first."""
    return sorted(found, key=lambda item: item.key, reverse=True)


def find_checkpoints(root: Path, name: str | None = None) -> list[Found]:
    """The checkpoints anywhere below a folder, newest first.

    Args:
        root: The folder; if there is no such folder, nothing is found.
        name: Only those of the run of this name. One that cannot be read counts by the name of its run folder.

    Raises:
        UnreadableError: ``root`` cannot be listed. A folder below it that cannot is one of the found, with
            its error: there may be a checkpoint in it.
    """
    found: list[Found] = []
    for checkpoints, error in _checkpoint_folders(root):
        if error:
            found.append(Found(checkpoints, None, unreadable(checkpoints, error)))
            continue
        found += (item for item in list_run(RunPaths(checkpoints.parent)) if name in (None, _run_name(item)))
    return newest_first(found)


def _run_name(found: Found) -> str:
    if found.manifest:
        return found.manifest.run
    run_folder = run_folder_of(found.folder)
    try:
        name = json.loads(RunPaths(run_folder).run_json.read_bytes())["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return run_folder.name
    return str(name)


def _checkpoint_folders(root: Path) -> Iterator[tuple[Path, OSError | None]]:
    """Each ``checkpoints`` folder below ``root``, and each folder that cannot be listed with its error.

    Only names and kinds of entries are read, never the files: image folders cost a listing and no more.
    """
    queue = [(root, 0)]
    seen: set[tuple[int, int]] = set()
    while queue:
        folder, depth = queue.pop()
        try:
            state = folder.stat()
            if (state.st_dev, state.st_ino) in seen:  # a link that leads back
                continue
            seen.add((state.st_dev, state.st_ino))
            with os.scandir(folder) as entries:
                below = [entry.name for entry in entries if _may_hold(entry)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if folder == root:
                raise unreadable(root, error) from error
            yield folder, error
            continue
        if folder.name == _CHECKPOINTS and any(_STEP.fullmatch(name) for name in below):
            yield folder, None
        elif depth < MAX_DEPTH:
            queue += [(folder / name, depth + 1) for name in below]


def _may_hold(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or entry.name in _NEVER:
        return False
    try:
        return entry.is_dir()
    except OSError:  # what it is cannot be told: listing it will say why
        return True
