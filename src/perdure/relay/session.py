"""One session of a script here and now: what ``perdure run`` does."""

from __future__ import annotations

import math
import os
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.core.errors import EXIT_PAUSED
from perdure.core.limits import Limits
from perdure.core.say import say
from perdure.core.settings import Settings
from perdure.platforms.command import session_command, session_environment
from perdure.platforms.detect import detect, session_started_s
from perdure.platforms.place import Place
from perdure.platforms.processes import SessionProcess
from perdure.platforms.report import SessionReport, read_report
from perdure.platforms.supervise import Closing, Outcome, Supervisor
from perdure.relay.carry import Carrier, Carry

_GRACE_SHARE = 0.1
_GRACE_LEAST_S, _GRACE_MOST_S = 1.0, 10.0
"""How long a script that was told to stop at its deadline may take for it: a share of the window, within bounds."""

_HOSTED_LEAD_S = 60.0
"""A hosted platform kills at the deadline, so there a script is told to stop this much earlier."""


@dataclass(frozen=True)
class SessionOrder:
    """What to run, and under which limits; what is left open is the platform's.

    Attributes:
        target: A script, a notebook, or any other program.
        arguments: Its arguments.
        limits: Window and disk.
        root: Folder of runs.
        inputs: Folders in which checkpoints of earlier sessions are looked for.
        carry: How to carry a trainer that is not ours; None for a script that uses Perdure, or that need not go on.
        lead_s: How long before its window closes a script that has not stopped by itself is told to; it is killed
            in the middle of that time. None: by the platform.
    """

    target: str
    arguments: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    root: Path | None = None
    inputs: tuple[Path, ...] = ()
    carry: Carry | None = None
    lead_s: float | None = None


class Session:
    """One session on the present platform.

    Args:
        order: What to run.
        environment: Environment variables to begin with; those of this process if None.
    """

    def __init__(self, order: SessionOrder, environment: Mapping[str, str] | None = None) -> None:
        self._order = order
        self._base = dict(os.environ if environment is None else environment)
        self._settings = Settings.from_environment(self._base)
        self._place = detect(self._base)
        # flags win over the environment here: they are what the user has typed last
        self._limits = order.limits.over(self._settings.limits)
        self._root = order.root or self._settings.root
        self._inputs = order.inputs or self._settings.inputs
        self._started_s = session_started_s(self._place, self._settings)

    def run(self) -> int:
        """Run it to its end.

        Returns:
            The exit code: 0 finished; 75 paused (0 in a Kaggle batch run); else the script's own, 128 and the
            signal's number if it died of one.
        """
        with tempfile.TemporaryDirectory(prefix="perdure-session-") as folder:
            report = self._settings.report or Path(folder) / "report.json"
            if self._order.carry is not None:
                return self._run_carried(self._order.carry, report)
            command = session_command(self._order.target, self._order.arguments)
            outcome = Supervisor(closing=self._closing).run(lambda: self._start(command, report))
            return exit_code(outcome.code, read_report(report), self._place)

    def _run_carried(self, carry: Carry, report: Path) -> int:
        words = (self._order.target, *self._order.arguments)
        root = self._root or self._place.root
        with Carrier(carry, words, root=root, inputs=self._inputs or self._place.inputs) as carrier:
            arguments = (*self._order.arguments, *carrier.resume_arguments())
            command = session_command(self._order.target, arguments)
            supervisor = Supervisor(closing=lambda: self._carried_closing(carrier), poll=carrier.look)
            outcome = supervisor.run(lambda: self._start(command, report))
            carrier.look(last=True)
        code = exit_code(outcome.code, read_report(report), self._place)
        if _was_stopped(outcome):
            say(carrier.summary())
            return self._place.paused_exit_code
        return code

    def _start(self, command: tuple[str, ...], report: Path) -> SessionProcess:
        environment = session_environment(
            self._base,
            report=report,
            root=self._root.absolute() if self._root else None,
            inputs=[path.absolute() for path in self._inputs],
            window_s=self._limits.window_s,
            disk_bytes=self._limits.disk_bytes,
            started_s=self._started_s,
        )
        return SessionProcess(command, environment=environment)

    @property
    def _window_s(self) -> float:
        window_s = self._limits.over(self._place.limits).window_s
        return math.inf if window_s is None else window_s

    def _closing(self) -> Closing:
        if self._order.lead_s is not None:
            deadline_s = self._started_s + self._window_s
            return Closing(deadline_s - self._order.lead_s, deadline_s - self._order.lead_s / 2)
        lead_s = 0.0 if self._place.platform == "local" else _HOSTED_LEAD_S
        stop_at_s = self._started_s + self._window_s - lead_s
        grace_s = min(_GRACE_MOST_S, max(_GRACE_LEAST_S, _GRACE_SHARE * self._window_s))
        return Closing(stop_at_s, stop_at_s + grace_s)

    def _carried_closing(self, carrier: Carrier) -> Closing:
        """Early enough for the trainer to save, and for that file to be kept."""
        margin_s = carrier.margin_s(self._window_s)
        deadline_s = self._started_s + self._window_s
        return Closing(deadline_s - margin_s, deadline_s - margin_s / 2)


def exit_code(code: int, report: SessionReport | None, place: Place) -> int:
    """The exit code of a session.

    Args:
        code: Return code of the script's process, negative for a signal.
        report: How its runs stand.
        place: Where it ran.
    """
    if code == EXIT_PAUSED or (code == os.EX_OK and report is not None and report.status == "paused"):
        return place.paused_exit_code
    return 128 - code if code < 0 else code


def _was_stopped(outcome: Outcome) -> bool:
    """Whether a trainer that is not ours was cut off by its window or by a ``SIGTERM``, and wants to go on."""
    return outcome.window_closed or outcome.asked in (signal.SIGTERM, signal.SIGHUP)
