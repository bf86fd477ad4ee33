"""States of files and folders, whoever wrote them, put into live objects, with a statement of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.checkpoint.manifest import MANIFEST
from perdure.checkpoint.opened import Checkpoint, open_checkpoint
from perdure.checkpoint.search import Found, find_checkpoints
from perdure.core.errors import (
    CheckpointError,
    ConfigError,
    CorruptError,
    FormatVersionError,
    NoCheckpointError,
    StateMismatchError,
)
from perdure.tensors.encoding import unflatten
from perdure.training.foreign.content import KERAS, Content
from perdure.training.foreign.keras_files import is_keras, take_over_keras
from perdure.training.foreign.reading import is_foreign, read_foreign
from perdure.training.foreign.taking import take_over
from perdure.training.restored import Restored, begins_anew
from perdure.training.world.world import World


def bring_in(path: Path, objects: Mapping[str, Any], *, partly: bool = False, trust: bool = False) -> Restored:
    """Restore objects from whatever is at a path; errors as ``perdure.restore``.

    Args:
        path: A checkpoint of Perdure, or a file or folder of others.
        objects: The live objects by name.
        partly: An object that is not in it is left as it is; one at least must be there.
        trust: Let a file of ``torch.save`` run code.
    """
    if not (path / MANIFEST).exists() and is_foreign(path):
        return _from_others(read_foreign(path, trust=trust), objects, partly=partly)
    return _from_checkpoint(newest(path), objects, partly=partly)


def _from_others(content: Content, objects: Mapping[str, Any], *, partly: bool) -> Restored:
    if content.kind == KERAS:
        models = {name: value for name, value in objects.items() if is_keras(value)}
        taken = take_over_keras(content, models if partly else objects)
        taken.missing = tuple(name for name in objects if name not in taken.names)
    else:
        taken = take_over(content, _world(objects), partly=partly)
    return Restored(
        content.path,
        _whole(taken.names, taken.missing, objects),
        taken.left,
        content.form,
        begins_anew(taken.kinds, _whole(taken.missing, taken.names, objects) if partly else None),
        tuple(taken.notes),
    )


def _whole(paths: tuple[str, ...], others: tuple[str, ...], objects: Mapping[str, Any]) -> tuple[str, ...]:
    """Names as they were given: ``nets`` for ``nets.g`` and ``nets.d``, unless one of its members is elsewhere."""
    torn = {path.partition(".")[0] for path in others}

    def name_of(path: str) -> str:
        owner = path.partition(".")[0]
        is_member = path not in objects and isinstance(objects.get(owner), (dict, list, tuple))
        return owner if is_member and owner not in torn else path

    return tuple(dict.fromkeys(name_of(path) for path in paths))


def _from_checkpoint(checkpoint: Checkpoint, objects: Mapping[str, Any], *, partly: bool) -> Restored:
    tree = unflatten(checkpoint.values, checkpoint.buffer)["objects"]
    world = _world({name: value for name, value in objects.items() if name in tree or not partly})
    if not world.names:
        raise StateMismatchError(
            f"{checkpoint.folder} holds none of what is tracked",
            differences=[f"{name} is not in it; it has: {', '.join(tree)}" for name in objects],
            hint="track them under the names that they were saved under",
        )
    world.restore(tree)
    missing = [name for name in objects if name not in world.names] if partly else None
    manifest = checkpoint.manifest
    step = f" of the run {manifest.run!r}, step {manifest.position.step}" if manifest.position.step else ""
    return Restored(
        checkpoint.folder,
        tuple(name for name in objects if name in world.names),
        {name: None for name in tree if name not in objects},
        f"a checkpoint of Perdure{step}",
        begins_anew({_kind(part) for part in world.parts()}, missing),
    )


def _kind(part: Any) -> str:
    return "scheduler" if hasattr(part.value, "last_epoch") else str(part.kind)


def _world(objects: Mapping[str, Any]) -> World:
    world = World()
    world.track(objects)
    return world


def newest(source: Path) -> Checkpoint:
    """The checkpoint of Perdure at a path: that one, or the newest below it that verifies.

    Raises:
        NoCheckpointError: There is none.
        CorruptError, FormatVersionError, UnreadableError: None can be read.
        ConfigError: There are checkpoints of several runs.
    """
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
        raise NoCheckpointError(f"there is no checkpoint at {source}", path=source, hint=_where_else(source))
    raise errors[0]


def _where_else(source: Path) -> str:
    """What to do where there is no checkpoint: a trainer of others may have put its own one folder deeper."""
    inside = [folder for folder in source.glob("checkpoint*") if is_foreign(folder)]
    if inside:
        newest_inside = max(inside, key=lambda folder: folder.stat().st_mtime)
        return f"give one of the folders in it; {newest_inside.name} is the newest"
    return "check the path; perdure checkpoints lists what is in a folder"


def _check_one_run(source: Path, found: list[Found]) -> None:
    runs = sorted({item.manifest.run for item in found if item.manifest is not None})
    if len({item.manifest.run_id for item in found if item.manifest is not None}) > 1:
        raise ConfigError(
            f"{source} holds checkpoints of several runs: {', '.join(runs)}", hint="give the folder of one of them"
        )
