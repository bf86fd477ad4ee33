"""The platform in small: sessions on this machine that are limited and ended as hosted ones are.

A session is a fresh process with a fresh working folder. It sees the outputs of earlier sessions read-only, has a
window at whose end it is killed without notice, and a disk budget. What it leaves in its working folder is its
output, however it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perdure.core.clock import SystemClock
from perdure.core.errors import EXIT_PAUSED
from perdure.core.settings import INPUTS
from perdure.platforms.box import Box
from perdure.platforms.command import NOTEBOOK_OUTPUT, session_environment, without_session
from perdure.platforms.processes import SessionProcess
from perdure.platforms.report import SessionReport, read_report

Ending = Literal["finished", "paused", "failed", "killed", "window", "disk"]
"""How a session ended: by itself (the first three), by a hard kill, at its deadline, or over its disk budget."""

_WATCH_EVERY_S = 0.2


@dataclass(frozen=True)
class LocalLimits:
    """What the platform holds a session to. ``None`` means "no such limit".

    Attributes:
        window_s: Seconds until it is killed.
        disk_bytes: What its working folder may hold.
    """

    window_s: float | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True)
class SessionFolders:
    """Where a session works and what is kept of it.

    Attributes:
        working: Working folder; the same path in each session of a chain, as on a hosted platform.
        inputs: Where it sees the outputs of earlier sessions.
        source: The folder that really holds those outputs, one folder each.
        kept: For what outlives it: ``log.txt``, ``report.json``.
        output: Where its output is put; must not exist yet.
    """

    working: Path
    inputs: Path
    source: Path
    kept: Path
    output: Path

    @property
    def log(self) -> Path:
        """What the session printed."""
        return self.kept / "log.txt"

    @property
    def report(self) -> Path:
        """How its runs stand."""
        return self.kept / "report.json"


@dataclass(frozen=True)
class SessionEnd:
    """What became of a session.

    Attributes:
        how: How it ended.
        code: Return code of its main process, negative for a signal.
        seconds: How long it lasted.
        report: How its runs stood; None if the script does not use Perdure.
        output_bytes: What it left in its working folder.
        notes: One sentence for each limit that could not be made real.
    """

    how: Ending
    code: int
    seconds: float
    report: SessionReport | None
    output_bytes: int
    notes: tuple[str, ...] = field(default=())


class LocalSession:
    """One session on this machine, from its start to its end.

    Args:
        command: Program and arguments.
        folders: Where it works.
        limits: What it is held to.
        environment: Variables of its process, to which what the platform says is added.
        platform: What it is told to be on. Any other than ``"local"`` stands for a host that knows nothing of
            Perdure: the session is told where its inputs are, and nothing else.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        folders: SessionFolders,
        limits: LocalLimits,
        environment: Mapping[str, str],
        *,
        platform: str = "local",
    ) -> None:
        self.folders = folders
        self._platform = platform
        self.limits = limits
        self._clock = SystemClock()
        self._watched_s = 0.0
        self._ending: Ending | None = None
        folders.kept.mkdir(parents=True)
        shutil.rmtree(folders.working, ignore_errors=True)
        self.box = Box(folders.working, folders.inputs, folders.source, limits.disk_bytes)
        self.started_s = self._clock.monotonic()
        try:
            self._process = SessionProcess(
                self.box.command(command), environment=self._environment(environment), log=folders.log
            )
        except BaseException:
            self.box.close()
            raise

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self._clock.monotonic() - self.started_s

    @property
    def report(self) -> SessionReport | None:
        """How its runs stand; None if the script does not use Perdure, or not yet."""
        return read_report(self.folders.report)

    def poll(self) -> bool:
        """Whether it still runs; ends it at its deadline, or over a budget that nothing else holds."""
        if self._process.poll() is not None:
            return False
        if self.limits.window_s is not None and self.elapsed_s >= self.limits.window_s:
            self._end("window")
            return False
        if self.box.is_watched and self.elapsed_s - self._watched_s >= _WATCH_EVERY_S:
            self._watched_s = self.elapsed_s
            if self.box.is_over_budget():
                self._end("disk")
                return False
        return True

    def kill(self) -> None:
        """End it hard, without notice."""
        if self._process.poll() is None:
            self._end("killed")

    def stop(self) -> None:
        """Ask it to stop, as ``SIGTERM`` does."""
        self._process.signal(signal.SIGTERM)

    def finish(self) -> SessionEnd:
        """End all its processes, keep its output and take its folders down."""
        seconds = self.elapsed_s
        try:
            code = self._process.end()
            output_bytes = self.box.used_bytes()
            self.box.collect(self.folders.output)
        finally:
            self.box.close()
        report = self.report
        how = self._ending or _own_ending(code, report)
        return SessionEnd(how, code, seconds, report, output_bytes, tuple(self.box.notes))

    def _end(self, how: Ending) -> None:
        self._process.end()
        self._ending = how

    def _environment(self, base: Mapping[str, str]) -> dict[str, str]:
        if self._platform != "local":
            return {**without_session(base), INPUTS: str(self.box.inputs), "PYTHONUNBUFFERED": "1"}
        told = session_environment(
            without_session(base),
            report=self.folders.report,
            root=self.folders.working / "perdure",
            inputs=(self.box.inputs,),
            window_s=self.limits.window_s,
            disk_bytes=self.limits.disk_bytes,
            started_s=self.started_s,
            platform="local",
        )
        return {**told, NOTEBOOK_OUTPUT: str(self.folders.working / "notebook.ipynb"), "PYTHONUNBUFFERED": "1"}


def log_tail(log: Path, lines: int = 15) -> list[str]:
    """The last lines of a log."""
    with open(log, encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, lines)]


def _own_ending(code: int, report: SessionReport | None) -> Ending:
    if code == EXIT_PAUSED or (code == os.EX_OK and report is not None and report.status == "paused"):
        return "paused"
    return "finished" if code == os.EX_OK else "failed"
