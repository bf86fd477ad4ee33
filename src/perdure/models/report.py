"""What ``check_model`` found in a model file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perdure.models.formats import Signature


@dataclass(frozen=True)
class Row:
    """One tensor.

    Attributes:
        name: Its name in the file; nested ones by path.
        dtype: For example ``"float32"``.
        shape: Its sizes.
        values: How many numbers it holds.
        bytes: How many bytes they take.
        nan: How many of them are no number.
        inf: How many are infinite.
        same_as: An earlier tensor that holds the same numbers, bit for bit: a tie; empty if there is none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: int
    bytes: int
    nan: int = 0
    inf: int = 0
    same_as: str = ""


@dataclass(frozen=True)
class Answer:
    """One output of a forward pass."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    finite: bool


@dataclass(frozen=True, repr=False)
class ModelReport:
    """What a model file is and holds. It shows itself as a table, at a prompt too.

    Attributes:
        path: The file, or the folder.
        kind: ``"pth"``, ``"safetensors"``, ``"pt2"``, ``"torchscript"``, ``"onnx"``, ``"keras"``,
            ``"h5"``, ``"savedmodel"`` ...
        what: What it is, in words.
        bytes: Its size, with the files that belong to it.
        digest: ``"sha256:..."``.
        card: What the model card beside it says of it; empty if there is none.
        safe: It cannot run code when it is loaded the way that was used here.
        safety: Why, in words.
        tensors: One row each.
        parameters: Numbers that the model has learnt, each tie once; running statistics are left out where the file
            tells them apart.
        signature: Inputs and outputs, where the file holds a graph.
        facts: Versions, producer, metadata; plain values.
        notes: What is worth knowing.
        problems: What is wrong; the file is not ``ok`` with any.
        forward: The outputs of the forward pass; empty if there was none.
    """

    path: Path
    kind: str
    what: str
    bytes: int
    digest: str
    card: str
    safe: bool
    safety: str
    tensors: tuple[Row, ...]
    parameters: int
    signature: Signature = field(default_factory=Signature)
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    forward: tuple[Answer, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is wrong with it."""
        return not self.problems

    @property
    def dtypes(self) -> dict[str, int]:
        """How many numbers there are of each type, the most frequent first."""
        counts: dict[str, int] = {}
        for row in self.tensors:
            counts[row.dtype] = counts.get(row.dtype, 0) + row.values
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        words = {"path": str(self.path), "ok": self.ok, "dtypes": self.dtypes}
        return {**asdict(self), **words, "facts": {name: _json(value) for name, value in self.facts.items()}}

    def __str__(self) -> str:
        from perdure.models.report_text import lines_of

        return "\n".join(lines_of(self))

    __repr__ = __str__


def _json(value: Any) -> Any:
    """JSON has no word for numbers that are none."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
