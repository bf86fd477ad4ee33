"""A session's processes: started together, ended together."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from perdure.core.errors import ConfigError

SESSION_ID = "PERDURE_SESSION_ID"
"""Names the sessions that a process belongs to, outermost first, separated by ``/``."""

_KILL_ROUNDS = 50
_ROUND_S = 0.02


class SessionProcess:
    """The main process of a session, leader of a process group of its own.

    Workers of a killed trainer can live on, and launchers such as ``torchrun`` put their children into groups of
    their own. So every process of the session carries a mark in its environment, and ``end`` finds it by that.

    Args:
        command: Program and arguments.
        environment: All environment variables of the process.
        cwd: Its working folder; the present one if None.
        log: File for its output and errors; None hands on the terminal.

    Raises:
        ConfigError: The program is not there or may not be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self._mark = secrets.token_hex(8)
        outer = environment.get(SESSION_ID)
        env = {**environment, SESSION_ID: f"{outer}/{self._mark}" if outer else self._mark}
        try:
            self._process = _start(command, env, cwd, log)
        except (FileNotFoundError, PermissionError) as error:
            raise ConfigError(
                f"cannot start {command[0]!r}: {error.strerror}",
                hint="give a .py script, an .ipynb notebook or a program",
            ) from error
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """Process id, also of the group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return code of the main process: negative for a signal, None while it runs.

        The process is not reaped before ``end``, so that its id, and that of its group, cannot be given to another.
        """
        if self._code is None:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                self._code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the main process alone; its workers are its own business."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self) -> int:
        """Kill what is left of the session, wait until it is gone, and give the main process' return code."""
        if self._process.returncode is None:
            self.poll()
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._end_strays()
            if self._code is None:
                self._code = self._process.returncode
        return self._process.returncode if self._code is None else self._code

    def _end_strays(self) -> None:
        end_marked(self._mark)


def end_marked(mark: str) -> None:
    """Kill every process that carries a session's mark, as long as there are any.

    Args:
        mark: One part of what ``SESSION_ID`` says.
    """
    for _ in range(_KILL_ROUNDS):
        strays = [process for process in psutil.process_iter() if _is_marked(process, mark)]
        if not strays:
            return
        for process in strays:
            _kill(process)
        time.sleep(_ROUND_S)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        marks = process.environ().get(SESSION_ID, "")
    except (psutil.Error, OSError):  # gone, or another user's
        return False
    return process.pid != os.getpid() and mark in marks.split("/")


def _start(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, log: Path | None
) -> subprocess.Popen[bytes]:
    if log is None:
        return subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True)
    with open(log, "ab") as file:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
