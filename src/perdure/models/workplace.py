"""A temporary folder for an export: nothing in it looks finished, and what a kill leaves is found and removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from perdure.checkpoint.budget import Room
from perdure.core.errors import DiskFullError
from perdure.core.files import fsync_dir
from perdure.core.intervals import format_bytes

_PREFIX, _SUFFIX = ".export-", ".tmp"
_SMALL = re.compile(r"\.(?:\.proofs\.json|model-card\.\w+|README\.md)\.(\d+)\.tmp")
"""What ``core.files`` calls a small file that it is writing: the name of the file and the process."""


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A folder inside of ``folder`` for the time of one export, locked so that others see that it is in use."""
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    work = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder))
    lock = os.open(work, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some mounts know no locks; then nobody sweeps there
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """For the moment in which a small file that several exports share is read, changed and written."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some mounts know no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _sweep(folder: Path) -> None:
    """Remove what killed exports left."""
    for name in os.listdir(folder):
        if (small := _SMALL.fullmatch(name)) and not _lives(int(small[1])):
            (folder / name).unlink(missing_ok=True)
    for left in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        try:
            lock = os.open(left, os.O_RDONLY)
        except OSError:  # gone meanwhile
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:  # in use by another process
            continue
        finally:
            os.close(lock)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def check_room(folder: Path, needed: int, room: Room | None) -> None:
    """Refuse an export that does not fit, before anything is written.

    Raises:
        DiskFullError: It needs more than is left.
    """
    free = (room or Room(folder, None, folder)).free_bytes()
    if free < needed:
        raise DiskFullError(
            f"no room for the model in {folder}: it needs {format_bytes(needed)}, {format_bytes(free)} are free",
            path=folder,
            needed_bytes=needed,
            free_bytes=free,
            hint="free some space and run the script again, or name fewer formats",
        )


def make_durable(work: Path) -> None:
    """Give everything in a folder the rights of other files, and wait until the disk has it."""
    umask = _umask_of(work)
    for place, folders, files in os.walk(work):
        for name in files:
            path = Path(place, name)
            path.chmod(0o666 & ~umask)  # safetensors lets nobody but the owner read its own
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        for name in folders:
            Path(place, name).chmod(0o777 & ~umask)
            fsync_dir(Path(place, name))


def _umask_of(work: Path) -> int:
    """The umask, seen from a new file: asking for it would change it for all threads."""
    probe = work / ".probe"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    return 0o666 & ~mode


def put_in_place(made: Path, companions: Sequence[Path], folder: Path) -> None:
    """Move a finished file and its companions to their names; at no instant has an old one new companions."""
    target = folder / made.name
    if companions:
        target.unlink(missing_ok=True)
        for companion in companions:
            os.replace(companion, folder / companion.name)
        fsync_dir(folder)
    if made.is_dir() and target.exists():
        os.rename(target, made.parent / f"{made.name}.old")  # leaves with the workplace
    os.replace(made, target)
    fsync_dir(folder)
