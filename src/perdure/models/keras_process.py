"""Asks a fresh process to open a file of Keras or TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.errors import CorruptError
from perdure.models.keras_model import Call

LIMIT_S = 900.0
"""A process that has not answered by then hangs: opening the largest models takes minutes."""

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


def ask(job: Mapping[str, Any], calls: Sequence[Call], backend: str) -> tuple[dict[str, Any], Outputs]:
    """Do a job of ``_keras_child`` in a fresh process.

    Args:
        job: ``do`` and what it needs.
        calls: One a batch, all of the same structure.
        backend: ``KERAS_BACKEND`` of the process.

    Returns:
        The answer, and the outputs of each batch.

    Raises:
        ChildError: It failed there.
        CorruptError: The process died of a signal, or hung.
    """
    with tempfile.TemporaryDirectory(prefix="perdure-") as scratch:
        folder = Path(scratch)
        tree, _ = _packed(calls[0]) if calls else ({"list": [{"list": [], "tuple": True}, {"dict": {}}]}, [])
        description = {**job, "batches": len(calls), "call": {**tree, "tuple": True}}
        (folder / "job.json").write_text(json.dumps(description))
        leaves = {f"{b}_{i}": leaf for b, call in enumerate(calls) for i, leaf in enumerate(_packed(call)[1])}
        np.savez(folder / "inputs.npz", **leaves)  # type: ignore[arg-type]
        _run(folder, backend, Path(str(job["file"])))
        answer = json.loads((folder / "answer.json").read_text())
        if "error" in answer:
            raise ChildError(answer["error"], answer["message"])
        with np.load(folder / "outputs.npz", allow_pickle=False) as arrays:
            return answer, [_of_batch(arrays, batch) for batch in range(len(calls))]


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


def _run(folder: Path, backend: str, file: Path) -> None:
    script = Path(__file__).with_name("_keras_child.py")
    with open(folder / "said", "wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(folder)],
            env=_environment(backend),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise _no_answer(file, f"did not answer within {LIMIT_S:.0f} s") from None
        finally:
            _end(process)
    if not (folder / "answer.json").exists():
        last = (folder / "said").read_text(errors="replace").strip().splitlines()[-1:]
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise _no_answer(file, f"{how}{': ' + last[0][:200] if last else ''}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group of a process that is still there: on a hang, and when this process is interrupted."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _no_answer(file: Path, what: str) -> CorruptError:
    return CorruptError(
        f"a fresh process that opened {file} {what}",
        path=file,
        hint="if the file came from elsewhere, copy it again; if there was too little memory, free some",
    )


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
