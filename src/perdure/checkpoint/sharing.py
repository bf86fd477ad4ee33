"""Which buffers of a save are already on disk, and so are not written again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.checkpoint.manifest import Entry, Manifest
from perdure.checkpoint.tensorfile import Hashed, TensorFile, plan_file

MAX_FILES = 8
"""Tensor files that one checkpoint may depend on."""

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


def plan_save(hashed: Sequence[Hashed], base: Manifest | None) -> Plan:
    """Decide which buffers are taken from the files of an older checkpoint.

    Args:
        hashed: The buffers of the save.
        base: The newest checkpoint of this run folder, its bytes proven or written by this process.
    """
    known = _known(hashed, base) if base else {}
    shared = _worth_sharing(known, base) if base else {}
    rest = [item for item in hashed if item.buffer.name not in shared]
    still = [item for item in rest if item.buffer.name in known]
    files_shared = len({entry.file for entry in shared.values()})
    if sum(item.buffer.data.nbytes for item in still) < MIN_STILL_BYTES or files_shared > MAX_FILES - 2:
        still = []
    apart = {item.buffer.name for item in still}
    moving = [item for item in rest if item.buffer.name not in apart]
    new = tuple(plan_file(items) for items in (moving, still) if items)
    written = {entry.name: entry for file in new for entry in file.entries}
    places = shared | written
    entries = tuple(places[item.buffer.name] for item in hashed)
    files = {entry.file: base.files[entry.file] for entry in shared.values()} if base else {}
    return Plan(entries, files | {file.file: file.nbytes for file in new}, new)


def _known(hashed: Sequence[Hashed], base: Manifest) -> dict[str, Entry]:
    """What is already on disk, by the name of the buffer: by preference under the name that it has there."""
    by_bytes = {(entry.digest, entry.nbytes): entry for entry in base.entries}
    by_name = {entry.name: entry for entry in base.entries}
    known = {}
    for item in hashed:
        key = (item.digest, item.buffer.data.nbytes)
        same = by_name.get(item.buffer.name)
        entry = same if same and (same.digest, same.nbytes) == key else by_bytes.get(key)
        if entry:
            known[item.buffer.name] = _renamed(entry, item)
    return known


def _worth_sharing(known: Mapping[str, Entry], base: Manifest) -> dict[str, Entry]:
    """Those that lie in files that are worth depending on."""
    regions: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for entry in known.values():
        regions[entry.file].add((entry.offset, entry.nbytes))
    live = {file: sum(nbytes for _, nbytes in spans) for file, spans in regions.items()}
    worth = [file for file in live if live[file] >= MIN_LIVE * base.files[file]]
    worth = sorted(worth, key=lambda file: -live[file])[: MAX_FILES - 1]
    return {name: entry for name, entry in known.items() if entry.file in worth}


def _renamed(entry: Entry, item: Hashed) -> Entry:
    buffer = item.buffer
    changes = {"name": buffer.name, "kind": buffer.kind, "dtype": buffer.dtype, "shape": tuple(buffer.shape)}
    return entry.model_copy(update=changes)
