"""One session of a relay, seen from inside: look at what is there, run the script, say how it ended."""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from perdure.core import settings as names
from perdure.core.clock import SystemClock
from perdure.core.errors import PerdureError
from perdure.core.limits import Limits
from perdure.core.say import say, warn
from perdure.core.settings import Settings
from perdure.platforms.command import NOTEBOOK_OUTPUT, is_notebook
from perdure.platforms.detect import detect, process_started_s, session_started_s
from perdure.platforms.place import Place
from perdure.platforms.report import SessionReport, read_report
from perdure.relay.inside.beat import platform_session, run_facts
from perdure.relay.inside.cards import check_accelerator
from perdure.relay.inside.ending import Ending, judge_end
from perdure.relay.inside.inputs import Resumable, await_expected
from perdure.relay.inside.marker import Marker
from perdure.relay.inside.mirror import Mirror, bring_from_mirror
from perdure.relay.inside.order import InsideOrder, read_order
from perdure.relay.inside.project import ProjectCopies
from perdure.relay.inside.refusing import Refused
from perdure.relay.inside.watching import Watcher
from perdure.relay.session import Session, SessionOrder

_VERSIONS = ("perdure", "torch", "tensorflow", "keras", "numpy", "transformers", "lightning", "pytorch-lightning")

_CLOSING_SHARE = 0.05
"""A script that ends in the last part of its window was ended by that."""


def work(path: Path) -> int:
    """Do what the order in a file says; the bundle is unpacked beside it.

    Returns:
        The exit code of the session: 0 unless the script failed.
    """
    order = read_order(path)
    inside = InsideSession(order, scratch=path.parent, working=Path.cwd())
    return inside.run()


class _Asked(Exception):
    """The session was asked to stop before its script began."""


class InsideSession:
    """A session.

    Args:
        order: What it is to do.
        scratch: Folder of the unpacked bundle.
        working: The working folder; what is in it at the end is the output.
    """

    def __init__(self, order: InsideOrder, scratch: Path, working: Path) -> None:
        self._order = order
        self._scratch = scratch
        self._working = working
        self._clock = SystemClock()
        self._settings = Settings.from_environment()
        self._place = detect()
        self._hosted = self._place.output is not None and working.is_relative_to(self._place.output)
        self._started_s = self._session_started_s()
        self._report = self._settings.report or scratch / "report.json"
        self._may_stop = True
        self._asked = False
        self._marking = threading.RLock()  # three threads know something that belongs into it
        self._marker = Marker(
            relay=order.relay,
            session=order.session,
            slug=order.slug,
            started_s=self._clock.time() - (self._clock.monotonic() - self._started_s),
            accelerator={"asked": vars(order.accelerator), "found": None},
            environment=_environment_facts(self._place),
        )

    def run(self) -> int:
        """Run it to its end, which the marker tells."""
        signal.signal(signal.SIGTERM, self._asked_to_stop)
        self._note(status="starting")
        try:
            ending = self._run()
        except Refused as refused:
            ending = Ending("refused", str(refused))
        except _Asked:
            ending = Ending("paused", "asked to stop before the script began")
        except PerdureError as error:
            ending = Ending("failed", error.what + (f" ({error.hint})" if error.hint else ""))
        self._may_stop = False
        self._end(ending)
        return ending.exit_code

    def _run(self) -> Ending:
        found = check_accelerator(self._order.accelerator, self._place.platform)
        self._note(accelerator={**self._marker.accelerator, "found": found or None})
        roots = self._input_roots()
        brought = self._scratch / "mirrored"
        resumed = await_expected(
            self._order.expects,
            roots,
            self._order.mount_wait_s,
            lambda lacking: bring_from_mirror(self._order, lacking, brought),
            older=self._order.older,
        )
        self._note(status="running", resumed=tuple(item.as_dict() for item in resumed))
        roots += [brought] if brought.is_dir() else []
        return self._run_script(roots, resumed)

    def _run_script(self, roots: Sequence[Path], resumed: Sequence[Resumable]) -> Ending:
        environment = self._session_environment()
        limits = self._settings.limits.over(self._place.limits) if self._hosted else self._settings.limits
        mirror = Mirror(
            self._order,
            self._working / "perdure",
            [item.folder for item in resumed],
            self._note_mirror,
            disk_bytes=limits.disk_bytes,
        )
        deadline_s = self._started_s + self._order.window_s
        copies = ProjectCopies(self._scratch / "project", self._working)
        copies.lay_out()
        watcher = Watcher(self._order, self._report, self._working, deadline_s, self._beat, copies.count)
        target = copies.place_of(self._order.target)
        session = Session(self._session_order(target, roots), environment)
        watcher.start()
        mirror.start()
        self._may_stop = False  # from here on the script is told
        try:
            code = session.run()
        finally:
            watcher.finish()
            mirror.finish()
            copies.take_back()
        report = read_report(self._report)
        self._note_runs(report)
        self._note(exit_code=code)
        if watcher.afresh:
            return Ending("refused", watcher.afresh)
        lead_s = max(self._order.margin_s, _CLOSING_SHARE * self._order.window_s)
        return judge_end(
            code,
            report,
            window_closed=self._clock.monotonic() >= deadline_s - lead_s,
            unfinished=[item.expected.run for item in resumed if not item.finished],
        )

    def _session_order(self, target: Path, roots: Sequence[Path]) -> SessionOrder:
        return SessionOrder(
            target=str(target),
            arguments=self._order.arguments,
            limits=Limits(window=self._order.window_s),
            root=self._working / "perdure",
            inputs=tuple(roots),
            lead_s=self._order.margin_s / 2,
        )

    def _session_environment(self) -> dict[str, str]:
        """The user's variables over the platform's, and what the session tells over both."""
        base = {**os.environ, **self._order.environment}
        library, *others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        given = self._order.environment.get("PYTHONPATH", "").split(os.pathsep)
        paths = [library, *given, str(self._working), str(self._scratch / "project"), *others]
        told = {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
            names.MARGIN: f"{self._order.margin_s:.3f} s",
            names.REPORT: str(self._report),
            names.STARTED: f"{self._started_s:.3f}",
        }
        if is_notebook(self._order.target):
            told[NOTEBOOK_OUTPUT] = str(self._working / f"{Path(self._order.target).stem}.executed.ipynb")
        return {**base, **told}

    def _input_roots(self) -> list[Path]:
        return [path.absolute() for path in self._settings.inputs or self._place.inputs]

    def _session_started_s(self) -> float:
        """Of the container on a hosted platform; elsewhere of the process that the platform has started."""
        if self._hosted or self._settings.started_s is not None:
            return session_started_s(self._place, self._settings)
        try:
            return process_started_s(os.getppid())
        except OSError:
            return process_started_s(os.getpid())

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        if self._may_stop:
            raise _Asked
        self._asked = True  # while the script was being started: nobody has told it

    def _beat(self, report: SessionReport | None) -> None:
        self._note_runs(report)
        if self._asked:
            self._asked = False
            os.kill(os.getpid(), signal.SIGTERM)

    # ---------------------------------------------------------------- the marker

    def _end(self, ending: Ending) -> None:
        ended_s = self._clock.time()
        seconds = self._clock.monotonic() - self._started_s if self._order.accelerator.resource else 0.0
        (warn if ending.status in ("failed", "refused") else say)(
            f"session {self._order.session} of the relay {self._order.relay} is {ending.status}"
            + (f": {ending.reason}" if ending.reason else "")
        )
        self._note(status=ending.status, reason=ending.reason, ended_s=ended_s, accelerator_s=round(seconds, 1))

    def _note_runs(self, report: SessionReport | None) -> None:
        facts = tuple(run_facts(report, self._working))
        if facts != self._marker.report:
            self._note(report=facts)

    def _note_mirror(self, facts: dict[str, Any]) -> None:
        self._note(mirror=facts)

    def _note(self, **what: Any) -> None:
        """Put something into the marker. A disk that is full must not end a training."""
        with self._marking:
            self._marker = replace(self._marker, **what)
            try:
                self._marker.write(self._working)
            except OSError as error:
                warn(f"the marker of the session cannot be written: {error}")


def _environment_facts(place: Place) -> dict[str, Any]:
    """What a person would ask first when something is odd; never a variable that could be a secret."""
    return {
        "platform": place.platform,
        "platform_session": platform_session(),
        "image": os.environ.get("KAGGLE_DOCKER_IMAGE", ""),
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count(),
        "versions": {name: found for name in _VERSIONS if (found := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
