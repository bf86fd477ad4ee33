"""How fast a disk is: plain writes and reads past the page cache (O_DIRECT, open(2)), one file, nothing else."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK_BYTES = 16 * 1024 * 1024
"""Bytes a system call; a multiple of the block of every common disk."""

_BLOCK_BYTES = 4096
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only


def block_of_memory(nbytes: int) -> memoryview:
    """Memory that begins at a page, is a whole number of blocks long, and is there: each page was written to."""
    memory = memoryview(mmap.mmap(-1, max(nbytes + -nbytes % _BLOCK_BYTES, _BLOCK_BYTES)))
    pattern = os.urandom(min(len(memory), 1024 * 1024))  # some disks are faster with zeros
    for begin in range(0, len(memory), len(pattern)):
        count = min(len(pattern), len(memory) - begin)
        memory[begin : begin + count] = pattern[:count]
    return memory


def write_s(path: Path, memory: memoryview) -> tuple[float, bool]:
    """Write memory into a new file: room reserved first, then as fast as the disk takes it, then fsync.

    Args:
        path: The file; one that is there is removed before the clock starts.
        memory: As ``block_of_memory`` gives it.

    Returns:
        Seconds, and whether it went past the page cache.

    Raises:
        OSError: As the system says.
    """
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    fd, direct = _open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError, AttributeError):  # a file system that cannot reserve
            os.posix_fallocate(fd, 0, len(memory))
        done = 0
        while done < len(memory):
            done += os.pwrite(fd, memory[done : done + CHUNK_BYTES], done)
        os.fsync(fd)
    finally:
        os.close(fd)
    return time.perf_counter() - began, direct


def read_s(path: Path, *, threads: int = 1) -> tuple[float, bool]:
    """Read a whole file, and drop what was read.

    Args:
        path: The file.
        threads: How many read at a time, each a piece of its own.

    Returns:
        Seconds, and whether it went past the page cache.

    Raises:
        OSError: As the system says.
    """
    fd, direct = _open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        places = [block_of_memory(min(CHUNK_BYTES, size)) for _ in range(threads)]
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda part: _read_part(fd, places[part], size, part, threads), range(threads)))
        return time.perf_counter() - began, direct
    finally:
        os.close(fd)


def _read_part(fd: int, place: memoryview, size: int, part: int, parts: int) -> None:
    """Every so many-th piece of the file, from the given one on."""
    for begin in range(part * len(place), size, parts * len(place)):
        offset, end = begin, min(begin + len(place), size)
        while offset < end:
            count = os.preadv(fd, [place[offset - begin :]], offset)
            if not count:
                return
            offset += count


def _open(path: Path, flags: int) -> tuple[int, bool]:
    if _O_DIRECT:
        with contextlib.suppress(OSError):  # a file system without it
            return os.open(path, flags | _O_DIRECT, 0o666), True
    return os.open(path, flags, 0o666), False
