"""Asks frameworks in child processes what they see, and lets them compute: a crash or a hang is then an answer.

CUDA is never initialised in this process, and no framework is loaded. A child is timed stage by stage; one that
hangs is killed with everything it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from perdure.core.intervals import format_duration
from perdure.hardware.probed import Probe, probe_of

FRAMEWORKS = ("torch", "tensorflow", "keras")

CHILD = Path(__file__).with_name("_probe_child.py")
"""The program that asks. It is given the framework's name."""

STAGE_LIMIT_S = 60.0
"""How long a stage may take. The first kernel also loads the driver's libraries: some seconds."""

IMPORT_LIMIT_S = 150.0
"""The same for an import: from a cold disk of a hosted notebook TensorFlow takes more than half a minute."""

_LOOK_EVERY_S = 0.1
_END_WITHIN_S = 5.0
_TAIL_BYTES = 4000


def probe(
    framework: str,
    *,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    limit_s: float = STAGE_LIMIT_S,
    import_limit_s: float = IMPORT_LIMIT_S,
    stop: threading.Event | None = None,
) -> Probe:
    """Ask one framework.

    Args:
        framework: One of ``FRAMEWORKS``.
        environment: Of the child; this process's own by default.
        command: Program and arguments, to which the framework's name is added; ``CHILD`` under this Python if None.
        limit_s: Seconds that a stage may take.
        import_limit_s: The same for the import.
        stop: Set by another thread to end it early.
    """
    begun_s = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        try:
            child = _start([*(command or (sys.executable, "-P", str(CHILD))), framework], environment, errors)
        except OSError as error:
            return Probe(framework, trouble=f"cannot start a process: {error.strerror}", trouble_code="error")
        try:
            answer, hung_s = _read(child, (limit_s, import_limit_s), stop or threading.Event())
        finally:
            gone = _end(child)
        if hung_s is not None:
            answer = _hung(answer, hung_s, gone)
        elif not answer.pop("done", False) and not answer.get("error"):
            answer = _died(answer, child.returncode, _tail(errors))
    return probe_of(framework, answer, time.monotonic() - begun_s)


def _start(
    command: Sequence[str], environment: Mapping[str, str] | None, errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,  # a group of its own: Ctrl-C is for this process, and all of it can be killed
    )


def _read(
    child: subprocess.Popen[bytes], limits_s: tuple[float, float], stop: threading.Event
) -> tuple[dict[str, Any], float | None]:
    """All that it said, put together, and for how long it had been silent if it did not end by itself."""
    answer: dict[str, Any] = {"devices": {}}
    since_s, limit_s = time.monotonic(), limits_s[1]
    for line in _lines(child):
        if line is None:
            if stop.is_set() or time.monotonic() > since_s + limit_s:
                return answer, time.monotonic() - since_s
            continue
        facts = _facts(line)
        if "stage" in facts:
            since_s = time.monotonic()
            limit_s = limits_s[str(facts["stage"]).startswith("importing")]
        _add(answer, facts)
    return answer, None


def _lines(child: subprocess.Popen[bytes]) -> Iterator[bytes | None]:
    """Each line, and None now and then while there is none; ends with the process, whoever else holds its pipe."""
    assert child.stdout is not None
    pipe, rest = child.stdout.fileno(), b""
    while True:
        # not reaped before the end, so that its id, and that of its group, cannot be given to another
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        readable = bool(select.select([pipe], [], [], 0 if ended else _LOOK_EVERY_S)[0])
        chunk = os.read(pipe, 65536) if readable else b""
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if ended and not chunk:
            return
        if not chunk:
            if readable:  # it closed its end and lives on
                time.sleep(_LOOK_EVERY_S)
            yield None


def _facts(line: bytes) -> dict[str, Any]:
    """A line of the answer; empty for what a framework printed by the way."""
    try:
        facts = json.loads(line)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _add(answer: dict[str, Any], facts: dict[str, Any]) -> None:
    place = facts.get("device")
    if place is None:
        answer.update(facts)
        return
    if "stage" in facts:
        answer["stage"] = facts.pop("stage")
    answer["devices"].setdefault(place, {}).update(facts)


def _end(child: subprocess.Popen[bytes]) -> bool:
    """Kill what is left of it; whether it is gone. A process that waits for a broken driver cannot be killed."""
    import psutil

    family = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(child.pid).children(recursive=True)
    os.killpg(child.pid, signal.SIGKILL)
    for process in family:  # those in groups of their own
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert child.stdout is not None
    child.stdout.close()
    try:
        child.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _hung(answer: dict[str, Any], silent_s: float, gone: bool) -> dict[str, Any]:
    text = f"hung while {answer.get('stage', 'starting')}: nothing came back for {format_duration(silent_s)}"
    if not gone:
        text += ", and the process cannot be ended (the driver does not let go of it)"
    return {**answer, "trouble": text, "trouble_code": "hung"}


def _died(answer: dict[str, Any], code: int, tail: str) -> dict[str, Any]:
    stage = answer.get("stage", "starting")
    if code < 0:
        how = f"died of {_signal_name(-code)} while {stage}"
    else:
        how = f"ended with exit code {code} while {stage}"
    return {**answer, "trouble": how + (f": {tail}" if tail else ""), "trouble_code": "crashed"}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(errors: IO[bytes]) -> str:
    """The last line that it wrote on stderr."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
