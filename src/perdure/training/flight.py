"""One save beside the training: copied under the next forward and backward, then written.

A flight either gives a checkpoint that is consistent, or none: what was changed while it was copied is named, and
the whole snapshot is thrown away.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from perdure.checkpoint.snapshot import Buffer
from perdure.checkpoint.store import Saved
from perdure.checkpoint.tensorfile import ALIGNMENT
from perdure.tensors.copying import StateCopy
from perdure.tensors.encoding import Encoded, Group
from perdure.tensors.health import holds_nan_or_inf

_NICE = 5  # the training goes first

Place = tuple[str, int, int]
"""Memory on a device, from its first byte to behind its last."""


@dataclass(frozen=True)
class Cargo:
    """What a flight carries, as it was at the boundary.

    Attributes:
        encoded: The state; what is not protected is copied already.
        parked: Places of the groups that are.
        known: Digests of live memory, by place: a group of another digest was changed since.
        settled: Places of groups that are not expected to have changed since the last save.
        parameters: Names of parameters, by place.
        versions: Version counters of the groups that are not parked.
    """

    encoded: Encoded
    parked: frozenset[Place]
    known: Mapping[Place, str]
    settled: frozenset[Place]
    parameters: Mapping[Place, str]
    versions: Mapping[Place, int] = field(default_factory=dict)


class TornError(Exception):
    """The snapshot is not consistent. Never leaves the room.

    Attributes:
        leaves: Names of what was changed while it was copied, by place.
    """

    def __init__(self, leaves: Mapping[Place, str]) -> None:
        super().__init__(", ".join(leaves.values()))
        self.leaves = leaves


class Flight:
    """One overlapped save, in a thread of its own.

    Args:
        cargo: What to save.
        copy: Where to copy it to; made at the boundary.
        commit: Writes the buffers, given whether all parameters are healthy; called in the thread.

    Attributes:
        digests: Digest of each group, by place, once it is copied.
        unhealthy: Names of parameters that hold NaN or Inf.
    """

    def __init__(
        self, cargo: Cargo, copy: StateCopy, commit: Callable[[list[Buffer], Sequence[str]], Saved]
    ) -> None:
        self.digests: dict[Place, str] = {}
        self._cargo = cargo
        self._copy = copy
        self._commit = commit
        self._saved: Saved | None = None
        self._error: BaseException | None = None
        self._copied = threading.Event()
        self._judged = threading.Event()
        self._good = True
        self._thread = threading.Thread(target=self._fly, name="perdure-save", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- seen from the training

    def wait_copied(self) -> None:
        """Until nothing reads the live state any more."""
        self._copied.wait()
        self._copy.let_wait()

    def judge(self, good: bool) -> None:
        """Whether what it leaves out may be left out; it waits for this. The first word counts."""
        if not self._judged.is_set():
            self._good = good
            self._judged.set()

    @property
    def landed(self) -> bool:
        """Whether it is over, well or not."""
        return not self._thread.is_alive()

    def result(self) -> Saved | None:
        """What was saved; None if the snapshot was thrown away for what it leaves out. Waits for the end.

        Raises:
            TornError: The state was changed while it was copied.
            PerdureError: As ``Store.save``.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._saved

    # ---------------------------------------------------------------- in the thread

    def _fly(self) -> None:
        try:
            _step_back()
            groups = self._cargo.encoded.groups
            leaves = self._cargo.encoded.leaves()
            order = sorted(range(len(groups)), key=lambda i: self._order(groups[i]))
            groups, leaves = [groups[i] for i in order], [leaves[i] for i in order]
            self._copy.begin(leaves, [group.place in self._cargo.parked for group in groups])
            moved = self._moved(groups)
            self._copied.set()
            buffers = self._copy.finish()
            self._check(groups, buffers, moved)
            unhealthy = self._unhealthy(groups, buffers)
            self._judged.wait()
            if self._good:
                self._saved = self._commit(buffers, unhealthy)
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            self._error = error
        finally:
            self._copied.set()

    def _order(self, group: Group) -> tuple[bool, bool, int, bool]:
        """What is written anew first, in the order of the file, so that it lies there as it lies in memory."""
        place, itemsize = group.place, group.extents[0].itemsize
        return place in self._cargo.parked, place in self._cargo.settled, -itemsize, group.nbytes % ALIGNMENT != 0

    def _moved(self, groups: Sequence[Group]) -> set[Place]:
        """What autograd has seen changing since the boundary; asked before the optimizer may step."""
        versions = self._cargo.versions
        return {g.place for g in groups if g.place in versions and version_of(g) != versions[g.place]}

    def _check(self, groups: Sequence[Group], buffers: Sequence[Buffer], moved: set[Place]) -> None:
        torn: dict[Place, str] = {}
        for group, buffer in zip(groups, buffers, strict=True):
            place = group.place
            self.digests[place] = buffer.digest
            if place in moved or self._cargo.known.get(place, buffer.digest) != buffer.digest:
                torn[place] = buffer.name
        if torn:
            raise TornError(torn)

    def _unhealthy(self, groups: Sequence[Group], buffers: Sequence[Buffer]) -> list[str]:
        names = self._cargo.parameters
        bad = {
            group.place
            for group, buffer in zip(groups, buffers, strict=True)
            if group.place in names
            and isinstance(buffer.data, memoryview)  # a copy always is
            and holds_nan_or_inf(buffer.data, buffer.dtype)
        }
        return [name for place, name in names.items() if place in bad]


def version_of(group: Group) -> int:
    """Grows with each change that autograd sees; fused optimizers and writes through ``.data`` do not move it."""
    return sum(e.value._version for e in group.extents if isinstance(e.value, torch.Tensor))


def _step_back() -> None:
    """Give this thread a lower priority than the training's; on Linux that is per thread (setpriority(2))."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except (OSError, AttributeError):
        return
