"""One writer a run folder.

A POSIX record lock, not flock: flock is inherited by forked loader workers, which can outlive a trainer that was
killed and would keep its run locked. A record lock dies with the process that took it. It also dies as soon as
that process closes *any* descriptor of the file (fcntl(2)), so nothing here opens the file a second time, and
``check`` takes the lock anew before each save.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.core.errors import RunLockedError

_HELD_BY_OTHER = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class RunLock:
    """The lock of a run folder.

    A second one on the same folder in the same process takes over from the first (a notebook cell that is run
    again); the first one is then ``lost``.
    """

    _held: dict[tuple[int, int, int], RunLock] = {}  # noqa: RUF012  by process, device and inode

    def __init__(self, path: Path) -> None:
        self.path = path
        self.supported = True
        self._fd: int | None = None
        self._key: tuple[int, int, int] = (0, 0, 0)

    def acquire(self) -> None:
        """Take it, and write down who holds it.

        Raises:
            RunLockedError: Another process holds it.
            OSError: The file cannot be made.
        """
        with contextlib.suppress(FileNotFoundError):
            state = os.stat(self.path)
            earlier = self._held.get((os.getpid(), state.st_dev, state.st_ino))
            if earlier:
                self._take_over(earlier)
                return
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock(fd)
            self._note_holder(fd)
        except BaseException:
            os.close(fd)
            raise
        state = os.fstat(fd)
        self._fd, self._key = fd, (os.getpid(), state.st_dev, state.st_ino)
        self._held[self._key] = self

    def check(self) -> None:
        """Make sure that this process still holds it.

        Raises:
            RunLockedError: It does not: it was taken over or released, or this is a forked child of the holder.
        """
        if self._fd is None or self._key[0] != os.getpid():
            raise RunLockedError(
                f"{self.path.parent} is no longer open for writing here",
                path=self.path,
                pid=os.getpid(),
                host=socket.gethostname(),
                hint="it was closed, taken over by a later Run here, or this is a forked child: use that Run",
            )
        self._lock(self._fd)

    def release(self) -> None:
        """Give it back; harmless if it is not held."""
        if self._fd is not None and self._held.get(self._key) is self:
            del self._held[self._key]
            os.close(self._fd)
        self._fd = None

    def _note_holder(self, fd: int) -> None:
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": datetime.now(UTC).isoformat()}
        with contextlib.suppress(OSError):  # a full disk costs others the name of the holder, not us the lock
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(holder).encode(), 0)

    def _take_over(self, earlier: RunLock) -> None:
        self._fd, self._key, self.supported = earlier._fd, earlier._key, earlier.supported
        earlier._fd = None
        self._held[self._key] = self

    def _lock(self, fd: int) -> None:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD_BY_OTHER:
                raise self._refusal(fd) from None
            if error.errno not in _NO_LOCKS:
                raise
            self.supported = False

    def _refusal(self, fd: int) -> RunLockedError:
        holder = _holder(fd)
        pid, host = int(holder.get("pid", 0)), str(holder.get("host", "unknown"))
        return RunLockedError(
            f"{self.path.parent} is being written by process {pid or 'unknown'} on {host}"
            f" since {holder.get('started', 'some time')}",
            path=self.path,
            pid=pid,
            host=host,
            hint="wait until it ends, or stop it, or give this run another name",
        )


def _holder(fd: int) -> dict[str, Any]:
    for _ in range(20):  # between the lock and the note there is a moment
        try:
            return dict(json.loads(os.pread(fd, 4096, 0)))
        except (ValueError, TypeError):
            time.sleep(0.01)
    return {}
