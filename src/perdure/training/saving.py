"""Saving: when, and what is told of it. A full or failing disk costs the save, not the training."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from perdure.checkpoint.snapshot import Snapshot
from perdure.checkpoint.store import Store
from perdure.core.errors import CheckpointError, DiskFullError, UnreadableError
from perdure.core.progress import Position
from perdure.core.say import warn
from perdure.tensors.encoding import flatten, to_buffers
from perdure.training.journal import Journal
from perdure.training.pace import Pace
from perdure.training.schedule import SaveSchedule
from perdure.training.state import RunState


class Saver:
    """Writes checkpoints of one run.

    Attributes:
        checkpoint: Name of the newest checkpoint, None before the first.
        position: Where it was taken.
    """

    def __init__(self, state: RunState, store: Store, schedule: SaveSchedule, pace: Pace, journal: Journal) -> None:
        self.checkpoint: str | None = None
        self.position: Position | None = None
        self.session_number = 1
        self._state = state
        self._store = store
        self._schedule = schedule
        self._pace = pace
        self._journal = journal
        self._unhealthy: list[str] = []
        self._best: list[float] | None = None
        self._reported = 0
        self._failures = 0

    def save(self, position: Position, plan: Mapping[str, Any] | None, reason: str) -> bool:
        """Save now.

        Args:
            position: The present boundary.
            plan: How far the run goes.
            reason: Why: ``"interval"``, ``"asked"``, ``"best"``, ``"stop"``, ``"finished"``.

        Returns:
            Whether it was written. If not, the user is told, and the last good checkpoint is as it was.

        Raises:
            CannotCarryError: Something in the state has no data-only form.
        """
        began_s = self._pace.now()
        self._journal.flush()
        try:
            saved = self._store.save(self._snapshot(position, plan, reason))
        except (DiskFullError, UnreadableError) as error:
            self._failed(error, position, reason)
            return False
        seconds = self._pace.now() - began_s
        self._pace.saved(seconds)
        self._schedule.saved(position.step, seconds)
        self.position, self.checkpoint, self._failures = position, saved.folder.name, 0
        self._journal.event(
            "saved",
            step=position.step,
            session=self.session_number,
            reason=reason,
            checkpoint=saved.folder.name,
            seconds=round(seconds, 4),
            bytes_written=saved.bytes_written,
        )
        self._remember_best()
        for report in self._store.reports[self._reported :]:
            warn(report)
        self._reported = len(self._store.reports)
        return True

    def check(self, plan: Mapping[str, Any] | None) -> list[str]:
        """In the first minute and not on the second day: can the state be saved, and is it whole?

        Returns:
            Sentences for the user.

        Raises:
            CannotCarryError: Something in the state has no data-only form.
        """
        _, leaves = flatten(self._state.tree(plan))
        self._pace.state_bytes = sum(leaf.nbytes for leaf in leaves)
        return [*self._state.world.first_save_check(), *self._state.world.notes()]

    def would_be_best(self) -> bool:
        """The newest value of the metric of ``keep.best`` beats that of every checkpoint."""
        if self._store.keep.metric is None:
            return False
        self._journal.flush()
        sense, name = self._store.keep.metric
        value = self._journal.metrics.get(name, math.nan)
        if self._best is None:
            found = (item.manifest.metrics.get(name, math.nan) for item in self._store.list() if item.manifest)
            self._best = [known for known in found if not math.isnan(known)]
        if math.isnan(value):
            return False
        return all(value > known if sense == "max" else value < known for known in self._best)

    def _remember_best(self) -> None:
        if self._best is not None and self._store.keep.metric is not None:
            self._best.append(self._journal.metrics.get(self._store.keep.metric[1], math.nan))
            self._best = [known for known in self._best if not math.isnan(known)]

    def _snapshot(self, position: Position, plan: Mapping[str, Any] | None, reason: str) -> Snapshot:
        values, leaves = flatten(self._state.tree(plan))
        buffers = to_buffers(leaves)
        self._pace.state_bytes = sum(buffer.data.nbytes for buffer in buffers)
        return Snapshot(
            position=position,
            values=values,
            buffers=buffers,
            metrics=dict(self._journal.metrics),
            healthy=self._healthy(position),
            session=self.session_number,
            reason=reason,
            training_s=self._pace.training_s,
            libraries={"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        )

    def _healthy(self, position: Position) -> bool:
        unhealthy = self._state.world.unhealthy()
        if unhealthy and not self._unhealthy:
            others = f" and {len(unhealthy) - 3} more" if len(unhealthy) > 3 else ""
            warn(
                f"step {position.step}: NaN or Inf in {', '.join(unhealthy[:3])}{others}; "
                "the last checkpoint without is kept beside the newest"
            )
        self._unhealthy = unhealthy
        return not unhealthy

    def _failed(self, error: CheckpointError, position: Position, reason: str) -> None:
        self._schedule.saved(position.step, 0.0)  # the next try after another interval
        self._journal.event("save failed", step=position.step, session=self.session_number, reason=error.what)
        self._failures += 1
        if self._failures & (self._failures - 1):  # said at the first, the second, the fourth, the eighth ...
            return
        goes_on = "the run stops without it" if reason in ("stop", "finished") else "training goes on"
        warn(
            f"no checkpoint at step {position.step}: {error}\n  the last good one is "
            f"{self.checkpoint or 'none yet'}; {goes_on}"
        )
