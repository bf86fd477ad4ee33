"""Saving, now or beside the training, and what is told of it. A full disk costs the save, not the training."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from perdure.checkpoint.athand import AtHand
from perdure.checkpoint.snapshot import Snapshot
from perdure.checkpoint.store import Saved, Store
from perdure.core.errors import CheckpointError, DiskFullError, UnreadableError
from perdure.core.progress import Position
from perdure.core.say import say, warn
from perdure.tensors.encoding import flatten, to_buffers
from perdure.training.flight import Flight
from perdure.training.journal import Journal
from perdure.training.overlap import Overlap
from perdure.training.pace import Pace
from perdure.training.schedule import SaveSchedule
from perdure.training.state import RunState

_TRIES = 3  # snapshots that are thrown away one after the other; then training waits for one


@dataclass(frozen=True)
class Begun:
    """A save that was begun.

    Attributes:
        position: The boundary.
        reason: Why.
        number: Its number in this session; None if training waits for it.
        began_s: When, on the session's clock.
        stall_s: Time that the boundary took for it.
    """

    position: Position
    reason: str
    number: int | None
    began_s: float
    stall_s: float


class Saver:
    """Writes checkpoints of one run.

    Attributes:
        checkpoint: Name of the newest checkpoint, None before the first.
        position: Where it was taken.
        retry: A snapshot was thrown away: another is due.
    """

    def __init__(self, state: RunState, store: Store, schedule: SaveSchedule, pace: Pace, journal: Journal) -> None:
        self.checkpoint: str | None = None
        self.position: Position | None = None
        self.session_number = 1
        self.retry = False
        self._state = state
        self._store = store
        self._schedule = schedule
        self._pace = pace
        self._journal = journal
        self._unhealthy: list[str] = []
        self._best: list[float] | None = None
        self._reported = 0
        self._failures = 0
        self._overlap = Overlap(state, pace.now)
        self._begun = Begun(Position(), "", None, 0.0, 0.0)
        self._found: list[str] = []
        self._number = 0
        self._thrown_away = 0

    def boundary(self) -> bool:
        """A boundary is reached: take what has been saved beside the training since the last one.

        Returns:
            Whether there is something new to tell.
        """
        self._overlap.boundary()
        landed = self._overlap.flight is not None and self._overlap.flight.landed
        if landed:
            self._land()
        return landed

    @property
    def busy(self) -> bool:
        """A save is under way beside the training."""
        return self._overlap.flight is not None

    def begin(self, position: Position, plan: Mapping[str, Any] | None, reason: str) -> bool:
        """Save beside the training, or, where there is no memory for that, now.

        Args:
            position: The present boundary.
            plan: How far the run goes.
            reason: Why: ``"interval"``, ``"asked"``, ``"best"``.

        Returns:
            Whether a checkpoint was written by now.

        Raises:
            CannotCarryError: Something in the state has no data-only form.
        """
        self.settle()
        if self._thrown_away >= _TRIES:
            return self.save(position, plan, reason)
        began_s = self._pace.now()
        self._journal.flush()
        snapshot = self._about(position, reason)
        self._overlap.stall_s = 0.0
        if not self._overlap.begin(plan, lambda *made: self._commit(snapshot, *made)):
            return self.save(position, plan, reason)
        self.retry = False
        self._number += 1
        self._begun = Begun(position, reason, self._number, began_s, self._pace.now() - began_s)
        self._schedule.begun(position.step)
        self._pace.begin_beside()
        self._journal.event("saving", step=position.step, session=self.session_number, save=self._number)
        return False

    def settle(self) -> None:
        """Wait for the save that is under way, if there is one; no step follows before the next."""
        if self._overlap.flight is not None:
            self._land()

    def end(self) -> None:
        """The loop is over."""
        self.settle()
        self._overlap.end()

    def give_way(self) -> None:
        """The folder is another's: what is under way is refused when it is to be committed, so nobody waits."""
        self._overlap.end()

    def save(self, position: Position, plan: Mapping[str, Any] | None, reason: str) -> bool:
        """Save now, and wait for it.

        Args:
            position: The present boundary.
            plan: How far the run goes.
            reason: Why: also ``"stop"`` and ``"finished"``.

        Returns:
            Whether it was written. If not, the user is told, and the last good checkpoint is as it was.

        Raises:
            CannotCarryError: Something in the state has no data-only form.
        """
        self.settle()
        began_s = self._pace.now()
        self._journal.flush()
        values, leaves = flatten(self._state.tree(plan))
        snapshot = replace(self._about(position, reason), values=values, buffers=to_buffers(leaves))
        try:
            saved = self._store.save(snapshot, AtHand(snapshot.buffers, lambda: self._healthy(position)))
        except (DiskFullError, UnreadableError) as error:
            self._failed(error, position, reason)
            return False
        seconds = self._pace.now() - began_s
        self._schedule.begun(position.step)
        self._landed(saved, Begun(position, reason, None, began_s, seconds), seconds)
        return True

    def _land(self) -> None:
        """Take the result of the save that was made beside the training."""
        begun = self._begun
        try:
            saved, sentences = self._overlap.take()
        except (DiskFullError, UnreadableError) as error:
            self._failed(error, begun.position, begun.reason)
            return
        for sentence in sentences:
            warn(sentence)
        if saved is None:
            self.retry = True
            self._thrown_away += 1
            return
        self._note_health(begun.position, self._found)
        self._landed(saved, begun, begun.stall_s + self._overlap.stall_s)

    def _commit(self, about: Snapshot, values: Any, flight: Flight) -> Saved:
        """Write a checkpoint; called beside the training."""
        saved = self._store.save(replace(about, values=values), flight)
        self._found = flight.unhealthy
        return saved

    def _landed(self, saved: Saved, begun: Begun, stall_s: float) -> None:
        """A checkpoint is committed."""
        seconds = self._pace.now() - begun.began_s
        self._pace.saved(seconds)
        self._pace.state_bytes = sum(entry.nbytes for entry in saved.manifest.entries)
        slower_s = 0.0 if begun.number is None else self._pace.end_beside()
        if begun.reason not in ("stop", "finished") and self._schedule.saved(
            stall_s + slower_s, seconds, saved.bytes_written
        ):
            say(f"{self._store.name}: from here on saves {self._schedule}")
        self.position, self.checkpoint, self._failures = begun.position, saved.folder.name, 0
        self.retry, self._thrown_away = False, 0
        beside = {} if begun.number is None else {"save": begun.number}
        self._journal.event(
            "saved",
            step=begun.position.step,
            session=self.session_number,
            reason=begun.reason,
            checkpoint=saved.folder.name,
            seconds=round(seconds, 4),
            stall_s=round(stall_s, 4),
            slower_s=round(slower_s, 4),
            interval=str(self._schedule),
            bytes_written=saved.bytes_written,
            **beside,
        )
        self._remember_best(saved.manifest.metrics)
        for report in self._store.reports[self._reported :]:
            warn(report)
        self._reported = len(self._store.reports)

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
        self.settle()
        self._journal.flush()
        sense, name = self._store.keep.metric
        value = self._journal.metrics.get(name, math.nan)
        if self._best is None:
            found = (item.manifest.metrics.get(name, math.nan) for item in self._store.list() if item.manifest)
            self._best = [known for known in found if not math.isnan(known)]
        if math.isnan(value):
            return False
        return all(value > known if sense == "max" else value < known for known in self._best)

    def _remember_best(self, metrics: Mapping[str, float]) -> None:
        if self._best is not None and self._store.keep.metric is not None:
            self._best.append(metrics.get(self._store.keep.metric[1], math.nan))
            self._best = [known for known in self._best if not math.isnan(known)]

    def _about(self, position: Position, reason: str) -> Snapshot:
        """A snapshot of this boundary, the state itself still to come."""
        return Snapshot(
            position=position,
            values=None,
            buffers=(),
            metrics=dict(self._journal.metrics),
            session=self.session_number,
            reason=reason,
            training_s=self._pace.training_s,
            libraries={"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        )

    def _healthy(self, position: Position) -> bool:
        self._note_health(position, self._state.world.unhealthy())
        return not self._unhealthy

    def _note_health(self, position: Position, unhealthy: list[str]) -> None:
        if unhealthy and not self._unhealthy:
            others = f" and {len(unhealthy) - 3} more" if len(unhealthy) > 3 else ""
            warn(
                f"step {position.step}: NaN or Inf in {', '.join(unhealthy[:3])}{others}; "
                "the last checkpoint without is kept beside the newest"
            )
        self._unhealthy = unhealthy

    def _failed(self, error: CheckpointError, position: Position, reason: str) -> None:
        self._schedule.begun(position.step)  # the next try after another interval
        self._journal.event("save failed", step=position.step, session=self.session_number, reason=error.what)
        self._failures += 1
        if self._failures & (self._failures - 1):  # said at the first, the second, the fourth, the eighth ...
            return
        goes_on = "the run stops without it" if reason in ("stop", "finished") else "training goes on"
        warn(
            f"no checkpoint at step {position.step}: {error}\n  the last good one is "
            f"{self.checkpoint or 'none yet'}; {goes_on}"
        )
