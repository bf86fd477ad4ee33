"""What a reader of one kind of model file hands on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.errors import CorruptError, UnsafeFileError
from perdure.models.formats import Example, Signature

Forward = Callable[[Example], Mapping[str, Any]]
"""Runs the model; gives its outputs by name, as tensors or arrays."""


@dataclass(frozen=True)
class Contents:
    """What is in a model file.

    Attributes:
        what: What it is, in words.
        safety: Why it is safe to load, or what was risked; said after "yes:" or "no:".
        safe: It could not run code.
        tensors: Names and tensors or arrays; may be read only while they are asked for.
        main: Whether a tensor of that name counts among the parameters; None counts all.
        signature: Inputs and outputs.
        facts: Plain values: versions, metadata.
        notes: What is worth knowing.
        forward: How to run it; None if it holds no graph.
        files: Further files that belong to it.
    """

    what: str
    safety: str
    tensors: Iterable[tuple[str, Any]]
    safe: bool = True
    main: Callable[[str], bool] | None = None
    signature: Signature = field(default_factory=Signature)
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    forward: Forward | None = None
    files: tuple[Path, ...] = ()


def printable(text: str) -> str:
    """Without control characters: names in a stranger's file must not steer the terminal."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


def damaged(path: Path, problem: str) -> CorruptError:
    """The error for a file that is not what was written."""
    lines = [printable(line.strip()) for line in problem.splitlines() if line.strip()]
    return CorruptError(
        f"{path} is damaged or no model file",
        path=path,
        problems=[lines[0][:300] if lines else "it cannot be read"],
        hint="copy or download it again, and compare its size and sha256sum with those at its source",
    )


def not_safe(path: Path, what: str) -> UnsafeFileError:
    """The error for a file that could run code."""
    return UnsafeFileError(
        f"{path} could run code when it is loaded: {printable(what)}",
        path=path,
        hint="if you trust whoever made it, say so: --trust on the command line, trust=True in Python",
    )
