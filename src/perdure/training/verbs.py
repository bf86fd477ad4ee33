"""The two verbs without a run: save these objects, restore these objects."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from perdure.checkpoint.manifest import MANIFEST
from perdure.checkpoint.reader import Checkpoint, open_checkpoint
from perdure.checkpoint.retention import Keep
from perdure.checkpoint.search import Found, find_checkpoints, list_run
from perdure.checkpoint.snapshot import Snapshot
from perdure.checkpoint.store import Store
from perdure.core.errors import CheckpointError, ConfigError, CorruptError, FormatVersionError, NoCheckpointError
from perdure.core.paths import RunPaths
from perdure.core.progress import Position
from perdure.tensors.carried import Pickled
from perdure.tensors.encoding import flatten, to_buffers, unflatten
from perdure.training.foreign import read_foreign, take_over
from perdure.training.world.world import World

__all__ = ["Pickled", "Restored", "restore", "save"]

NAME = "perdure.save"
"""The name of the run in checkpoints that ``save`` makes."""


@dataclass(frozen=True)
class Restored:
    """What ``restore`` did.

    Attributes:
        path: The checkpoint folder or file that was read.
        taken: Names of the objects that were restored.
        left: What else it holds: the values of a foreign file by key; names of objects with None.
    """

    path: Path
    taken: tuple[str, ...]
    left: Mapping[str, Any]

    def __str__(self) -> str:
        left = f"; not taken: {', '.join(self.left)}" if self.left else ""
        return f"restored {', '.join(self.taken)} from {self.path}{left}"


def save(path: str | os.PathLike[str], **objects: Any) -> Path:
    """Save objects as one checkpoint, whole or not at all.

    ``path`` becomes a folder in the form of a run folder (``docs/format.md``): a checkpoint that is there already
    is replaced once the new one is committed, and a crash leaves the old one. Random generators are saved where
    they are given as objects.

    Args:
        path: The folder; made if it is not there.
        objects: What ``Run.track`` takes: modules, optimizers, schedulers, plain containers ...

    Returns:
        The folder of the checkpoint, for ``perdure verify``.

    Raises:
        CannotCarryError: Something has no data-only form.
        ConfigError: Nothing was given, or there is a file, or the checkpoints of a run, at ``path``.
        DiskFullError, UnreadableError: It could not be written; what was there is untouched.
    """
    folder = _writable(Path(path))
    world = _tracked(objects)
    values, leaves = flatten({"objects": world.capture()})
    snapshot = Snapshot(
        position=Position(),
        values=values,
        buffers=to_buffers(leaves),
        healthy=not world.unhealthy(),
        reason="asked",
        libraries={"python": platform.python_version(), "torch": torch.__version__},
    )
    store = Store(RunPaths(folder), NAME, keep=Keep(last=1))
    store.open({})
    try:
        return store.save(snapshot).folder
    finally:
        store.close()


def restore(path: str | os.PathLike[str], **objects: Any) -> Restored:
    """Put saved states back into live objects, in place.

    Args:
        path: What ``save`` was given; a run folder or one checkpoint in it; or a ``.pth`` file of ``torch.save``
            with the usual keys (``model_state_dict``, ``optimizer``, ``state_dict`` ...) or a bare state_dict, with
            or without the prefixes of DataParallel and torch.compile.
        objects: The live objects, by the names they were saved under; a foreign file is asked for the usual names.

    Returns:
        What was taken over and what was not.

    Raises:
        NoCheckpointError: There is nothing at ``path``.
        StateMismatchError: An object is not in it, or does not fit; nothing was changed in modules and optimizers.
        CorruptError, UnreadableError, FormatVersionError: It cannot be read.
        UnsafeFileError: It is a pickle that could run code.
    """
    source = Path(path)
    world = _tracked(objects)
    if source.is_file():
        left: Mapping[str, Any] = take_over(source, read_foreign(source), world)
        return Restored(source, tuple(objects), left)
    checkpoint = _newest(source)
    tree = unflatten(checkpoint.values, checkpoint.buffer)["objects"]
    world.restore(tree)
    return Restored(checkpoint.folder, tuple(objects), {name: None for name in tree if name not in objects})


def _tracked(objects: Mapping[str, Any]) -> World:
    if not objects:
        raise ConfigError("no objects were given", hint="name them: model=model, optimizer=optimizer")
    world = World()
    world.track(objects)
    return world


def _writable(folder: Path) -> Path:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; perdure.save writes a folder", hint="give another path")
    for found in list_run(RunPaths(folder)):
        if found.manifest is not None and found.manifest.run != NAME:
            raise ConfigError(
                f"{folder} holds checkpoints of the run {found.manifest.run!r}", hint="save to a folder of its own"
            )
    return folder


def _newest(source: Path) -> Checkpoint:
    """The checkpoint at a path: that one, or the newest below it that verifies."""
    if (source / MANIFEST).exists():
        return open_checkpoint(source)
    found = find_checkpoints(source)
    _check_one_run(source, found)
    errors: list[CheckpointError] = []
    for item in found:
        try:
            return open_checkpoint(item.folder)
        except (CorruptError, FormatVersionError) as error:
            errors.append(error)
    if not errors:
        hint = "check the path; perdure checkpoints lists what is in a folder"
        raise NoCheckpointError(f"there is no checkpoint at {source}", path=source, hint=hint)
    raise errors[0]


def _check_one_run(source: Path, found: list[Found]) -> None:
    runs = sorted({item.manifest.run for item in found if item.manifest is not None})
    if len({item.manifest.run_id for item in found if item.manifest is not None}) > 1:
        raise ConfigError(
            f"{source} holds checkpoints of several runs: {', '.join(runs)}", hint="give the folder of one of them"
        )
