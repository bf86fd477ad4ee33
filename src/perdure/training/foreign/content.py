"""What a foreign file holds, whatever wrote it: sections by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError, CorruptError

KERAS = "keras"


@dataclass(frozen=True)
class Content:
    """A file that was read.

    Attributes:
        path: It.
        form: What it is, in words: ``"a Lightning checkpoint, epoch 2, step 8"``.
        values: Its sections by key; the tensors themselves if ``bare``.
        bare: The file is the state of one module, without sections.
        notes: What the reader should say, one sentence each.
        kind: ``KERAS`` if only Keras can read it, else empty.
    """

    path: Path
    form: str
    values: Mapping[str, Any] = field(default_factory=dict)
    bare: bool = False
    notes: tuple[str, ...] = ()
    kind: str = ""


def corrupt(path: Path, problem: str) -> CorruptError:
    """The error for a file that is not what was written."""
    return CorruptError(
        f"{path} cannot be read", path=path, problems=[problem], hint="copy it again, or take an older file"
    )


def no_states(path: Path, what: str, hint: str) -> ConfigError:
    """The error for a whole file of a kind that holds no states by name."""
    return ConfigError(f"{path} is {what}, which holds no states to take over by name", hint=hint)
