"""Saving under the next forward and backward: what may be copied late, what must be copied at once.

Parameters and optimizer state change only inside ``optimizer.step()``; a hook makes the step wait. Everything else
is copied at the boundary, except what has not changed from save to save: that is copied late too, and if its digest
is another one this time, the snapshot is thrown away. Nobody is believed: some saves are proved by digests that are
taken at the boundary, version counters are looked at in all, and what fails once is copied at once from then on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from perdure.checkpoint.store import Saved
from perdure.core.errors import CheckpointError
from perdure.core.say import warn
from perdure.hardware.host import memory
from perdure.tensors.arena import Arena
from perdure.tensors.copying import StateCopy, digest_of_live
from perdure.tensors.encoding import Encoded, Group, encode
from perdure.training.flight import Cargo, Flight, Place, TornError
from perdure.training.gradients import GradientWatch
from perdure.training.guard import Guard
from perdure.training.hands import Hand
from perdure.training.state import RunState
from perdure.training.world.names import ParameterNames

SMALL_BYTES = 64 * 1024
"""Groups below this are copied at once; the stall of a copy is less than what it takes to reason about it."""

SPARE_BYTES = 256 * 1024 * 1024
"""What must stay free on the host beside the copy."""

_NO_MEMORY = "there is no memory for a copy of the state: training waits while a checkpoint is written"

_NICE = 5  # of what need not be done before the next optimizer step; the training goes first

Commit = Callable[[Any, Flight], Saved]
"""Values, and what arrives, to a checkpoint."""


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection: what a save makes stays until its end, and to look for garbage would walk the heap."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Overlap:
    """The overlapped saves of one run: at most one at a time.

    Args:
        state: The run's.

    Attributes:
        flight: The present one, until its result was taken.
        stall_s: Time that steps waited for a copy since it was last set to 0.
    """

    def __init__(self, state: RunState, now: Callable[[], float]) -> None:
        self.flight: Flight | None = None
        self.stall_s = 0.0
        self._state = state
        self._now = now
        self._guard = Guard(self._before_step)
        self._watch = GradientWatch()
        self._arena = Arena()
        self._hands = Hand("perdure-copy"), Hand("perdure-save", nice=_NICE)
        self._count = 0
        self._distrusted: set[Place] = set()
        self._digests: dict[Place, str] = {}
        self._settled: dict[Place, str] = {}
        self._no_memory = False

    # ---------------------------------------------------------------- at a boundary

    def boundary(self) -> None:
        """A boundary is reached: learn about gradients, and judge what the present flight left out."""
        if self.flight is None and not self._watch.learning:
            return
        self._guard.attach(self._state.world.stepping())
        if self._watch.look(self._guard.parameters()) and self.flight is not None:
            self.flight.judge(not self._watch.violated)

    @_no_collection()
    def begin(self, plan: Any, commit: Commit) -> bool:
        """Begin a save of this boundary.

        Args:
            plan: How far the run goes.
            commit: Makes a checkpoint of it; called in another thread.

        Returns:
            Whether it was begun; if not, there is no memory for a copy.

        Raises:
            CannotCarryError: Something in the state has no data-only form.
        """
        self._guard.attach(self._state.world.stepping())
        self._watch.look(self._guard.parameters())
        dead = self._watch.dead()
        names = self._state.world.parameter_names(dead)
        encoded = encode(self._state.tree(plan, names))
        if not self._fits(encoded):
            return False
        cargo = self._cargo(encoded, names)
        devices = {group.extents[0].value.device for group in encoded.groups if group.place[0] != "cpu"}
        copy = StateCopy(self._arena, devices)
        self.flight = Flight(cargo, copy, self._hands, lambda flight: commit(encoded.document, flight))
        if not dead:
            self.flight.judge(True)
        return True

    def take(self) -> tuple[Saved | None, list[str]]:
        """The result of the present flight; waits for it. What could not be proved until now never will be.

        Returns:
            The checkpoint, None if the snapshot was thrown away; and sentences for the user.

        Raises:
            PerdureError: As ``Store.save``.
        """
        flight = self.flight
        assert flight is not None
        flight.judge(False)
        try:
            saved = flight.result()
        except TornError as torn:
            return None, self._learn(torn)
        except (MemoryError, OSError) as error:
            if isinstance(error, CheckpointError):
                raise
            self._no_memory = True  # it looked as if there was some
            return None, [_NO_MEMORY]
        finally:
            if (
                flight.landed or flight.is_parents
            ):  # else the wait was interrupted: the end of the run waits once more
                self.flight = None
        self._settled = {p: d for p, d in flight.digests.items() if self._digests.get(p) == d}
        self._digests = flight.digests
        return saved, []

    def end(self) -> None:
        """The loop is over."""
        self._guard.detach()
        self._arena.release()
        for hand in self._hands:
            hand.dismiss()

    # ---------------------------------------------------------------- inside

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        flight = self.flight
        if flight is not None:
            began_s = self._now()
            flight.wait_copied()
            self.stall_s += self._now() - began_s
        self._watch.stepped = True
        if flight is not None or self._watch.learning:
            self._watch.before_step(p for group in optimizer.param_groups for p in group["params"])

    def _cargo(self, encoded: Encoded, names: ParameterNames) -> Cargo:
        """Copy what cannot wait, and note what proves the rest."""
        protected = self._guard.addresses()
        parked: set[Place] = set()
        known: dict[Place, str] = {}
        self._count += 1
        proved = not self._count & (self._count - 1)  # the first save, the second, the fourth, the eighth ...
        versions: dict[Place, int] = {}
        for group in encoded.groups:
            place = group.place
            trusted = place not in self._distrusted
            late = trusted and group.extents[0].low in protected and _plain(group)
            if not late and trusted and place in self._settled and group.nbytes >= SMALL_BYTES:
                late, known[place] = True, self._settled[place]
            if late:
                versions[place] = group.version
                if proved and place not in known:
                    known[place] = digest_of_live(group.block.data)
            else:
                group.copy_now()
                parked.add(place)
        return Cargo(
            encoded,
            frozenset(parked),
            known,
            frozenset(self._settled),
            _places(names),
            versions,
        )

    def _fits(self, encoded: Encoded) -> bool:
        needed = sum(group.nbytes for group in encoded.groups) - self._arena.nbytes
        if not self._no_memory and (needed <= 0 or needed + SPARE_BYTES <= memory().available_bytes):
            return True
        if not self._no_memory:
            self._no_memory = True
            warn(_NO_MEMORY)
        return False

    def _learn(self, torn: TornError) -> list[str]:
        """See to it that the next try is right; a sentence for the user if it was the script's doing."""
        names = []
        for place, name in torn.leaves.items():
            if self._settled.pop(place, None) is None:
                self._distrusted.add(place)
                names.append(name)
            self._digests.pop(place, None)
        if not names:
            return []
        others = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return [
            f"{', '.join(names[:3])}{others} changed between a boundary and optimizer.step(): that snapshot was "
            "thrown away, and from now on they are copied at the boundary, before training goes on"
        ]


def _plain(group: Group) -> bool:
    """On a card only what is one contiguous tensor can be read by a stream beside the training's."""
    return group.place[0] == "cpu" or (len(group.extents) == 1 and group.extents[0].dense)


def _places(names: ParameterNames) -> dict[Place, str]:
    """The first name of each parameter, by place."""
    found: dict[Place, str] = {}
    for name, parameter in names.items():
        begin = parameter.data_ptr()
        device = "cpu" if parameter.is_cpu else str(parameter.device)
        found.setdefault((device, begin, begin + parameter.nbytes), name)
    return found
