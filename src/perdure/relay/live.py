"""What a running session says of itself in its log (``inside/beat.py``), read by whoever watches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.relay.records import RunStand

PREFIX = "@perdure "
"""Begins such a line."""


@dataclass(frozen=True)
class Live:
    """The newest word of a session.

    Attributes:
        session: Its number.
        runs: How each of its runs stands.
        metrics: What the newest run logged last.
        cards: Each card: ``name``, ``busy_percent``, ``memory_used_bytes``, ``memory_total_bytes``, where known.
        said_s: When it said so, seconds since 1970, by its own clock; 0 if it did not say.
    """

    session: int
    runs: tuple[RunStand, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    cards: tuple[Mapping[str, Any], ...] = ()
    said_s: float = 0.0

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Live:
        """What a line holds; unknown fields are left out, for a newer Perdure may have written it.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: It holds something else.
        """
        metrics = value.get("metrics") or {}
        return cls(
            session=int(value["session"]),
            runs=tuple(_stand(entry) for entry in value.get("runs") or ()),
            metrics={str(name): float(number) for name, number in metrics.items() if _is_number(number)},
            cards=tuple(dict(card) for card in value.get("cards") or ()),
            said_s=float(value.get("said_s") or 0.0),
        )


def newest_live(lines: Sequence[str]) -> Live | None:
    """The last word of a session in its log; None if it has said nothing yet. Damaged lines are passed over."""
    for line in reversed(lines):
        _, found, rest = line.partition(PREFIX)
        if not found:
            continue
        try:
            return Live.from_dict(json.loads(rest))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def _stand(entry: Mapping[str, Any]) -> RunStand:
    count, speed = entry.get("count"), entry.get("steps_per_s")
    return RunStand(
        name=str(entry["name"]),
        status=str(entry.get("status") or "running"),
        step=int(entry.get("step") or 0),
        epoch=int(entry.get("epoch") or 0),
        checkpoint=entry.get("checkpoint"),
        count=None if count is None else int(count),
        unit=str(entry.get("unit") or ""),
        steps_per_s=float(speed) if speed else None,
        reason=str(entry.get("reason") or ""),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
