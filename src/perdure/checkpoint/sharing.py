"""Which buffers of a save are already on disk, and so are not written again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.checkpoint.manifest import Entry, Manifest
from perdure.checkpoint.snapshot import Hashed
from perdure.checkpoint.tensorfile import TensorFile, plan_file

MAX_FILES = 8
"""Tensor files that one checkpoint may depend on."""

_NEW_FILES = 2  # that one save writes at most: what moves, and what stands still

MIN_STILL_BYTES = 1024 * 1024
"""From here on, what did not change since the last checkpoint gets a file of its own when it is written anew."""

MIN_LIVE = 0.5
"""Share of an older file that must still be in use; below it, what is in use is written anew."""


@dataclass(frozen=True)
class Plan:
    """Where the buffers of a save are or will be.

    Attributes:
        entries: All of them, in the order of the snapshot.
        files: Size in bytes of each tensor file they are in.
        new: The files to write; none if every buffer is already there.
    """

    entries: tuple[Entry, ...]
    files: dict[str, int]
    new: tuple[TensorFile, ...]


class OnDisk:
    """What is already on disk.

    Args:
        base: The newest checkpoint of this run folder, its bytes proven or written by this process; None if
            there is none to share with.
    """

    def __init__(self, base: Manifest | None) -> None:
        entries = base.entries if base else ()
        self.files = base.files if base else {}
        self._by_bytes = {(entry.digest, entry.nbytes): entry for entry in entries}
        self._by_name = {entry.name: entry for entry in entries}

    def entry_for(self, item: Hashed) -> Entry | None:
        """Where these bytes are, by preference under the name that they have there; None if they are not."""
        key = (item.digest, item.buffer.data.nbytes)
        same = self._by_name.get(item.buffer.name)
        entry = same if same and (same.digest, same.nbytes) == key else self._by_bytes.get(key)
        return _renamed(entry, item) if entry else None


@dataclass(frozen=True)
class Ahead:
    """A file that is being written before the save is planned.

    Attributes:
        names: The buffers that it holds.
        room: Bytes before its data.
    """

    names: frozenset[str]
    room: int


def plan_save(hashed: Sequence[Hashed], on_disk: OnDisk, ahead: Ahead | None = None) -> Plan:
    """Decide which buffers are taken from the files of an older checkpoint.

    Args:
        hashed: The buffers of the save.
        on_disk: What may be shared.
        ahead: The file that is being written already; it is the first of the new ones.
    """
    taken = ahead.names if ahead else frozenset()
    known = {
        item.buffer.name: entry
        for item in hashed
        if item.buffer.name not in taken and (entry := on_disk.entry_for(item))
    }
    shared = _worth_sharing(known, on_disk.files)
    rest = [item for item in hashed if item.buffer.name not in shared]
    moving, apart = _split(rest, known, ahead)
    new = [plan_file(moving, ahead.room if ahead else 0)] if moving else []
    new += [plan_file(apart)] if apart else []
    places = shared | {entry.name: entry for file in new for entry in file.entries}
    entries = tuple(places[item.buffer.name] for item in hashed)
    files = {entry.file: on_disk.files[entry.file] for entry in shared.values()}
    return Plan(entries, files | {file.file: file.nbytes for file in new}, tuple(new))


def _split(
    rest: Sequence[Hashed], known: Mapping[str, Entry], ahead: Ahead | None
) -> tuple[list[Hashed], list[Hashed]]:
    """What is written to a file with what moves, and what gets a file of its own."""
    first = ahead.names if ahead else {item.buffer.name for item in rest} - known.keys()
    moving = [item for item in rest if item.buffer.name in first]
    apart = [item for item in rest if item.buffer.name not in first]
    if not ahead and sum(item.buffer.data.nbytes for item in apart) < MIN_STILL_BYTES:
        return list(rest), []
    return moving, apart


def _worth_sharing(known: Mapping[str, Entry], sizes: Mapping[str, int]) -> dict[str, Entry]:
    """Those that lie in files that are worth depending on."""
    regions: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for entry in known.values():
        regions[entry.file].add((entry.offset, entry.nbytes))
    live = {file: sum(nbytes for _, nbytes in spans) for file, spans in regions.items()}
    worth = [file for file in live if live[file] >= MIN_LIVE * sizes[file]]
    worth = sorted(worth, key=lambda file: -live[file])[: MAX_FILES - _NEW_FILES]
    return {name: entry for name, entry in known.items() if entry.file in worth}


def _renamed(entry: Entry, item: Hashed) -> Entry:
    buffer = item.buffer
    changes = {"name": buffer.name, "kind": buffer.kind, "dtype": buffer.dtype, "shape": tuple(buffer.shape)}
    return entry.model_copy(update=changes)
