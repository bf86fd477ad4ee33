"""Real faults, put into real system calls by strace: kill, fail or shorten the n-th one of an action.

The action runs in a forked child that strace is attached to, so that a point costs a fork and not a new
interpreter, and nothing but the action's own calls is counted.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FILE_CALLS = (
    "openat,creat,write,pwrite64,writev,pwritev,pwritev2,copy_file_range,sendfile,fsync,fdatasync,rename,"
    "renameat,renameat2,link,linkat,symlink,unlink,unlinkat,mkdir,mkdirat,rmdir,fallocate,ftruncate,truncate"
)
"""System calls that change files. ``openat`` counts only where it may create."""

_PR_SET_PTRACER = 0x59616D61  # prctl(2): lets a process that is no ancestor trace this one
_CALL = re.compile(r"(?:\d+ +)?(\w+)\((.*)")


@dataclass(frozen=True)
class FileEvent:
    """One system call of an action.

    Attributes:
        call: Its name.
        number: Which call of this name it is, from 1.
        text: The line of strace.
    """

    call: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.call} {self.number}"


@dataclass(frozen=True)
class Outcome:
    """How an action ended.

    Attributes:
        status: ``"returned"``, ``"raised"`` or ``"killed"``.
        error: Name of the type of what it raised.
        message: Its text.
    """

    status: str
    error: str = ""
    message: str = ""


def have_strace() -> bool:
    """Whether faults can be injected here."""
    return shutil.which("strace") is not None


def file_events(action: Callable[[], object], log: Path) -> list[FileEvent]:
    """Run an action in a child and list the calls by which it changes files.

    Args:
        action: What to run; the parent should have run its like once, so that nothing is imported in the child.
        log: A file to write to.
    """
    outcome = _traced(action, ["-y", "-e", f"trace={FILE_CALLS}", "-o", os.fspath(log)])
    if outcome.status != "returned":
        raise RuntimeError(f"the action failed without a fault: {outcome}")
    counts: Counter[str] = Counter()
    events = []
    for line in log.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if not match:
            continue
        counts[match.group(1)] += 1
        if match.group(1) != "openat" or "O_CREAT" in line:
            events.append(FileEvent(match.group(1), counts[match.group(1)], match.group(2)))
    return events


def run_with_fault(
    action: Callable[[], object], event: FileEvent, fault: str, *, ever_after: bool = False
) -> Outcome:
    """Run an action in a child with a fault in one of its calls.

    Args:
        action: What to run.
        event: Where; from ``file_events`` of the same action from the same start.
        fault: In strace's words: ``"signal=SIGKILL"`` (before the call), ``"error=ENOSPC"``, ``"retval=100"``
            (does nothing and says 100).
        ever_after: Also in every later call of that name.
    """
    when = f"{event.number}+" if ever_after else str(event.number)
    inject = f"inject={event.call}:{fault}:when={when}"
    return _traced(action, ["-e", f"trace={event.call}", "-e", inject, "-o", os.devnull])


def _traced(action: Callable[[], object], options: list[str]) -> Outcome:
    ours, childs = socket.socketpair()  # neither end is used with a call that a fault could hit
    pid = os.fork()
    if pid == 0:
        ours.close()
        _child(action, childs)
    childs.close()
    with ours:
        ours.recv(1)
        tracer = subprocess.Popen(["strace", "-f", "-p", str(pid), *options], stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        first = tracer.stderr.readline()
        if "attached" in first:
            ours.send(b"g")
        ours.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: ours.recv(4096), b""))
    _, status = os.waitpid(pid, 0)
    tracer.communicate()
    if "attached" not in first:
        raise RuntimeError(f"strace cannot attach: {first.strip()}")
    if os.WIFSIGNALED(status):
        return Outcome("killed")
    return Outcome(**json.loads(said))


def _child(action: Callable[[], object], parent: socket.socket) -> None:
    """Wait for the tracer, run the action, say how it ended; never returns."""
    outcome = {"status": "returned"}
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        parent.send(b"r")
        if parent.recv(1) == b"g":
            action()
    except BaseException as error:  # noqa: BLE001  told to the parent
        outcome = {"status": "raised", "error": type(error).__name__, "message": str(error)}
    finally:
        parent.sendall(json.dumps(outcome).encode())
        os._exit(0)
