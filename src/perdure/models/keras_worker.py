"""A process under a backend of Keras that does one job after another."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from perdure.core.errors import CorruptError

LIMIT_S = 900.0
"""A process that has not answered by then hangs: opening the largest models takes minutes."""

_SCRIPT = Path(__file__).with_name("_keras_child.py")


class Worker:
    """A process that does one job after another: to import TensorFlow or torch takes seconds. A context manager."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed when the worker is
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._said.close()

    def do(self, folder: Path, file: Path) -> None:
        """Do the job in a folder; a process that died before is started anew.

        Raises:
            CorruptError: The process died or hung over the file.
        """
        if self._process is None:
            self._process = self._started()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{folder}\n".encode())
            self._process.stdin.flush()
            answered = self._wait(self._process)
        except BrokenPipeError:
            answered = False
        except BaseException:
            self._end()
            raise
        if not answered:
            raise self._gone(file)

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],
            env=_environment(self._backend),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether an answer came; a line of its own, since what the frameworks print goes to stderr there."""
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
        return bool(ready) and process.stdout.readline() == b"done\n"

    def _gone(self, file: Path) -> CorruptError:
        """Why there was no answer; the process is ended."""
        assert self._process is not None
        hung = self._process.poll() is None and not self._ended_by_itself(self._process)
        code = self._process.returncode
        self._end()
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
        if hung:
            how = f"did not answer within {LIMIT_S:.0f} s"
        else:
            how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return CorruptError(
            f"a fresh process that opened {file} {how}{': ' + last[0][:200] if last else ''}",
            path=file,
            hint="if the file came from elsewhere, copy it again; if there was too little memory, free some",
        )

    @staticmethod
    def _ended_by_itself(process: subprocess.Popen[bytes]) -> bool:
        try:
            process.wait(1.0)  # it has closed its side, and is on its way out
        except subprocess.TimeoutExpired:
            return False
        return True

    def _end(self) -> None:
        """End the whole group of the process, if it is there."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def _environment(backend: str) -> dict[str, str]:
    """The environment of a stranger: no leftovers of the training; classes that can be imported here can there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TF_CONFIG"))}
    places = [os.getcwd(), sys.path[0], os.environ.get("PYTHONPATH", "")]
    return {
        **kept,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, places))),
    }
