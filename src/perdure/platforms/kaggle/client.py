"""The official Kaggle client, in a process of its own that can neither hang nor end this one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from perdure.core.errors import MissingExtraError
from perdure.platforms.kaggle.credentials import check_endpoint
from perdure.platforms.kaggle.refusals import INSTALL, Fault, error_of

CHILD = Path(__file__).with_name("_client_child.py")

LEAST_VERSION = (2, 2, 5)
"""Older clients take the newest version of a kernel where another is asked for (kaggle-cli issue 1200)."""

LIMIT_S = 60.0
"""How long Kaggle may take for an ordinary call."""

START_LIMIT_S = 90.0
"""How long the client may take besides until it is loaded and logged in, on a cold disk."""

_SPARE_S = 5.0
_LOOK_EVERY_S = 0.5
_TAIL_BYTES = 2000


class Client:
    """Calls of the official client, each with a time limit; used by one thread at a time, the others wait.

    Args:
        environment: Of its process; this process's own if None.
        command: The program; the usual one if None.
        limit_s: Seconds that a call may take, if it does not say.
        start_limit_s: Seconds that loading the client and logging in may take besides.

    Raises:
        ConfigError: ``KAGGLE_API_ENVIRONMENT`` is one that the client ignores.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        command: Sequence[str] | None = None,
        limit_s: float = LIMIT_S,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        own = dict(os.environ if environment is None else environment)
        check_endpoint(own)
        # with VERBOSE the client prints every request, the credentials with it
        self.environment = {k: v for k, v in own.items() if k not in ("VERBOSE", "VERBOSE_OUTPUT")}
        self.environment |= {"PYTHONUTF8": "1"}
        self._command = tuple(command or (sys.executable, "-P", str(CHILD)))
        self._limit_s = limit_s
        self._start_limit_s = start_limit_s
        self._process: _Process | None = None
        self._lock = threading.Lock()

    def call(
        self,
        method: str,
        what: str,
        *,
        acts: bool = False,
        limit_s: float | None = None,
        alive: Callable[[], object] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Call a method of the child.

        Args:
            method: Its name, without ``do_``.
            what: What is asked for, to begin messages with: ``"alice/job-1"``.
            acts: It changes something: without a clear answer nobody knows whether it was carried out.
            limit_s: Seconds that Kaggle may take.
            alive: Gives a value that changes while the call gets on; each change gives it ``limit_s`` anew.
            arguments: For the method.

        Raises:
            CredentialsError, NotThereError, RefusedError, TransientPlatformError, UncertainError, PlatformError,
            MissingExtraError: See ``refusals.error_of``.
        """
        with self._lock:
            begun_anew = self._process is None
            answer = self._once(method, limit_s or self._limit_s, alive, arguments)
            if answer.get("fault", {}).get("status") == 401 and not begun_anew:
                self._end()  # a login that ran out; 401 means that nothing was done
                answer = self._once(method, limit_s or self._limit_s, alive, arguments)
            if "fault" in answer:
                fault = Fault.from_dict(answer["fault"])
                if fault.kind in ("credentials", "import") or fault.status == 401:
                    self._end()  # so that the next call sees what has changed
                raise error_of(fault, what, acts=acts)
            return dict(answer["answer"])

    def hello(self) -> dict[str, Any]:
        """Who we are: ``user``, ``way``, ``version``.

        Raises:
            CredentialsError: There are no credentials, or they are not accepted.
            MissingExtraError: The client is not installed, or too old.
        """
        said = self.call("hello", "Kaggle")
        if _numbers(said["version"]) < LEAST_VERSION:
            raise MissingExtraError(f"Kaggle's client {said['version']} is too old", hint=INSTALL)
        return said

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            self._end()

    def _once(
        self, method: str, limit_s: float, alive: Callable[[], object] | None, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        begun_anew = self._process is None
        try:
            if self._process is None:
                self._process = _Process(self._command, self.environment)
            waits_s = limit_s + _SPARE_S + (self._start_limit_s if begun_anew else 0)
            call = {"method": method, "limit_s": limit_s, "arguments": arguments}
            answer = self._process.ask(json.dumps(call), waits_s, alive)
        except OSError as error:
            self._end()
            return {"fault": {"kind": "local", "message": f"cannot start its client: {error.strerror}"}}
        except BaseException:  # also Ctrl-C: its answer would be taken for that of the next call
            self._end()
            raise
        if answer is None:
            told = self._end()
            return {
                "fault": {"kind": "lost", "message": f"none within {limit_s:.0f} s, or its client died: {told}"}
            }
        return answer

    def _end(self) -> str:
        process, self._process = self._process, None
        return "" if process is None else process.end()


class _Process:
    """The child, and the pipes to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for this process
        )
        self._rest = b""
        self._finalizer = weakref.finalize(self, _end_child, self._child)

    def ask(self, call: str, waits_s: float, alive: Callable[[], object] | None) -> dict[str, Any] | None:
        """The answer; None if none came in time, or the process died."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(call.encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            return None
        last, end_s = alive() if alive else None, time.monotonic() + waits_s
        while time.monotonic() < end_s:
            line = self._line(min(_LOOK_EVERY_S, max(0.0, end_s - time.monotonic())))
            if line:
                return _document(line)
            if line is None:
                return None
            if alive and (now := alive()) != last:
                last, end_s = now, time.monotonic() + waits_s
        return None

    def end(self) -> str:
        """Kill it; the last line that it said on stderr."""
        self._finalizer()
        with contextlib.closing(self._errors) as errors:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _line(self, wait_s: float) -> bytes | None:
        """The next line; empty if there is none yet, None if there never will be one."""
        assert self._child.stdout is not None
        pipe = self._child.stdout.fileno()
        if b"\n" not in self._rest:
            if not select.select([pipe], [], [], wait_s)[0]:
                return b""
            chunk = os.read(pipe, 1 << 20)
            if not chunk:
                return None
            self._rest += chunk
        line, found, rest = self._rest.partition(b"\n")
        if not found:
            return b""
        self._rest = rest
        return line


def _end_child(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _numbers(version: str) -> tuple[int, ...]:
    parts = [int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:3]]
    return tuple(parts)
