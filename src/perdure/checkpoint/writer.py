"""Files that are whole or absent: reserved, written, proven, synced, and only then given their name."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from perdure.core.files import fsync_dir

CHUNK_BYTES = 32 * 1024 * 1024
"""Bytes a system call; Linux writes at most 2 GiB at once."""

_MAX_PARTS = 512  # views a system call; IOV_MAX is 1024
_TRIES = 3
_NO_RESERVATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
TEMPORARY = ".tmp"
"""Ending of files that are not committed; a file with it, in a folder that nobody writes to, is debris."""


def publish(final: Path, parts: Iterable[bytes | memoryview], nbytes: int) -> None:
    """Write a file under a temporary name in the same folder and rename it; the folder is synced too.

    Args:
        final: Its name in the end.
        parts: Its content; written straight from their memory.
        nbytes: Its size, reserved before anything is written.

    Raises:
        OSError: As the system says. The temporary file is gone, unless the system refuses that too. A file
            of the final name is whole, but may not be known to be on disk.
    """
    temporary = final.with_name(f".{final.name}{TEMPORARY}")
    try:
        _write(temporary, parts, nbytes)
        os.rename(temporary, final)
    except BaseException:
        _discard(temporary)
        raise
    fsync_dir(final.parent)


def _write(path: Path, parts: Iterable[bytes | memoryview], nbytes: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _reserve(fd, nbytes)
        offset = 0
        for batch in _batches(parts):
            offset += _write_batch(fd, batch, offset)
        if offset != nbytes:
            raise OSError(errno.EIO, f"{offset} bytes came instead of {nbytes}", str(path))
        os.fsync(fd)
    finally:
        os.close(fd)


def _reserve(fd: int, nbytes: int) -> None:
    """Have the file system set the room aside now, so that a full disk shows before anything is at stake."""
    if not nbytes or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno not in _NO_RESERVATION:
            raise


def _batches(parts: Iterable[bytes | memoryview]) -> Iterator[list[memoryview]]:
    """The parts in order, in pieces that one system call takes."""
    batch: list[memoryview] = []
    room = CHUNK_BYTES
    for part in parts:
        view = memoryview(part)
        begin = 0
        while begin < view.nbytes:
            piece = view[begin : begin + room]
            batch.append(piece)
            begin += piece.nbytes
            room -= piece.nbytes
            if not room or len(batch) == _MAX_PARTS:
                yield batch
                batch, room = [], CHUNK_BYTES
    if batch:
        yield batch


def _write_batch(fd: int, batch: list[memoryview], offset: int) -> int:
    """Write one batch at its place. A short write is not believed: the whole batch is written again."""
    nbytes = sum(piece.nbytes for piece in batch)
    written = 0
    for _ in range(_TRIES):
        written = os.pwritev(fd, batch, offset)
        if written == nbytes:
            return nbytes
    raise OSError(errno.EIO, f"only {written} bytes of {nbytes} were written, {_TRIES} times")


def _discard(path: Path) -> None:
    # ext4 keeps what a failed reservation got: give that back even where the name cannot be removed.
    with contextlib.suppress(OSError):
        os.truncate(path, 0)
    with contextlib.suppress(OSError):
        os.unlink(path)
