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
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    with Output(final.with_name(f".{final.name}{TEMPORARY}"), nbytes) as output:
        written = output.write(parts, nbytes)
        if written != nbytes:
            raise OSError(errno.EIO, f"{written} bytes came instead of {nbytes}", str(final))
        output.publish(final, nbytes)


class Output:
    """A file that is not there yet: under a temporary name until it is published, gone if it is not.

    Args:
        path: The temporary name.
        nbytes: How large it gets at most; reserved now.

    Raises:
        OSError: As the system says.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path = path
        self._end = nbytes
        self._fd = -1
        self._published = False
        try:
            self._fd, direct = _open(path, nbytes)
            _reserve(self._fd, nbytes)
        except BaseException:
            self.give_up()
            raise
        self._align = BLOCK_BYTES if direct else 1

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Remove it; harmless once it is published."""
        self._close()
        if not self._published:
            _discard(self._path)

    def write(self, parts: Iterable[bytes | memoryview], nbytes: int, *, at: int = 0) -> int:
        """Write.

        Args:
            parts: What.
            nbytes: How much that is at most.
            at: Where; a multiple of a block.

        Returns:
            How much it was.

        Raises:
            OSError: As the system says.
        """
        counted, place = _Counted(parts), at
        with _Hand(self._fd, nbytes > CHUNK_BYTES) as hand:
            for piece in pieces(counted, nbytes, align=self._align, chunk=CHUNK_BYTES):
                hand.write(piece, place)
                place += piece.nbytes
        self._end = max(self._end, place)
        return counted.nbytes

    def publish(self, final: Path, nbytes: int) -> None:
        """Give it its size and its name, and make both durable.

        Raises:
            OSError: As the system says.
        """
        if self._end != nbytes:
            os.ftruncate(self._fd, nbytes)  # a direct write ends at a whole block; more may have been reserved
        os.fsync(self._fd)
        if self._align == 1 and nbytes >= DIRECT_FROM_BYTES:
            _drop_pages(self._fd)
        self._close()
        os.rename(self._path, final)
        self._published = True
        fsync_dir(final.parent)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Counted:
    """Parts of a content, and the bytes of those that were taken."""

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self.nbytes = 0
        self._parts = parts

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for part in self._parts:
            yield part
            self.nbytes += len(part)


class _Hand:
    """Writes one piece while the next one is made, if there is more than one."""

    def __init__(self, fd: int, many: bool) -> None:
        self._fd = fd
        self._pool = ThreadPoolExecutor(1, "perdure-write") if many else None
        self._under_way: Future[int] | None = None

    def __enter__(self) -> _Hand:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            if self._pool:
                self._pool.shutdown()

    def write(self, piece: memoryview, offset: int) -> None:
        """Begin to; the piece before is written then."""
        if self._pool is None:
            _write_piece(self._fd, piece, offset)
            return
        self._wait()
        try:
            self._under_way = self._pool.submit(_write_piece, self._fd, piece, offset)
        except RuntimeError:  # no thread can be begun (any more)
            self._under_way = None
            _write_piece(self._fd, piece, offset)

    def _wait(self) -> None:
        if self._under_way:
            self._under_way.result()


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
