"""One save beside the training: copied under the next forward and backward, and written behind the copy.

A flight either gives a checkpoint that is consistent, or none: what was changed while it was copied is named, and
the whole snapshot is thrown away.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch

from perdure.checkpoint.snapshot import Buffer, Hashed
from perdure.checkpoint.store import Saved
from perdure.checkpoint.tensorfile import file_order, hash_buffer
from perdure.tensors.copying import StateCopy
from perdure.tensors.encoding import Encoded, Group, Leaf
from perdure.tensors.health import holds_nan_or_inf
from perdure.training.hands import Hand

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


class LeftOutError(Exception):
    """What the snapshot leaves out was used after all. Never leaves the room."""


class Flight:
    """One overlapped save: one thread copies, another digests and writes what has been copied.

    It is the ``Arrival`` of the store.

    Args:
        cargo: What to save.
        copy: Where to copy it to; made at the boundary.
        hands: The threads: the one that copies, and the one that saves.
        commit: Writes a checkpoint of what arrives; called in the second thread.

    Attributes:
        digests: Digest of each group, by place, once it is copied.
        unhealthy: Names of parameters that hold NaN or Inf, once all is copied.
    """

    def __init__(
        self, cargo: Cargo, copy: StateCopy, hands: tuple[Hand, Hand], commit: Callable[[Flight], Saved]
    ) -> None:
        self.digests: dict[Place, str] = {}
        self.unhealthy: list[str] = []
        self._cargo = cargo
        self._copy = copy
        self._commit = commit
        self._saved: Saved | None = None
        self._error: BaseException | None = None
        self._not_copied: BaseException | None = None
        self._good = True
        self._pid = os.getpid()
        self._groups: list[Group] = []
        self._buffers: list[Buffer] = []
        self._moved: set[Place] = set()
        self._arrived: SimpleQueue[torch.cuda.Event | BaseException | None] = SimpleQueue()
        self._laid_out, self._copied, self._judged, self._over = (threading.Event() for _ in range(4))
        hands[0].do(self._copy_all)
        hands[1].do(self._save)

    # ---------------------------------------------------------------- seen from the training

    def wait_copied(self) -> None:
        """Until nothing reads the live state any more."""
        if self.is_parents:
            return
        self._copied.wait()
        self._copy.let_wait()

    def judge(self, good: bool) -> None:
        """Whether what it leaves out may be left out; it waits for this. The first word counts."""
        if not self._judged.is_set():
            self._good = good
            self._judged.set()

    @property
    def is_parents(self) -> bool:
        """This is a child made by fork: the threads are its parent's, and nothing is to be waited for."""
        return os.getpid() != self._pid

    @property
    def landed(self) -> bool:
        """Whether it is over, well or not."""
        return self._over.is_set() and self._copied.is_set()

    def result(self) -> Saved | None:
        """What was saved; None if the snapshot was thrown away for what it leaves out. Waits for the end.

        Raises:
            TornError: The state was changed while it was copied.
            PerdureError: As ``Store.save``.
        """
        if self.is_parents:
            return None
        self._over.wait()
        self._copied.wait()
        if isinstance(self._error, LeftOutError):
            return None
        if self._error is not None:
            raise self._error
        return self._saved

    # ---------------------------------------------------------------- in the thread that copies

    def _copy_all(self) -> None:
        try:
            self._lay_out()
            self._copy.run(self._arrived.put)
            self._moved = self._changed()
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            self._not_copied = error
            self._arrived.put(error)
        finally:
            self._copied.set()
            self._laid_out.set()

    def _lay_out(self) -> None:
        pairs = list(zip(self._cargo.encoded.groups, self._cargo.encoded.leaves(), strict=True))
        pairs.sort(key=lambda pair: self._order(*pair))
        groups, leaves = [group for group, _ in pairs], [leaf for _, leaf in pairs]
        parked = [group.place in self._cargo.parked for group in groups]
        still = [group.place in self._cargo.settled for group in groups]
        self._buffers = self._copy.lay_out(leaves, parked, still)
        self._groups = groups
        self._laid_out.set()

    def _order(self, group: Group, leaf: Leaf) -> tuple[bool, tuple[int, bool], bool]:
        """That of the file; what is expected to stand still is not in it, what is parked is not in the arena."""
        place = group.place
        return place in self._cargo.settled, file_order(leaf.dtype, leaf.nbytes), place in self._cargo.parked

    def _changed(self) -> set[Place]:
        """What autograd has seen changing since the boundary; asked before the optimizer may step."""
        versions = self._cargo.versions
        return {g.place for g in self._groups if g.place in versions and g.version != versions[g.place]}

    # ---------------------------------------------------------------- in the thread that saves

    def _save(self) -> None:
        try:
            self._laid_out.wait()
            if self._not_copied is not None:
                raise self._not_copied
            self._saved = self._commit(self)
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            self._error = error
        finally:
            self._over.set()

    @property
    def buffers(self) -> Sequence[Buffer]:
        """As ``Arrival.buffers``."""
        return self._buffers

    def arrive(self) -> Iterator[Hashed]:
        """As ``Arrival.arrive``."""
        for group, buffer in zip(self._groups, self._buffers, strict=True):
            self._wait_for_one()
            item = hash_buffer(buffer)
            self.digests[group.place] = item.digest
            yield item

    def _wait_for_one(self) -> None:
        arrived = self._arrived.get()
        if isinstance(arrived, BaseException):
            raise arrived
        if arrived is not None:
            arrived.synchronize()

    def approve(self, hashed: Sequence[Hashed]) -> bool:
        """As ``Arrival.approve``.

        Raises:
            TornError: The state was changed while it was copied.
            LeftOutError: What was left out should not have been.
        """
        self._copied.wait()
        if self._not_copied is not None:  # all came, but whether all stood still is not known
            raise self._not_copied
        known = self._cargo.known
        torn = {
            group.place: item.buffer.name
            for group, item in zip(self._groups, hashed, strict=True)
            if group.place in self._moved or known.get(group.place, item.digest) != item.digest
        }
        if torn:
            raise TornError(torn)
        self.unhealthy = self._holding_nan_or_inf()
        self._judged.wait()
        if not self._good:
            raise LeftOutError
        return not self.unhealthy

    def _holding_nan_or_inf(self) -> list[str]:
        names = self._cargo.parameters
        bad = {
            group.place
            for group, buffer in zip(self._groups, self._buffers, strict=True)
            if group.place in names
            and isinstance(buffer.data, memoryview)  # a copy always is
            and holds_nan_or_inf(buffer.data, buffer.dtype)
        }
        return [name for place, name in names.items() if place in bad]
