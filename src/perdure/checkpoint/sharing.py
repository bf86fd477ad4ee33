"""Which buffers of a save are already on disk, and so are not written again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.checkpoint.manifest import Entry, Manifest
from perdure.checkpoint.tensorfile import Hashed, TensorFile, plan_file

MAX_FILES = 8
"""Tensor files that one checkpoint may depend on."""

MIN_LIVE = 0.5
"""Share of an older file that must still be in use; below it, what is in use is written anew."""


@dataclass(frozen=True)
class Plan:
    """Where the buffers of a save are or will be.

    Attributes:
        entries: All of them, in the order of the snapshot.
        files: Size in bytes of each tensor file they are in.
        new: The file to write; None if every buffer is already there.
    """

    entries: tuple[Entry, ...]
    files: dict[str, int]
    new: TensorFile | None


def plan_save(hashed: Sequence[Hashed], base: Manifest | None) -> Plan:
    """Decide which buffers are taken from the files of an older checkpoint.

    Args:
        hashed: The buffers of the save.
        base: The newest checkpoint of this run folder, its bytes proven or written by this process.
    """
    shared = _shared(hashed, base) if base else {}
    rest = [item for item in hashed if item.buffer.name not in shared]
    new = plan_file(rest) if rest else None
    written = {entry.name: entry for entry in new.entries} if new else {}
    entries = tuple((shared | written)[item.buffer.name] for item in hashed)
    files = {entry.file: base.files[entry.file] for entry in shared.values()} if base else {}
    if new:
        files[new.file] = new.nbytes
    return Plan(entries, files, new)


def _shared(hashed: Sequence[Hashed], base: Manifest) -> dict[str, Entry]:
    """Entries in older files, by the name of the buffer; only from files that are worth depending on."""
    by_bytes = {(entry.digest, entry.nbytes): entry for entry in base.entries}
    by_name = {entry.name: entry for entry in base.entries}
    matches: dict[str, list[tuple[Hashed, Entry]]] = defaultdict(list)
    for item in hashed:
        key = (item.digest, item.buffer.data.nbytes)
        same = by_name.get(item.buffer.name)
        entry = same if same and (same.digest, same.nbytes) == key else by_bytes.get(key)
        if entry:
            matches[entry.file].append((item, entry))
    live = {file: sum(n for _, n in {(e.offset, e.nbytes) for _, e in pairs}) for file, pairs in matches.items()}
    worth = [file for file in live if live[file] >= MIN_LIVE * base.files[file]]
    worth = sorted(worth, key=lambda file: -live[file])[: MAX_FILES - 1]
    return {item.buffer.name: _renamed(entry, item) for file in worth for item, entry in matches[file]}


def _renamed(entry: Entry, item: Hashed) -> Entry:
    buffer = item.buffer
    changes = {"name": buffer.name, "kind": buffer.kind, "dtype": buffer.dtype, "shape": tuple(buffer.shape)}
    return entry.model_copy(update=changes)
