"""Entries that stay in memory from the read that proves them: what is used is what was proven."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable

import xxhash

from perdure.checkpoint.manifest import Entry

KEEP_FROM_BYTES = 256 * 1024
"""Smaller ones are not kept: each takes whole pages of its own."""

_PIECE_BYTES = 2 * 1024 * 1024
"""Small enough to be digested out of the processor's cache, large enough for a disk."""

ReadInto = Callable[[str, memoryview, int], int]
"""Fill memory from a place in a file; the count of bytes that were there."""


class Kept:
    """Memory for entries, each by itself, so that it is given back when nobody looks at that one any more.

    Attributes:
        entries: They.
        memory: Of each of them, by name; its own to be written to.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.memory: dict[str, memoryview] = {}

    def make(self, entries: Iterable[Entry]) -> None:
        """Find room for the large ones of these; none is kept where there is not so much memory."""
        self.entries = [entry for entry in entries if entry.nbytes >= KEEP_FROM_BYTES]
        try:
            self.memory = {entry.name: _private(entry.nbytes) for entry in self.entries}
        except OSError:
            self.forget()

    def fill(self, entry: Entry, read_into: ReadInto) -> bool:
        """Read an entry into its memory, and digest it there; whether it is what was written."""
        memory, state, done = self.memory[entry.name], xxhash.xxh3_128(), 0
        while done < entry.nbytes:
            count = read_into(entry.file, memory[done : done + _PIECE_BYTES], entry.offset + done)
            if not count:
                return False
            state.update(memory[done : done + count])
            done += count
        return state.hexdigest() == entry.digest

    def forget(self) -> None:
        """Let go of it; whoever looks at some of it keeps that."""
        self.entries, self.memory = [], {}


def _private(nbytes: int) -> memoryview:
    """Memory that begins at a page; a child made by fork writes to a copy of its own."""
    return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
