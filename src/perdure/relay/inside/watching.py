"""Watches a session's script from beside it: says how it stands, keeps the marker fresh, stops a wrong start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from perdure.core.clock import SystemClock
from perdure.core.say import warn
from perdure.platforms.report import SessionReport, read_report
from perdure.relay.inside.beat import beat
from perdure.relay.inside.clutter import FILES_MOST, clutter
from perdure.relay.inside.order import InsideOrder

_BEATS = 1000
_LEAST_S, _MOST_S = 1.0, 30.0
"""A window has about a thousand beats, within bounds."""


class Watcher(threading.Thread):
    """A thread that never stops a training, but for one reason: a run that began afresh though it must not.

    Args:
        order: What the session is to do.
        report: File in which its runs say how they stand.
        working: The working folder.
        deadline_s: When its window closes, on the scale of ``SystemClock.monotonic()``.
        seen: Called at each beat with how the runs stand.
        brought: Files and folders in the working folder that are taken away at the end.
        stop: Asks the script to stop.

    Attributes:
        afresh: Why the script was stopped; empty if it was not.
    """

    def __init__(
        self,
        order: InsideOrder,
        report: Path,
        working: Path,
        deadline_s: float,
        seen: Callable[[SessionReport | None], None],
        brought: int = 0,
        stop: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        super().__init__(name="perdure-watch", daemon=True)
        self.afresh = ""
        self._order = order
        self._report = report
        self._working = working
        self._deadline_s = deadline_s
        self._seen = seen
        self._brought = brought
        self._stop_script = stop
        self._clock = SystemClock()
        self._over = threading.Event()
        self._complained: set[str] = set()
        self._cluttered = ""
        self._expects: Mapping[str, int] = {item.run: item.step for item in order.expects}

    @property
    def every_s(self) -> float:
        """Seconds between two beats."""
        return min(_MOST_S, max(_LEAST_S, self._order.window_s / _BEATS))

    def run(self) -> None:
        """Beat until the end; trouble is said once and costs nothing else."""
        while not self._over.wait(self.every_s):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - it is telemetry
                self._complain(error)

    def look(self) -> None:
        """One beat."""
        report = read_report(self._report)
        now = self._clock.monotonic()
        line = beat(
            self._order.session, report, self._working, now_s=self._clock.time(), left_s=self._deadline_s - now
        )
        os.write(1, line.encode() + b"\n")  # in one piece: the script writes to the same place
        self._check_start(report)
        self._seen(report)
        self._check_clutter()

    def finish(self) -> None:
        """No further beat; the last one may still be on its way."""
        self._over.set()
        self.join(2.0)

    def _check_start(self, report: SessionReport | None) -> None:
        """A run that was to go on and began at 0 would burn a window for nothing."""
        for run in report.runs if report else ():
            step = self._expects.get(run.name)
            if not step or self.afresh or run.resumed_from is not None or run.step >= step:
                continue
            if run.status == "running":
                self.afresh = f"the run {run.name!r} began afresh, though its checkpoint of step {step} is there"
                warn(f"{self.afresh}: the script is told to stop")
                self._stop_script()

    def _check_clutter(self) -> None:
        """Said early and once: at the end of a session it is too late."""
        if not self._cluttered:
            self._cluttered = clutter(self._working, FILES_MOST + self._brought)
            if self._cluttered:
                warn(self._cluttered)

    def _complain(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text not in self._complained:
            self._complained.add(text)
            warn(f"the session cannot be watched as it should: {text}; training goes on")
