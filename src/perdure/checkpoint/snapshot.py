"""The seam between training and the store: what a checkpoint holds, as named buffers and plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from perdure.core.progress import Position


class Streamed(Protocol):
    """Bytes that are not in this memory, and come in pieces."""

    @property
    def nbytes(self) -> int:
        """How many."""

    def pieces(self) -> Iterator[memoryview]:
        """All of them, in order, as often as it is called; a piece is valid until the one behind the next."""


@dataclass(frozen=True)
class Buffer:
    """Named bytes.

    Attributes:
        name: Unique within the snapshot, for example ``model/fc.weight``.
        kind: ``"tensor"``, ``"array"`` or ``"bytes"``.
        dtype: safetensors' name of the type: ``"F32"``, ``"BF16"``, ``"U8"`` ...
        shape: Sizes; their product times the item size is the number of bytes.
        data: The bytes, row-major, as one contiguous ``memoryview`` of format ``"B"``, or in pieces.
        still: Not expected to have changed since the last save.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview | Streamed
    still: bool = False


@dataclass(frozen=True)
class Hashed:
    """A buffer and the digest of its bytes."""

    buffer: Buffer
    digest: str


class Arrival(Protocol):
    """Buffers whose bytes come to be there one after the other, while earlier ones are written already."""

    @property
    def buffers(self) -> Sequence[Buffer]:
        """All of them, names unique, in the order in which they arrive: within those that are not ``still``, and
        within those that are, that of a tensor file."""

    def arrive(self) -> Iterator[Hashed]:
        """Each of them once its bytes are there; they stay as they are until the save is over."""

    def approve(self, hashed: Sequence[Hashed]) -> bool:
        """Whether all parameters are healthy, once all have arrived. What it raises ends the save, uncommitted."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that one checkpoint holds.

    Attributes:
        position: The boundary it was taken at.
        values: JSON-able tree; places where a buffer belongs name it.
        buffers: The buffers, names unique.
        metrics: Newest value of each logged metric, for ``Keep(best=...)``.
        healthy: False if a floating-point parameter is NaN or Inf.
        session: Number of the session that saves, from 1.
        reason: Why it was saved: ``"interval"``, ``"stop"``, ``"finished"``, ``"asked"``, ``"best"``.
        training_s: Training time so far, over all sessions.
        libraries: Versions: ``{"python": ..., "torch": ...}``.
    """

    position: Position
    values: Any
    buffers: Sequence[Buffer]
    metrics: Mapping[str, float] = field(default_factory=dict)
    healthy: bool = True
    session: int = 1
    reason: str = "interval"
    training_s: float = 0.0
    libraries: Mapping[str, str] = field(default_factory=dict)
