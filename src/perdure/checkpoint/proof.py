"""Proving entries by their digests: several at a time, each file read from front to back."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import xxhash

from perdure.checkpoint.kept import Kept, ReadInto
from perdure.checkpoint.manifest import Entry

_PIECE_BYTES = 8 * 1024 * 1024
_THREADS = 4
"""More do not help: two keep a fast disk busy, and digests come at the speed of memory."""

T = TypeVar("T")
R = TypeVar("R")


def unproven(entries: Sequence[Entry], read_into: ReadInto, kept: Kept | None = None) -> list[Entry]:
    """The entries whose bytes do not have the digest that was written, in the order given.

    Args:
        entries: What to prove.
        read_into: Called from several threads.
        kept: Those that are read to stay in memory. The others are read and dropped.
    """
    local = _Local()
    apart = kept.memory if kept else {}

    def bad_ones(batch: Sequence[Entry]) -> set[str]:
        if kept is None or batch[0].name not in apart:
            return _unproven_of(batch, local, read_into)
        return set() if kept.fill(batch[0], read_into) else {batch[0].name}

    bad = {name for names in _together(bad_ones, list(_batches(entries, apart))) for name in names}
    return [entry for entry in entries if entry.name in bad]


def differing(entries: Sequence[Entry], memory: Mapping[str, memoryview]) -> list[Entry]:
    """The entries whose bytes in memory, by name, do not have the digest that was written."""
    same = _together(lambda entry: xxhash.xxh3_128_hexdigest(memory[entry.name]) == entry.digest, entries)
    return [entry for entry, is_same in zip(entries, same, strict=True) if not is_same]


def _together(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What ``work`` gives for each, by several threads."""
    if len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0)) + 1, len(items))) as pool:
        return list(pool.map(work, items))


def _batches(entries: Sequence[Entry], kept: Collection[str]) -> Iterator[list[Entry]]:
    """Entries that follow one another in a file, so many as one read gets; a large or kept one by itself."""
    batch: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: (entry.file, entry.offset)):
        if batch and (
            entry.file != batch[0].file
            or entry.offset + entry.nbytes > batch[0].offset + _PIECE_BYTES
            or entry.name in kept
            or batch[0].name in kept
        ):
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch


class _Local(threading.local):
    """Memory to read into, one piece a thread: new memory for each would cost as much as its digest."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, _PIECE_BYTES))


def _unproven_of(batch: Sequence[Entry], local: _Local, read_into: ReadInto) -> set[str]:
    begin, end = batch[0].offset, max(entry.offset + entry.nbytes for entry in batch)
    memory = local.memory[: end - begin]
    if end - begin > _PIECE_BYTES:  # one large entry
        return set() if _streamed(batch[0], memory, read_into) == batch[0].digest else {batch[0].name}
    count = _fill(batch[0].file, memory, begin, read_into)
    return {
        entry.name
        for entry in batch
        if entry.offset - begin + entry.nbytes > count
        or xxhash.xxh3_128_hexdigest(memory[entry.offset - begin : entry.offset - begin + entry.nbytes])
        != entry.digest
    }


def _streamed(entry: Entry, memory: memoryview, read_into: ReadInto) -> str:
    state = xxhash.xxh3_128()
    done = 0
    while done < entry.nbytes:
        count = read_into(entry.file, memory[: entry.nbytes - done], entry.offset + done)
        if not count:
            return "it ends too early"
        state.update(memory[:count])
        done += count
    return state.hexdigest()


def _fill(file: str, memory: memoryview, offset: int, read_into: ReadInto) -> int:
    """Bytes that could be read: fewer than asked for where the file ends before."""
    done = 0
    while done < memory.nbytes:
        count = read_into(file, memory[done:], offset + done)
        if not count:
            break
        done += count
    return done
