"""Which checkpoint a run goes on from: the newest that verifies, in its own folder and in its inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perdure.checkpoint.opened import Checkpoint, ToKeep, keep_none, open_checkpoint
from perdure.checkpoint.reader import unreadable
from perdure.checkpoint.search import LOOKS, Found, find_checkpoints, list_run, newest_first, replaced_too_fast
from perdure.core.errors import (
    CheckpointError,
    CorruptError,
    FormatVersionError,
    NoCheckpointError,
    UnreadableError,
)
from perdure.core.paths import RunPaths


@dataclass(frozen=True)
class Chosen:
    """What a run goes on from.

    Attributes:
        checkpoint: The newest that verifies; None if there is none at all.
        bad: Newer ones that do not, each with its error.
    """

    checkpoint: Checkpoint | None
    bad: tuple[Found, ...] = ()


class Catalog:
    """The checkpoints that belong to one run.

    A run of the same name but another identity is another run, and its checkpoints do not count.

    Args:
        paths: The folder of the run; its checkpoints count under whatever name: folders are renamed.
        name: Name of the run; decides which checkpoints in the inputs may count.
        inputs: Folders below which earlier sessions may have left some. Looked through once.

    Attributes:
        run_id: Identity of the run; None until it is settled: then that of the newest checkpoint.
    """

    def __init__(self, paths: RunPaths, name: str, inputs: Sequence[Path]) -> None:
        self.run_id: str | None = None
        self._paths = paths
        self._name = name
        self._inputs = tuple(inputs)

    @cached_property
    def _in_inputs(self) -> list[Found]:
        own = self._paths.checkpoints.resolve()
        found = [item for root in self._inputs for item in find_checkpoints(root, self._name)]
        return newest_first([item for item in found if item.folder.parent.resolve() != own])

    def all(self) -> list[Found]:
        """All of them, newest first; of equals the one in the run folder comes first.

        Raises:
            UnreadableError: A folder cannot be listed.
        """
        own = list_run(self._paths)
        run_id = self.run_id or self._likely_id(own)
        return newest_first([item for item in own + self._in_inputs if _is_of(item, run_id)])

    def strangers(self) -> list[Found]:
        """Those in the inputs that have the name of the run but are of another run."""
        mine = {item.folder for item in self.all()}
        return [item for item in self._in_inputs if item.folder not in mine]

    def recorded_id(self) -> str:
        """The identity in ``run.json``; empty if there is none to be read.

        Raises:
            UnreadableError: The system does not let it be read.
        """
        path = self._paths.run_json
        try:
            return str(json.loads(path.read_bytes())["run_id"])
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return ""
        except OSError as error:
            raise unreadable(path, error) from error

    def _likely_id(self, own: Sequence[Found]) -> str:
        recorded = self.recorded_id()
        ids = [item.manifest.run_id for item in own if item.manifest]
        if recorded in ids:
            return recorded
        ids += [item.manifest.run_id for item in self._in_inputs if item.manifest]
        return ids[0] if ids else recorded

    def choose(self, to_keep: ToKeep = keep_none) -> Chosen:
        """Open the newest that verifies.

        Args:
            to_keep: Says of which of its entries the bytes shall stay in memory.

        Raises:
            CorruptError: There are some, and none verifies.
            UnreadableError: A folder cannot be listed; or some could not be read, and none verifies.
            FormatVersionError: One is of a newer format, and none verifies.
        """
        return _newest_whole(self.all, to_keep)


def _newest_whole(look: Callable[[], Sequence[Found]], to_keep: ToKeep) -> Chosen:
    """Open the newest of these that verifies; looks again if one is pruned while it is being read.

    Raises:
        CorruptError, UnreadableError, FormatVersionError: There are some, and none verifies.
    """
    for _ in range(LOOKS):
        try:
            return _first_whole(look(), to_keep)
        except NoCheckpointError:
            continue
    raise replaced_too_fast(Path())


def _first_whole(newest_first: Sequence[Found], to_keep: ToKeep) -> Chosen:
    bad: list[Found] = []
    for item in newest_first:
        try:
            if item.error:
                raise item.error
            return Chosen(open_checkpoint(item.folder, to_keep), tuple(bad))
        except (CorruptError, UnreadableError, FormatVersionError) as error:
            bad.append(Found(item.folder, item.manifest, error))
    if bad:
        raise _none_whole(bad)
    return Chosen(None)


def _none_whole(bad: Sequence[Found]) -> CheckpointError:
    """One error for all of them, of the kind that says best what to do next."""
    errors = [item.error for item in bad if item.error]
    for error in errors:
        if isinstance(error, UnreadableError):
            return error
    for error in errors:
        if isinstance(error, FormatVersionError):
            return error
    return CorruptError(
        f"none of the {len(bad)} checkpoints is whole; the newest is {bad[0].folder}",
        path=bad[0].folder,
        problems=[f"{item.folder.name}: {line}" for item in bad for line in _problems(item)],
        hint="bring back an older copy, or move them away to start afresh; nothing was changed",
    )


def _problems(item: Found) -> tuple[str, ...]:
    return item.error.problems if isinstance(item.error, CorruptError) else (item.problem,)


def _is_of(item: Found, run_id: str) -> bool:
    return not run_id or item.manifest is None or item.manifest.run_id == run_id
