"""Which checkpoints stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perdure.checkpoint.manifest import Manifest
from perdure.core.errors import ConfigError


@dataclass(frozen=True)
class Keep:
    """Which checkpoints a run keeps, beside the newest healthy one, which always stays.

    Args:
        last: How many of the newest; at least 1.
        best: ``"max:val_accuracy"`` or ``"min:val_loss"`` keeps the best one by that logged metric too.
    """

    last: int = 2
    best: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.last, int) or isinstance(self.last, bool) or self.last < 1:
            raise ConfigError(f"keep.last must be a whole number from 1 up, got {self.last!r}")
        if self.best is not None:
            _ = self.metric

    @property
    def metric(self) -> tuple[str, str] | None:
        """``("max" or "min", name of the metric)``; None without ``best``.

        Raises:
            ConfigError: ``best`` has another form.
        """
        if self.best is None:
            return None
        sense, _, name = str(self.best).partition(":")
        if sense not in ("max", "min") or not name.strip():
            raise ConfigError(
                f"keep.best must name a direction and a metric, got {self.best!r}",
                hint='try "max:val_accuracy" or "min:val_loss"',
            )
        return sense, name.strip()


@dataclass(frozen=True)
class Committed:
    """A whole checkpoint; two are equal if they are in one folder."""

    folder: Path
    manifest: Manifest = field(compare=False)


def last_good(newest_first: Sequence[Committed]) -> Committed | None:
    """The newest healthy one; the newest of all if none is healthy."""
    healthy = (item for item in newest_first if item.manifest.healthy)
    return next(healthy, newest_first[0] if newest_first else None)


def best_of(newest_first: Sequence[Committed], keep: Keep) -> Committed | None:
    """The best one by ``keep.best``; of equals the oldest, since the metric was measured on that one."""
    if keep.metric is None:
        return None
    sense, name = keep.metric
    sign = 1 if sense == "max" else -1
    best: Committed | None = None
    for item in reversed(newest_first):
        value = item.manifest.metrics.get(name, math.nan)
        if not math.isnan(value) and (best is None or sign * value > sign * best.manifest.metrics[name]):
            best = item
    return best


def to_drop(newest_first: Sequence[Committed], keep: Keep, saved: Committed) -> list[Committed]:
    """What retention removes after a commit.

    Args:
        newest_first: The committed checkpoints.
        keep: The rule.
        saved: The one just committed. It stays; older saves of the very same boundary go, and so do those
            of an earlier run that was begun afresh.
    """
    replaced = [item for item in newest_first if _replaces(saved, item)]
    rest = [item for item in newest_first if item not in replaced]
    stay = [saved, last_good(rest), best_of(rest, keep), *rest[: keep.last]]
    return [*replaced, *(item for item in rest if item not in stay)]


def _replaces(saved: Committed, item: Committed) -> bool:
    new, old = saved.manifest, item.manifest
    if new.run_id != old.run_id:
        return True
    same_boundary = item != saved and new.position.order == old.position.order
    return same_boundary and (new.healthy or not old.healthy)  # NaN does not replace the last good one


def expendable(newest_first: Sequence[Committed], keep: Keep) -> list[Committed]:
    """What may go when room is needed, in this order: the oldest first, the best one last, never the last good."""
    good, best = last_good(newest_first), best_of(newest_first, keep)
    rest = [item for item in reversed(newest_first) if item not in (good, best)]
    return [*rest, *([best] if best is not None and best is not good else [])]
