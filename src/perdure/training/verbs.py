"""The two verbs without a run: save these objects, restore these objects."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from perdure.checkpoint.retention import Keep
from perdure.checkpoint.search import list_run
from perdure.checkpoint.snapshot import Snapshot
from perdure.checkpoint.store import Store
from perdure.core.errors import ConfigError
from perdure.core.paths import RunPaths
from perdure.core.progress import Position
from perdure.tensors.carried import Pickled
from perdure.tensors.encoding import flatten, to_buffers
from perdure.training.coming_in import bring_in
from perdure.training.restored import Restored
from perdure.training.world.world import World

__all__ = ["Pickled", "Restored", "restore", "save"]

NAME = "perdure.save"
"""The name of the run in checkpoints that ``save`` makes."""


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
    if "trust" in objects:
        raise ConfigError("perdure.restore could not be told of an object called trust", hint="call it otherwise")
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


def restore(path: str | os.PathLike[str], *, trust: bool = False, **objects: Any) -> Restored:
    """Put saved states back into live objects, in place.

    Args:
        path: What ``save`` was given; a run folder or one checkpoint in it; or what others wrote: a file of
            ``torch.save`` with the usual keys (``model_state_dict``, ``optimizer``, ``state_dict`` ...) or a bare
            state_dict, a Lightning ``.ckpt``, a ``.safetensors`` file, a folder or index of transformers or PEFT, a
            file of Keras. Prefixes of DataParallel and torch.compile do not matter, here and there.
        trust: Let a file of ``torch.save`` make any object, which may run any code.
        objects: The live objects, by the names they were saved under; a foreign file is asked for the usual names.

    Returns:
        The statement: what was taken over and what was not.

    Raises:
        NoCheckpointError: There is nothing at ``path``.
        StateMismatchError: An object is not in it, or does not fit; nothing was changed in modules and optimizers.
        CorruptError, UnreadableError, FormatVersionError: It cannot be read.
        UnsafeFileError: It is a pickle that could run code, and ``trust`` is False.
        ConfigError: It is a file of a kind that holds no states by name.
    """
    if not isinstance(trust, bool):
        raise ConfigError("trust is a switch, True or False", hint="give the object of that name another one")
    if not objects:
        raise ConfigError("no objects were given", hint="name them: model=model, optimizer=optimizer")
    return bring_in(Path(path), objects, trust=trust)


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
