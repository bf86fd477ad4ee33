"""A session on this machine that outlives the process that started it.

A host is a detached process of its own: it sees a ``LocalSession`` to its end in a folder, and writes there how it
stands. The local platform and the Kaggle emulator both run their sessions this way, so there is one mechanism.

    folder/spec.json     what to run
    folder/state.json    how it stands, replaced atomically
    folder/stop, kill    whoever makes one of these files asks it to end
    folder/kept/         log.txt (followed live), report.json
    folder/output/       what it left, when it has ended
    folder/host.log      what went wrong with the host itself
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import psutil

from perdure.core.errors import NotThereError, PlatformError
from perdure.core.files import write_json
from perdure.platforms.detect import process_started_s
from perdure.platforms.local import Ending
from perdure.platforms.processes import SESSION_ID, end_marked

START_WITHIN_S = 30.0
"""A host that has not said a word after this time never will."""

_STOP, _KILL = "stop", "kill"
_WAIT_S = 0.05


@dataclass(frozen=True)
class HostSpec:
    """What a host runs.

    Attributes:
        command: Program and arguments, run in an empty working folder.
        environment: Variables that are set beside those it is started with.
        window_s: Seconds until it is killed; None for no limit.
        disk_bytes: What its working folder may hold; None for no limit.
        inputs: Folders that it sees read-only: ``{"path/below/the/input/root": "/folder"}``.
        inputs_after_s: How long after its start it sees them, as hosts sometimes mount late.
        platform: ``"local"``: it is told its limits and folders, as ``perdure run`` tells them. Any other: it is
            told nothing but ``PERDURE_INPUTS``.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    window_s: float | None = None
    disk_bytes: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    inputs_after_s: float = 0.0
    platform: str = "local"


@dataclass(frozen=True)
class HostState:
    """How a host stands.

    Attributes:
        state: ``"queued"``: not yet running. ``"ended"``: its output is in its place. ``"dead"``: the host itself
            died, and with it the session, or it never began; see ``settle``.
        how: How the session ended; empty before.
        code: Return code of its main process, negative for a signal; None before.
        started_s: When it began, seconds since 1970; None before.
        ended_s: When it ended, seconds since 1970; None before.
        output_bytes: What it left.
        notes: One sentence for each limit that could not be made real.
        pid: Process id of the host; 0 before it has said so.
        pid_started_s: When that process was started, on the scale of ``SystemClock.monotonic()``.
        mark: Carried by every process of the session, in its environment.
        temporary: Its folder for temporary files, removed when it has ended.
    """

    state: Literal["queued", "running", "ended", "dead"]
    how: Ending | Literal[""] = ""
    code: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    output_bytes: int = 0
    notes: tuple[str, ...] = ()
    pid: int = 0
    pid_started_s: float = 0.0
    mark: str = ""
    temporary: str = ""


@dataclass(frozen=True)
class HostFolder:
    """Where the files of a host are.

    Attributes:
        folder: Its folder.
    """

    folder: Path

    @property
    def spec(self) -> Path:
        """What it runs."""
        return self.folder / "spec.json"

    @property
    def state(self) -> Path:
        """How it stands."""
        return self.folder / "state.json"

    @property
    def working(self) -> Path:
        """Working folder of the session."""
        return self.folder / "working"

    @property
    def kept(self) -> Path:
        """What is kept of the session beside its output."""
        return self.folder / "kept"

    @property
    def log(self) -> Path:
        """What it prints, as it prints it."""
        return self.kept / "log.txt"

    @property
    def output(self) -> Path:
        """What it left in its working folder; there when it has ended."""
        return self.folder / "output"

    @property
    def trouble(self) -> Path:
        """What went wrong with the host itself."""
        return self.folder / "host.log"


def start(folder: Path, spec: HostSpec, base: Mapping[str, str] | None = None) -> None:
    """Start a host; it goes on when this process dies.

    Args:
        folder: Its folder; made if need be. A folder is good for one host only.
        spec: What to run.
        base: Variables to begin with; those of this process if None.

    Raises:
        PlatformError: A host was started in this folder before, or it cannot be started.
    """
    host = HostFolder(folder.absolute())
    host.folder.mkdir(parents=True, exist_ok=True)
    try:
        with open(host.spec, "x", encoding="utf-8") as file:
            json.dump({"format": 1, **asdict(spec)}, file, indent=1)
    except FileExistsError:
        raise PlatformError(f"a session was started in {host.folder} before", hint="take a new folder") from None
    except OSError as error:
        raise PlatformError(f"cannot write {host.spec}: {error.strerror}") from error
    _spawn(host, dict(os.environ if base is None else base))


def read(folder: Path) -> HostState:
    """How a host stands.

    Raises:
        NotThereError: No host was started in this folder.
    """
    host = HostFolder(folder)
    state = read_state(host)
    if state is None:
        return _silent(host)
    if state.state in ("queued", "running") and not _is_alive(state):
        state = read_state(host) or state  # it may have ended properly in between
        if state.state in ("queued", "running"):
            return HostState(**{**_values(state), "state": "dead"})
    return state


def ask_stop(folder: Path) -> None:
    """Ask a session to save and stop, as ``SIGTERM`` does; also good before it runs."""
    (folder / _STOP).touch()


def kill(folder: Path, wait_s: float = 20.0) -> HostState:
    """End a session hard, without notice.

    Args:
        folder: Of the host.
        wait_s: How long to wait for its end.

    Returns:
        How it stands then.
    """
    (folder / _KILL).touch()
    until_s = time.monotonic() + wait_s
    state = read(folder)
    while state.state in ("queued", "running") and time.monotonic() < until_s:
        time.sleep(_WAIT_S)
        state = read(folder)
    return settle(folder) if state.state == "dead" else state


def settle(folder: Path) -> HostState:
    """Clear up after a host that died: end what is left of its session, and keep what that wrote as its output.

    Does nothing if the host is not dead. A host that never said a word cannot begin any more after this.
    """
    state, host = read(folder), HostFolder(folder)
    if state.state != "dead":
        return state
    (folder / _KILL).touch()
    if state.mark:
        end_marked(state.mark)
    if state.temporary:
        shutil.rmtree(state.temporary, ignore_errors=True)
    if not host.output.exists():
        with contextlib.suppress(FileNotFoundError):  # it never had one, or somebody else was faster
            os.rename(host.working, host.output)
    return read(folder)


def read_state(host: HostFolder) -> HostState | None:
    """What the host itself wrote last; None if it has written nothing."""
    try:
        values = json.loads(host.state.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    known = {each.name for each in fields(HostState)}
    return HostState(
        **{name: value for name, value in values.items() if name in known} | {"notes": tuple(values["notes"])}
    )


def write_state(host: HostFolder, state: HostState) -> None:
    """Put down how it stands."""
    write_json(host.state, {"format": 1, **asdict(state)})


def read_spec(host: HostFolder) -> HostSpec:
    """What it is to run."""
    values = json.loads(host.spec.read_text(encoding="utf-8"))
    values.pop("format")
    return HostSpec(**{**values, "command": tuple(values["command"])})


def is_asked(host: HostFolder, what: Literal["stop", "kill"]) -> bool:
    """Whether somebody asked the session to end."""
    return (host.folder / what).exists()


def _values(state: HostState) -> dict[str, Any]:
    return {each.name: getattr(state, each.name) for each in fields(state)}


def _spawn(host: HostFolder, base: dict[str, str]) -> None:
    """Start the process and wait until it has said that it is there."""
    base.pop(SESSION_ID, None)  # it is not to end with the session that starts it
    try:
        with open(host.trouble, "ab") as trouble:
            done = subprocess.run(
                [sys.executable, "-m", "perdure.platforms.hosting", str(host.folder)],
                env=base,
                stdin=subprocess.DEVNULL,
                stdout=trouble,
                stderr=trouble,
                start_new_session=True,
                timeout=START_WITHIN_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlatformError(f"cannot start a session in {host.folder}: {error}") from error
    if done.returncode != 0:
        raise PlatformError(f"the host of a session ended with code {done.returncode}", hint=f"see {host.trouble}")


def _silent(host: HostFolder) -> HostState:
    """A host that has written nothing yet."""
    try:
        age_s = time.time() - host.spec.stat().st_mtime
    except FileNotFoundError:
        raise NotThereError(f"there is no session in {host.folder}") from None
    return HostState("dead" if age_s > START_WITHIN_S else "queued")


def _is_alive(state: HostState) -> bool:
    try:
        if psutil.Process(state.pid).status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process_started_s(state.pid) - state.pid_started_s) < 0.5
    except (OSError, psutil.Error, IndexError):
        return False
