"""The platform ``local``: sessions of a relay as processes on this machine, with windows and read-only inputs.

    folder/sessions/<slug>/   one session: see ``perdure.platforms.host``
    folder/inputs/datasets/<owner>/<slug>/, inputs/competitions/<slug>/, inputs/models/...
                              what sessions can be given beside earlier outputs

A session goes on when the process that submitted it ends. It does not outlive the machine: what it had written
until then is its output.
"""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError, NotThereError, PlatformError, RefusedError, UncertainError
from perdure.platforms import host
from perdure.platforms.host import HostFolder, HostSpec, HostState
from perdure.platforms.protocol import (
    Accelerator,
    Handle,
    Log,
    Observation,
    OutputFile,
    Pace,
    Progress,
    Quota,
    SessionState,
    Stopping,
    Submission,
)
from perdure.platforms.source import CARGO_NAME, build_source

MACHINE = Accelerator("machine", "whatever this machine has", None)
NONE = Accelerator("none", "no accelerator", None)

WINDOW_S = 12 * 3600.0
PACE = Pace(poll_s=2.0, settle_s=2.0, lag_s=5.0, retry_s=2.0, retry_most_s=60.0)
"""Nothing is far away here; a folder that is not there after a moment will not come."""

INLINE_BYTES = 500_000
"""A larger bundle lies beside the source, as it does on Kaggle."""

_COPY_BYTES = 4 << 20


class LocalPlatform:
    """Sessions on this machine.

    Args:
        folder: Where they work and what they leave is kept; made if it is not there.
        window_s: The longest window.
        disk_bytes: What a session may write; None for no limit.
        pace: How often to look.
    """

    name = "local"

    def __init__(
        self, folder: Path, *, window_s: float = WINDOW_S, disk_bytes: int | None = None, pace: Pace = PACE
    ) -> None:
        self.folder = folder.absolute()
        self.pace = pace
        self.accelerators: Sequence[Accelerator] = (MACHINE, NONE)
        self._window_s = window_s
        self._disk_bytes = disk_bytes

    def window_s(self, accelerator: str) -> float:
        """The longest window, whatever the accelerator."""
        return self._window_s

    def account(self) -> str:
        """The user of this machine."""
        try:
            return getpass.getuser()
        except (OSError, KeyError, ImportError):  # a container without an entry for its user
            return "local"

    def quota(self) -> tuple[Quota, ...]:
        """Nothing is counted here."""
        return ()

    def submit(self, submission: Submission) -> Handle:
        """Start a session. A death anywhere in it leaves none, or one that ``find`` finds.

        Raises:
            RefusedError: One of its inputs is not there.
            PlatformError: It cannot be started: no room, no right to write.
            UncertainError: Its host did not say that it is there; ``find`` and ``observe`` tell.
        """
        inputs = self._inputs(submission)
        folder = self._session(submission.slug)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            cargo = self._cargo(submission, folder, inputs)
            source = folder / "source.py"
            source.write_text(
                build_source(submission.order, cargo, CARGO_NAME, str(submission.order["cargo"]["digest"])),
                encoding="utf-8",
            )
        except OSError as error:
            raise PlatformError(f"cannot prepare a session in {folder}: {error}") from error
        environment = {"CUDA_VISIBLE_DEVICES": ""} if submission.accelerator == NONE.name else {}
        spec = HostSpec(
            (sys.executable, str(source)),
            environment=environment,
            window_s=submission.window_s,
            disk_bytes=self._disk_bytes,
            inputs=inputs,
        )
        self._start(folder, spec)
        return self._handle(submission.slug)

    def find(self, slug: str) -> Handle | None:
        """The session of this name; None if it was not started."""
        return self._handle(slug) if HostFolder(self._session(slug)).spec.exists() else None

    def observe(self, handle: Handle) -> Observation:
        """How it stands. One whose host died is ended here, for good."""
        state = host.settle(Path(handle.ref))
        return Observation(_state(state), state.how or state.state, _message(state))

    def logs(self, handle: Handle) -> Log:
        """What it has printed so far."""
        state = host.read(Path(handle.ref))
        try:
            text = HostFolder(Path(handle.ref)).log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            text = ""
        return Log(tuple(text.splitlines()), state.state in ("ended", "dead"))

    def files(self, handle: Handle) -> tuple[OutputFile, ...]:
        """What it left; empty before its end."""
        output = self._output(handle)
        if host.read(Path(handle.ref)).state in ("queued", "running") or not output.is_dir():
            return ()
        paths = sorted(path for path in output.rglob("*") if path.is_file() and not path.is_symlink())
        return tuple(OutputFile(path.relative_to(output).as_posix(), path.stat().st_size) for path in paths)

    def fetch(
        self, handle: Handle, names: Sequence[str], folder: Path, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Copy files of its output to a folder; a file has its name only when it is complete."""
        output = self._output(handle)
        sources = [output / name for name in names]
        missing = next((path for path in sources if not path.is_file()), None)
        if missing is not None:
            raise NotThereError(f"there is no file {missing}")
        whole, done = sum(path.stat().st_size for path in sources), 0
        for name, source in zip(names, sources, strict=True):
            done = _copy(source, folder / name, done, whole, progress)
        return tuple(folder / name for name in names)

    def stop(self, handle: Handle, *, now: bool) -> Stopping:
        """Let it save and stop, as ``SIGTERM`` does; with ``now`` kill it: what it has written stays."""
        folder = Path(handle.ref)
        if not now:
            host.ask_stop(folder)
            return Stopping(True, "it was asked to save and stop")
        state = host.kill(folder)
        return Stopping(state.state in ("ended", "dead"), "it was killed; what it had saved stays")

    def _start(self, folder: Path, spec: HostSpec) -> None:
        try:
            host.start(folder, spec)
        except PlatformError as error:
            if HostFolder(folder).spec.exists():  # the folder is used now, and its host may have begun all the same
                raise UncertainError(error.what, hint=error.hint) from error
            raise

    def _session(self, slug: str) -> Path:
        return self.folder / "sessions" / slug

    def _handle(self, slug: str) -> Handle:
        return Handle(self.name, str(self._session(slug)), 1)

    def _output(self, handle: Handle) -> Path:
        return HostFolder(Path(handle.ref)).output

    def _inputs(self, submission: Submission) -> dict[str, str]:
        """Folders that it sees, by their places below the input root, which are laid out as on Kaggle."""
        inputs = {
            f"notebooks/{self.name}/{Path(each.ref).name}": self._output(each) for each in submission.sessions
        }
        places = [
            *(f"datasets/{name}" for name in submission.datasets),
            *(f"competitions/{name}" for name in submission.competitions),
            *(f"models/{name}" for name in submission.models),
        ]
        inputs |= {place: self.folder / "inputs" / place for place in places}
        for place, folder in inputs.items():
            if not folder.is_dir():
                raise RefusedError(
                    f"the input {place} is not there",
                    code="sources",
                    hint=f"it would have to be the folder {folder}",
                )
        return {place: str(folder) for place, folder in inputs.items()}

    def _cargo(self, submission: Submission, folder: Path, inputs: dict[str, str]) -> bytes | None:
        """The bundle, where it is to travel in the source; else it becomes an input."""
        if submission.cargo.stat().st_size <= INLINE_BYTES:
            return submission.cargo.read_bytes()
        place = folder / "cargo"
        place.mkdir(exist_ok=True)
        shutil.copyfile(submission.cargo, place / CARGO_NAME)
        inputs[f"datasets/{self.name}/{submission.slug}-code"] = str(place)
        return None


def from_place(place: Mapping[str, Any]) -> LocalPlatform:
    """The platform of these settings.

    Args:
        place: ``folder``; where wanted ``window_s``, ``disk_bytes`` and ``pace``, fields of ``Pace``.

    Raises:
        ConfigError: The folder is missing, or a setting is wrong.
    """
    try:
        disk_bytes = place.get("disk_bytes")
        return LocalPlatform(
            Path(place["folder"]),
            window_s=float(place.get("window_s") or WINDOW_S),
            disk_bytes=None if disk_bytes is None else int(disk_bytes),
            pace=Pace(**place["pace"]) if place.get("pace") else PACE,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the local platform cannot be set up from {dict(place)!r}: {error!r}") from error


def _state(state: HostState) -> SessionState:
    if state.state in ("queued", "running"):
        return "queued" if state.state == "queued" else "running"
    if state.how in ("finished", "paused"):
        return "complete"
    return "stopped" if state.how == "killed" else "failed"


def _message(state: HostState) -> str:
    if state.state == "dead":
        return "the process that watched over it died, or the machine went down"
    return {
        "failed": f"it ended with code {state.code}",
        "window": "it was killed at the end of its window",
        "disk": "it was killed when it outgrew its disk budget",
        "killed": "it was killed",
    }.get(state.how, "")


def _copy(source: Path, target: Path, done: int, whole: int, progress: Progress | None) -> int:
    """Copy a file, and give the bytes that are there then."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(source, "rb") as reader, open(partial, "wb") as writer:
            while block := reader.read(_COPY_BYTES):
                writer.write(block)
                done += len(block)
                if progress:
                    progress(done, whole)
            writer.flush()
            os.fsync(writer.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return done
