"""Asks a fresh process to open a file of Keras or TensorFlow."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.errors import CorruptError
from perdure.models.keras_model import Call

LIMIT_S = 900.0
"""A process that has not answered by then hangs: opening the largest models takes minutes."""

_SCRIPT = Path(__file__).with_name("_keras_child.py")

Outputs = list[list[np.ndarray[Any, Any]]]
"""For each batch, the outputs in order."""


class ChildError(Exception):
    """What a fresh process said instead of an answer.

    Attributes:
        kind: Name of the exception there.
        message: Its message.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message

    @property
    def line(self) -> str:
        """The first line that says something, not too long."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        return f"{self.kind}: {lines[0] if lines else 'without a word'}"[:300]


def ask(
    job: Mapping[str, Any], calls: Sequence[Call], backend: str, worker: Worker | None = None
) -> tuple[dict[str, Any], Outputs]:
    """Do a job of ``_keras_child`` in a fresh process.

    Args:
        job: ``do`` and what it needs.
        calls: One a batch, all of the same structure.
        backend: ``KERAS_BACKEND`` of the process.
        worker: A process that is there already; a new one for this job alone if None.

    Returns:
        The answer, and the outputs of each batch.

    Raises:
        ChildError: It failed there.
        CorruptError: The process died of a signal, or hung.
    """
    with tempfile.TemporaryDirectory(prefix="perdure-") as scratch, ExitStack() as closing:
        folder = Path(scratch)
        tree, _ = _packed(calls[0]) if calls else ({"list": [{"list": [], "tuple": True}, {"dict": {}}]}, [])
        description = {**job, "batches": len(calls), "call": {**tree, "tuple": True}}
        (folder / "job.json").write_text(json.dumps(description))
        leaves = {f"{b}_{i}": leaf for b, call in enumerate(calls) for i, leaf in enumerate(_packed(call)[1])}
        np.savez(folder / "inputs.npz", **leaves)  # type: ignore[arg-type]
        worker = worker or closing.enter_context(Worker(backend))
        worker.do(folder, Path(str(job["file"])))
        answer = json.loads((folder / "answer.json").read_text())
        if "error" in answer:
            raise ChildError(answer["error"], answer["message"])
        with np.load(folder / "outputs.npz", allow_pickle=False) as arrays:
            return answer, [_of_batch(arrays, batch) for batch in range(len(calls))]


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


def _of_batch(arrays: Any, batch: int) -> list[np.ndarray[Any, Any]]:
    count = sum(name.startswith(f"{batch}_") for name in arrays.files)
    return [arrays[f"{batch}_{index}"] for index in range(count)]


def _packed(call: Call) -> tuple[dict[str, Any], list[np.ndarray[Any, Any]]]:
    leaves: list[np.ndarray[Any, Any]] = []

    def pack(value: Any) -> dict[str, Any]:
        if isinstance(value, Mapping):
            return {"dict": {str(name): pack(each) for name, each in value.items()}}
        if isinstance(value, (list, tuple)):
            return {"list": [pack(each) for each in value], "tuple": isinstance(value, tuple)}
        leaves.append(np.asarray(value))
        return {"leaf": len(leaves) - 1}

    return pack((call.args, call.kwargs)), leaves


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
