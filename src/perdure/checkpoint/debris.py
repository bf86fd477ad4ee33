"""Taking things away: pruned checkpoints, what a killed save left, and bad ones that are set aside.

Every step leaves a folder that reads as before or as after: the manifest goes first, and a tensor file only when
no manifest can name it any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from perdure.checkpoint.manifest import MANIFEST
from perdure.checkpoint.reader import is_gone
from perdure.checkpoint.search import Found, step_folders
from perdure.checkpoint.writer import TEMPORARY
from perdure.core.files import fsync_dir
from perdure.core.paths import RunPaths

MAX_QUARANTINED = 2
"""Bad checkpoints that are kept for inspection."""


def drop_checkpoint(folder: Path) -> None:
    """Remove a checkpoint folder, manifest first. Its tensor files are left to ``sweep``.

    Raises:
        OSError: As the system says.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    _remove_emptied(folder)
    fsync_dir(folder.parent)


def sweep(paths: RunPaths, found: Sequence[Found]) -> None:
    """Remove what no committed checkpoint needs: temporary files, folders without a manifest, tensor files.

    Tensor files stay as long as there is a checkpoint whose manifest cannot be read: it may need them.

    Args:
        paths: The run folder, held by this process.
        found: All of its checkpoints.

    Raises:
        OSError: As the system says.
    """
    for folder in step_folders(paths.checkpoints):
        if is_gone(folder / MANIFEST):
            _remove_emptied(folder)
    named = {Path(file).name for item in found if item.manifest for file in item.manifest.files}
    all_known = all(item.manifest for item in found)
    for name in _names(paths.tensors):
        if name.endswith(TEMPORARY) or (all_known and name not in named):
            (paths.tensors / name).unlink(missing_ok=True)


def sweep_small_files(folder: Path) -> None:
    """Remove what killed writers of ``run.json`` and its like left: ``.name.pid.tmp``."""
    for name in _names(folder):
        if name.startswith(".") and name.endswith(TEMPORARY):
            (folder / name).unlink(missing_ok=True)


def set_aside(paths: RunPaths, bad: Found, others: Iterable[Found]) -> Path:
    """Move a bad checkpoint to the quarantine, with the tensor files that no other one uses.

    Returns:
        Where it is now.

    Raises:
        OSError: As the system says.
    """
    paths.quarantine.mkdir(exist_ok=True)
    target = paths.quarantine / bad.folder.name
    shutil.rmtree(target, ignore_errors=True)
    os.rename(bad.folder, target)
    fsync_dir(paths.checkpoints)
    shared = {file for item in others if item.manifest for file in item.manifest.files}
    for file in bad.manifest.files if bad.manifest else ():
        if file not in shared:
            with contextlib.suppress(FileNotFoundError):
                os.rename(paths.folder / file, target / Path(file).name)
    fsync_dir(paths.quarantine)
    _trim_quarantine(paths.quarantine)
    return target


def empty_quarantine(paths: RunPaths) -> bool:
    """Remove what was set aside; True if there was something."""
    if not paths.quarantine.exists():
        return False
    shutil.rmtree(paths.quarantine, ignore_errors=True)
    return not paths.quarantine.exists()


def count_files(folder: Path) -> int:
    """Files in a folder and below it."""
    return sum(len(files) for _, _, files in os.walk(folder))


def _trim_quarantine(quarantine: Path) -> None:
    folders = sorted(quarantine.iterdir(), key=lambda path: path.stat().st_ctime_ns, reverse=True)
    for folder in folders[MAX_QUARANTINED:]:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_emptied(folder: Path) -> None:
    """Remove a folder and the temporary files in it; it stays if somebody put something else there."""
    for name in _names(folder):
        if name.endswith(TEMPORARY):
            (folder / name).unlink(missing_ok=True)
    if not _names(folder):
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
