"""The statement of what was taken over, and of what was not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHOWN = 4


@dataclass(frozen=True, repr=False)
class Restored:
    """What ``restore`` did. It shows itself as its statement, at a prompt too.

    Attributes:
        path: The checkpoint folder or file that was read.
        taken: Names of the objects that were restored.
        left: What else it holds: the values of a foreign file by key; names of objects with None.
        form: What was read, in words.
        anew: What begins anew, since nothing was taken over for it, one word or two each.
        notes: What else is worth knowing of the way, one sentence each.
    """

    path: Path
    taken: tuple[str, ...]
    left: Mapping[str, Any]
    form: str = "a checkpoint of Perdure"
    anew: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join(self.lines())

    __repr__ = __str__

    def lines(self) -> Iterator[str]:
        """The statement, a line each."""
        left = f"; not taken: {', '.join(_named(self.left))}" if self.left else ""
        yield f"restored {', '.join(self.taken)} from {self.path}, {self.form}{left}"
        if self.anew:
            yield f"begins anew: {', '.join(self.anew)}"
        yield from self.notes


def begins_anew(kinds: Collection[str], missing: Sequence[str] | None = None) -> tuple[str, ...]:
    """What was not put back.

    Args:
        kinds: What was: ``"module"``, ``"optimizer"``, ``"scheduler"`` ...
        missing: Names of live objects that were not; where they are not known, what usually goes with a model.
    """
    if missing is None:
        missing = [name for name in ("optimizer", "scheduler") if name not in kinds] if "module" in kinds else []
    generators = "other random generators" if "generator" in kinds else "random generators"
    return (*missing, generators, "position in the data")


def _named(left: Mapping[str, Any]) -> Iterator[str]:
    """Keys; of a whole state_dict, or of the rest of one, some names too."""
    for number, (key, value) in enumerate(left.items()):
        if number == 3 * _SHOWN:
            yield f"and {len(left) - number} more"
            return
        inside = list(value) if isinstance(value, Mapping) and _all_tensors(value) else []
        shown = ", ".join(inside) if len(inside) <= _SHOWN else f"{len(inside)} tensors"
        yield f"{key} ({shown})" if inside else str(key)


def _all_tensors(values: Mapping[str, Any]) -> bool:
    return all(isinstance(key, str) and hasattr(value, "shape") for key, value in values.items())
