"""The content of a file as pieces that a system call takes each: straight from memory where it can be."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BLOCK_BYTES = 4096
"""What a direct write wants addresses, offsets and lengths to be multiples of; every common disk takes it."""

STRAIGHT_FROM_BYTES = 256 * 1024
"""Shorter stretches are gathered: a copy is cheaper than a system call."""


@dataclass
class Stretch:
    """Bytes that lie together in memory.

    Attributes:
        view: They.
        address: Where they begin; -1 if that cannot be known (read-only memory).
    """

    view: memoryview
    address: int

    def take(self, count: int) -> memoryview:
        """The first bytes, which are gone then."""
        head, self.view = self.view[:count], self.view[count:]
        self.address += count if self.address >= 0 else 0
        return head


def pieces(parts: Iterable[bytes | memoryview], nbytes: int, *, align: int, chunk: int) -> Iterator[memoryview]:
    """Cut the content of a file.

    Args:
        parts: The content, in order.
        nbytes: All of it.
        align: Each piece begins in memory at a multiple of this and is a multiple of it long; zeros follow the
            content where it is not.
        chunk: Bytes a piece at most; a multiple of ``align``.

    Returns:
        The pieces; each is valid until the one behind the next is asked for.
    """
    size = min(chunk, max(align, nbytes + -nbytes % align))
    gathered = _Gathered(size, 1 if size < chunk else 2)
    for stretch in stretches(parts, chunk):
        while stretch.view.nbytes:
            if straight := _straight_bytes(stretch, gathered.filled, align):
                if gathered.filled:
                    yield gathered.take()
                yield stretch.take(min(straight, chunk))
                continue
            gathered.add(stretch.take(min(_gathered_bytes(stretch, gathered.filled, align), gathered.left)))
            if not gathered.left:
                yield gathered.take()
    if gathered.filled:
        gathered.add(bytes(-gathered.filled % align))
        yield gathered.take()


class _Gathered:
    """Memory for what cannot be written from where it is; while one piece is written, the next is gathered."""

    def __init__(self, size: int, count: int) -> None:
        self._places = [_memory(size) for _ in range(count)]
        self.filled = 0

    @property
    def left(self) -> int:
        """Bytes until it is full."""
        return len(self._places[0]) - self.filled

    def add(self, data: bytes | memoryview) -> None:
        """Take a copy."""
        self._places[0][self.filled : self.filled + len(data)] = data
        self.filled += len(data)

    def take(self) -> memoryview:
        """What was gathered; goes on in the other place."""
        taken, self.filled = self._places[0][: self.filled], 0
        self._places.reverse()
        return taken


def _memory(size: int) -> memoryview:
    """Memory in large pages, if the system has them: a disk reads from those with less ado."""
    memory = mmap.mmap(-1, size)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _straight_bytes(stretch: Stretch, filled: int, align: int) -> int:
    """How many of its bytes can be written from where they are; 0 if that is not worth it or cannot be."""
    if filled % align or (align > 1 and (stretch.address < 0 or stretch.address % align)):
        return 0
    count = stretch.view.nbytes - stretch.view.nbytes % align
    return count if count >= STRAIGHT_FROM_BYTES else 0


def _gathered_bytes(stretch: Stretch, filled: int, align: int) -> int:
    """How many to gather: to where the rest can be written straight, if it can, else all."""
    total = stretch.view.nbytes
    if stretch.address < 0 or total < STRAIGHT_FROM_BYTES + align:
        return total
    until = -stretch.address % align
    return until if until and not (filled + until) % align else total


def stretches(parts: Iterable[bytes | memoryview], chunk: int) -> Iterator[Stretch]:
    """The parts; those that follow one another in the memory of one object as one, in whole chunks."""
    held: Stretch | None = None
    for part in parts:
        view = part if isinstance(part, memoryview) else memoryview(part)
        if not view.nbytes:
            continue
        address = _address(view)
        if held is not None:
            if address >= 0 and held.view.obj is view.obj and held.address + held.view.nbytes == address:
                held.view = _span(held, view.nbytes)
            else:
                yield held
                held = None
        held = held or Stretch(view, address)
        if whole := held.view.nbytes - held.view.nbytes % chunk:  # what follows may be long in coming
            begin = held.address
            yield Stretch(held.take(whole), begin)
            held = held if held.view.nbytes else None
    if held is not None:
        yield held


def _address(view: memoryview) -> int:
    return -1 if view.readonly else ctypes.addressof(ctypes.c_char.from_buffer(view))


def _span(held: Stretch, more: int) -> memoryview:
    """The bytes of a stretch and those behind it."""
    whole = memoryview(held.view.obj).cast("B")
    begin = held.address - _address(whole)
    return whole[begin : begin + held.view.nbytes + more]
