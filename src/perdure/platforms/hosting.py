"""The host process: ``python -m perdure.platforms.hosting FOLDER``, started by ``perdure.platforms.host``."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

from perdure.core.errors import PerdureError
from perdure.platforms.detect import process_started_s
from perdure.platforms.host import HostFolder, HostSpec, HostState, is_asked, read_spec, write_state
from perdure.platforms.local import LocalLimits, LocalSession, SessionEnd, SessionFolders
from perdure.platforms.processes import SESSION_ID

_LOOK_EVERY_S = 0.05
_CODE_NOT_STARTED = 127  # what shells say of a program that is not there


def main(folder: Path) -> int:
    """Leave the starter, say that it is there, and see the session to its end.

    Returns:
        To the starter: 0 when the host is there and has said so.
    """
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return 0 if os.read(reading, 1) else 1
    os.close(reading)
    host = HostFolder(folder)
    mark, temporary = secrets.token_hex(8), tempfile.mkdtemp(prefix="session-")
    pid = os.getpid()
    state = HostState("queued", pid=pid, pid_started_s=process_started_s(pid), mark=mark, temporary=temporary)
    write_state(host, state)
    os.write(writing, b"1")
    os.close(writing)
    try:
        _host(host, state)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return 0


def _host(host: HostFolder, state: HostState) -> None:
    _heed_signals(host)
    if is_asked(host, "kill"):
        write_state(host, replace(state, state="ended", how="killed", code=-signal.SIGKILL, ended_s=time.time()))
        return
    state = replace(state, started_s=time.time())
    try:
        spec = read_spec(host)
        session = _start(host, spec, state)
    except (PerdureError, OSError) as error:
        _note(host, f"the session cannot be started: {error}")
        ended = replace(state, state="ended", how="failed", code=_CODE_NOT_STARTED, ended_s=time.time())
        host.output.mkdir(exist_ok=True)
        write_state(host, ended)
        return
    write_state(host, replace(state, state="running"))
    end = _watch(host, session, spec)
    shutil.rmtree(state.temporary, ignore_errors=True)
    write_state(host, _ended(state, end))


def _start(host: HostFolder, spec: HostSpec, state: HostState) -> LocalSession:
    source = _sources(host)
    source.mkdir(exist_ok=True)
    if not spec.inputs_after_s:
        _mount(spec, source)
    environment = {**os.environ, **spec.environment, SESSION_ID: state.mark, "TMPDIR": state.temporary}
    folders = SessionFolders(host.working, host.folder / "input", source, host.kept, host.output)
    limits = LocalLimits(spec.window_s, spec.disk_bytes)
    return LocalSession(spec.command, folders, limits, environment, platform=spec.platform)


def _sources(host: HostFolder) -> Path:
    return host.folder / "sources"


def _mount(spec: HostSpec, source: Path) -> None:
    for place, folder in spec.inputs.items():
        shutil.copytree(folder, source / place, symlinks=True, copy_function=_link)


def _watch(host: HostFolder, session: LocalSession, spec: HostSpec) -> SessionEnd:
    stopped, mounted = False, not spec.inputs_after_s
    while session.poll():
        if not mounted and session.elapsed_s >= spec.inputs_after_s:
            mounted = True
            try:
                _mount(spec, _sources(host))
            except OSError as error:
                _note(host, f"the inputs cannot be mounted: {error}")
        if is_asked(host, "kill"):
            session.kill()
        elif not stopped and is_asked(host, "stop"):
            stopped = True
            session.stop()
        time.sleep(_LOOK_EVERY_S)
    return session.finish()


def _ended(state: HostState, end: SessionEnd) -> HostState:
    return replace(
        state,
        state="ended",
        how=end.how,
        code=end.code,
        ended_s=time.time(),
        output_bytes=end.output_bytes,
        notes=end.notes,
    )


def _link(source: str, target: str) -> None:
    """The same file under another name; a copy where the file systems differ."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _note(host: HostFolder, text: str) -> None:
    host.kept.mkdir(parents=True, exist_ok=True)
    with open(host.log, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def _heed_signals(host: HostFolder) -> None:
    """Whoever ends this process ends the session, properly."""

    def end(number: int, frame: FrameType | None) -> None:
        (host.folder / "kill").touch()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
