"""The present execution of the script: one window, one stop flag, one exit code for all its runs."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core.clock import Clock, SystemClock
from perdure.core.files import write_json
from perdure.core.limits import Limits, Window
from perdure.core.say import warn
from perdure.core.settings import Settings
from perdure.platforms.detect import detect, session_started_s
from perdure.platforms.place import Place
from perdure.training.notebook import skip_later_cells
from perdure.training.stop import StopFlag


@dataclass
class Session:
    """What all runs of one process share.

    Attributes:
        place: The platform.
        settings: What the environment says.
        clock: Where "now" comes from.
        started_s: When the session began, on that clock.
        stop: Whether it was asked to stop.
    """

    place: Place
    settings: Settings
    clock: Clock
    started_s: float
    stop: StopFlag = field(default_factory=StopFlag)
    _records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _hooked: bool = False
    _report_failed: bool = False

    def limits(self, asked: Limits | None) -> Limits:
        """Limits of a run: the environment's, over the script's, over the platform's."""
        return self.settings.limits.over((asked or Limits()).over(self.place.limits))

    def window(self, limits: Limits) -> Window:
        """The session's window under these limits."""
        length_s = limits.window_s
        if length_s is None:
            return Window(self.clock, self.started_s)
        return Window(self.clock, self.started_s, length_s)

    def record(self, run: Mapping[str, Any]) -> None:
        """Note how a run stands, and write the session's report where one was asked for."""
        self._records[str(run["folder"])] = run
        if run["status"] == "paused" and not self._hooked:
            self._hooked = True
            _leave_with(self.place.paused_exit_code)
            if self.place.mode == "batch":
                skip_later_cells(f"{run['name']} is paused ({run['reason']}) and goes on in another session")
        if self.settings.report is None:
            return
        report = {"version": 1, "pid": os.getpid(), "status": self.status, "runs": list(self._records.values())}
        try:
            write_json(self.settings.report, report)
        except OSError as error:  # whoever reads it must not cost the user a training
            if not self._report_failed:
                warn(f"the session report cannot be written: {error}")
            self._report_failed = True

    @property
    def status(self) -> str:
        """Paused if any of its runs is; then failed, running, finished."""
        found = {str(run["status"]) for run in self._records.values()}
        return next((s for s in ("paused", "failed", "running") if s in found), "finished")


_session: Session | None = None


def current_session() -> Session:
    """The session of this process, made when first asked for.

    Raises:
        ConfigError: The environment holds nonsense.
    """
    global _session  # noqa: PLW0603  # one per process is what it means
    if _session is None:
        settings = Settings.from_environment()
        place = detect()
        _session = Session(place, settings, SystemClock(), session_started_s(place, settings))
    return _session


def _leave_with(code: int) -> None:
    """Have the process end with an exit code, though ``with Run(...)`` swallowed the pause.

    An error of the script keeps its own exit code.
    """
    if code == 0 or "ipykernel" in sys.modules:
        return

    def paused() -> int | None:
        failed = getattr(sys, "last_value", None) is not None
        return code if _session is not None and _session.status == "paused" and not failed else None

    _run_first_at_exit(paused)


def do_not_wait_at_exit() -> None:
    """A thread waits for a card that never answers: do not let the end of the process wait for it as well.

    Python's exit hooks run; those of the CUDA libraries do not.
    """
    if "ipykernel" not in sys.modules:
        _run_first_at_exit(lambda: 1)


def _run_first_at_exit(exit_code: Callable[[], int | None]) -> None:
    """Have the process end with an exit code, if there is one then, after all other hooks.

    The hook is registered once all threads are joined, so that it is the last one registered and therefore runs
    first; it runs the others itself and ends the process.
    """

    def leave() -> None:
        atexit.unregister(leave)
        code = exit_code()
        if code is None:
            return
        atexit._run_exitfuncs()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)

    threading._register_atexit(lambda: atexit.register(leave))  # type: ignore[attr-defined]
