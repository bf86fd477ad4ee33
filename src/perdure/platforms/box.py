"""The folders of a session on this machine: a working folder of limited size, inputs that cannot be written to.

Both limits are real where the system lets an ordinary user make a mount namespace (or this is root): the working
folder is then a file system in memory, the inputs a read-only mount. Elsewhere they are imitated, and said to be.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from perdure.core.errors import PlatformError
from perdure.core.intervals import format_bytes

# $1 working folder, $2 its size in bytes or 0, $3 source of the inputs, $4 where they are seen
_MOUNT = """
set -e
if [ "$2" != 0 ]; then mount -t tmpfs -o "size=$2,mode=700" tmpfs "$1"; fi
mount --bind "$3" "$4"
mount -o remount,bind,ro "$4"
echo ready
exec cat
"""
_START = 'cd "$0" && exec "$@"'


@dataclass(frozen=True)
class _Keeper:
    """The process that holds a namespace open, and the flags of ``nsenter`` that lead into it."""

    process: subprocess.Popen[str]
    flags: list[str]


class Box:
    """Where one session works.

    Args:
        working: Its working folder; made afresh.
        inputs: The folder in which it sees the outputs of earlier sessions.
        source: The folder that really holds them.
        disk_bytes: What the working folder may hold; None for no limit.

    Attributes:
        notes: One sentence for each limit that could not be made real.
        inputs: Where the session is to look for inputs.
    """

    def __init__(self, working: Path, inputs: Path, source: Path, disk_bytes: int | None) -> None:
        self.working = working
        self.inputs = inputs
        self.notes: list[str] = []
        self._disk_bytes = disk_bytes
        self._source = source
        self._in_memory = disk_bytes is not None and self._fits_in_memory(disk_bytes)
        for folder in (working, inputs, source):
            folder.mkdir(parents=True, exist_ok=True)
        self._keeper = self._open_namespace()
        if self._keeper is None:
            self.inputs = source
            self._in_memory = False
            set_writable(source, False)

    @property
    def is_watched(self) -> bool:
        """Whether the disk budget must be watched from outside, since the file system does not hold it."""
        return self._disk_bytes is not None and not self._in_memory

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` in this box, in the working folder, under the same process id."""
        start = ["sh", "-c", _START, str(self.working), *command]
        if self._keeper is None:
            return start
        return ["nsenter", "-t", str(self._keeper.process.pid), *self._keeper.flags, *start]

    def view(self, path: Path) -> Path:
        """A path of the session, as seen from outside; good until ``close``."""
        if self._keeper is not None and self._in_memory:
            return Path(f"/proc/{self._keeper.process.pid}/root") / path.relative_to("/")
        return path

    def used_bytes(self) -> int:
        """What the working folder holds."""
        return used_bytes(self.view(self.working))

    def is_over_budget(self) -> bool:
        """Whether the working folder has outgrown its budget."""
        return self._disk_bytes is not None and self.used_bytes() > self._disk_bytes

    def collect(self, output: Path) -> None:
        """Keep what the session left in its working folder; call it when all its processes are gone."""
        if self._in_memory:
            shutil.copytree(self.view(self.working), output, symlinks=True, ignore=_special_files)
        else:
            set_writable(self._source, True)  # the output may belong in there
            output.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.working, output)

    def close(self) -> None:
        """Take the mounts down, or give the inputs back their rights."""
        if self._keeper is None:
            set_writable(self._source, True)
        else:
            self._keeper.process.communicate()
            self._keeper = None

    def _fits_in_memory(self, disk_bytes: int) -> bool:
        free = psutil.virtual_memory().available
        if disk_bytes <= free // 2:
            return True
        self.notes.append(
            f"{format_bytes(disk_bytes)} of disk are more than half of the free memory ({format_bytes(free)}): the "
            "budget is watched, a session that outgrows it is killed and sees no full disk before"
        )
        return False

    def _open_namespace(self) -> _Keeper | None:
        refusals = []
        # root may lack the right to mount (in a container), and can then do what any user does
        for flags in (["-m"], ["-Urm"]) if os.geteuid() == 0 else (["-Urm"],):
            keeper, refusal = _keep(flags, self._places())
            if keeper is not None:
                return keeper
            refusals.append(refusal)
        self._say_imitated(refusals[-1])
        return None

    def _places(self) -> list[str]:
        size = str(self._disk_bytes) if self._in_memory else "0"
        return [str(self.working), size, str(self._source), str(self.inputs)]

    def _say_imitated(self, reason: str) -> None:
        text = "no mount namespace here: inputs are only marked as read-only"
        if self._disk_bytes is not None:
            text += ", and a session is killed when it outgrows its disk budget instead of seeing a full disk"
        self.notes.append(f"{text} ({reason})")


def _keep(flags: list[str], places: list[str]) -> tuple[_Keeper | None, str]:
    """A process that holds a mount namespace open until its standard input is closed, or why there is none."""
    try:
        process = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", _MOUNT, "keeper", *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        return None, f"unshare: {error.strerror}"
    assert process.stdout is not None
    if process.stdout.readline() == "ready\n":
        return _Keeper(process, ["-m"] if flags == ["-m"] else ["-U", "--preserve-credentials", "-m"]), ""
    _, errors = process.communicate()
    return None, errors.strip().splitlines()[-1] if errors.strip() else "no reason given"


def used_bytes(folder: Path) -> int:
    """Bytes on disk of everything below a folder; what vanishes meanwhile does not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def set_writable(folder: Path, writable: bool) -> None:
    """Set or take the owner's right to write, for a folder and everything below it.

    Raises:
        PlatformError: They belong to somebody else.
    """
    write = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
    try:
        for parent, folders, names in os.walk(folder):
            for path in (parent, *(os.path.join(parent, name) for name in (*folders, *names))):
                mode = os.lstat(path).st_mode
                if not stat.S_ISLNK(mode):
                    os.chmod(path, mode | stat.S_IWUSR if writable else mode & ~write)
    except PermissionError as error:
        raise PlatformError(
            f"cannot change the rights of {error.filename}", hint="choose another --work folder"
        ) from error


def _special_files(folder: str, names: list[str]) -> set[str]:
    """Names of sockets, pipes and devices, which are no output."""
    kinds = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return {n for n, mode in kinds.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))}
