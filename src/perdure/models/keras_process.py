"""Asks a fresh process to open a file of Keras or TensorFlow."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from perdure.models.keras_model import Call
from perdure.models.keras_worker import Worker

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
