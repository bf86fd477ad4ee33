"""Files that are whole or absent: reserved, written, proven, synced, and only then given their name.

Large files are written past the page cache where the file system allows it (O_DIRECT, open(2)): the bytes of a
checkpoint are not read again soon, and what they would push out of the cache is the user's data set. Where it does
not, the pages are dropped once they are on disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from perdure.checkpoint.pieces import BLOCK_BYTES, pieces
from perdure.core.files import fsync_dir

CHUNK_BYTES = 16 * 1024 * 1024
"""Bytes a system call; Linux writes at most 2 GiB at once."""

DIRECT_FROM_BYTES = 4 * 1024 * 1024
"""Smaller files go through the page cache."""

_TRIES = 3
_NO_RESERVATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only
TEMPORARY = ".tmp"
"""Ending of files that are not committed; a file with it, in a folder that nobody writes to, is debris."""


def publish(final: Path, parts: Iterable[bytes | memoryview], nbytes: int) -> None:
    """Write a file under a temporary name in the same folder and rename it; the folder is synced too.

    Args:
        final: Its name in the end.
        parts: Its content; written straight from their memory where that is aligned as the disk wants it.
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
    fd, direct = _open(path, nbytes)
    try:
        _reserve(fd, nbytes)
        written = 0
        align = BLOCK_BYTES if direct else 1
        for piece in pieces(parts, nbytes, align=align, chunk=CHUNK_BYTES):
            written += _write_piece(fd, piece, written)
        if written != nbytes + -nbytes % align:
            raise OSError(errno.EIO, f"{written} bytes came instead of {nbytes}", str(path))
        if written != nbytes:
            os.ftruncate(fd, nbytes)  # a direct write ends at a whole block
        os.fsync(fd)
        if not direct and nbytes >= DIRECT_FROM_BYTES:
            _drop_pages(fd)
    finally:
        os.close(fd)


def _open(path: Path, nbytes: int) -> tuple[int, bool]:
    """The file, and whether it is written past the page cache."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    if _O_DIRECT and nbytes >= DIRECT_FROM_BYTES:
        try:
            return os.open(path, flags | _O_DIRECT, 0o666), True
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
    return os.open(path, flags, 0o666), False


def _reserve(fd: int, nbytes: int) -> None:
    """Have the file system set the room aside now, so that a full disk shows before anything is at stake."""
    if not nbytes or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno not in _NO_RESERVATION:
            raise


def _write_piece(fd: int, piece: memoryview, offset: int) -> int:
    """Write one piece at its place. A short write is not believed: the whole piece is written again."""
    written = 0
    for _ in range(_TRIES):
        try:
            written = os.pwrite(fd, piece, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not _leave_direct(fd):
                raise
        if written == piece.nbytes:
            return written
    raise OSError(errno.EIO, f"only {written} bytes of {piece.nbytes} were written, {_TRIES} times")


def _leave_direct(fd: int) -> bool:
    """Go on through the page cache, where another alignment is wanted; False if that is done already."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & _O_DIRECT:
        return False
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~_O_DIRECT)
    return True


def _drop_pages(fd: int) -> None:
    """Give the page cache back what nobody will read soon; a hint that no file system must take."""
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _discard(path: Path) -> None:
    # ext4 keeps what a failed reservation got: give that back even where the name cannot be removed.
    with contextlib.suppress(OSError):
        os.truncate(path, 0)
    with contextlib.suppress(OSError):
        os.unlink(path)
