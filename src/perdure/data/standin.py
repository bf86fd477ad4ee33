"""The stand-in for a loader's sampler: it deals what the sampler deals, and can begin in the middle."""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from perdure.core.errors import DataOrderError, LoaderChangedError
from perdure.data.generators import capture_global, restore_global, seed_global
from perdure.data.seeds import Stamped, batch_seed


class StandIn:
    """Takes the place of a ``batch_sampler`` (or ``sampler``) in the copy of a DataLoader.

    Args:
        sampler: The user's.
        quiet: It draws from the global generators with its first index at most.
    """

    def __init__(self, sampler: Any, *, quiet: bool) -> None:
        self.sampler = sampler
        self.quiet = quiet
        self.next_deal: Deal | None = None

    def __iter__(self) -> Iterator[Any]:
        # a generator, so that with no workers it begins after the loader has drawn its base seed
        deal = self.next_deal
        self.next_deal = None
        if deal is None:  # someone else iterates the copy
            yield from self.sampler
        else:
            yield from deal.indices(self.sampler, quiet=self.quiet)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # not yet set: being unpickled or copied
            raise AttributeError(name)
        return getattr(self.sampler, name)


class Deal:
    """One pass of a sampler, from its first index or from the middle.

    Args:
        seed: Seed of the pass.
        stamp: Send a batch seed along with the indices, for worker processes.
        start: Batches that were consumed before the checkpoint.
        skip: Draw and drop the indices of these batches; not for a sampler that carries its own position.
        crc: What the checksum of these indices was.
        pending: Indices that were drawn and not consumed, by a sampler that carries its own position.
        lane: Generators of a sampler that draws with each index, as they were.
        exhausted: That sampler had already come to the end of its pass.
        length: Batches a pass, None if it has no length.
        counted: Keep account of what is drawn and not consumed; not for data sets without indices.
        on_start: Called when the sampler is about to start.
        on_ready: Called once, when everything that belongs to the past was drawn and nobody has seen
            the next index yet.
    """

    def __init__(
        self,
        *,
        seed: int,
        stamp: bool,
        on_start: Callable[[], None],
        on_ready: Callable[[], None],
        start: int = 0,
        skip: bool = True,
        crc: int = 0,
        pending: Sequence[Any] = (),
        lane: dict[str, Any] | None = None,
        exhausted: bool = False,
        length: int | None = None,
        counted: bool = True,
    ) -> None:
        self.entered = False
        self.lane = lane
        self.exhausted = exhausted
        self.crc = 0 if skip else crc
        self._seed = seed
        self._stamp = stamp
        self._on_start = on_start
        self._on_ready = on_ready
        self._start = start
        self._skip = start if skip else 0
        self._skip_crc = crc
        self._replay = list(pending)
        self._length = length
        self._counted = counted
        self._drawn: deque[Any] = deque()

    def indices(self, sampler: Any, *, quiet: bool) -> Iterator[Any]:
        """What the loader is given, from the first index that is not consumed yet."""
        self.entered = True
        self._on_start()
        draws = iter(()) if self.exhausted else self._draws(iter(sampler), quiet)
        self._skip_consumed(draws)
        number = self._start
        for index in chain(self._replay, draws):
            if number == self._start:
                self._on_ready()
            self._check_length(number)
            yield self._hand_out(index, number)
            number += 1
        if number == self._start:
            self._on_ready()

    def consume(self) -> None:
        """The batch of the oldest index drawn was handed to the training."""
        if self._counted:
            self.crc = _checksum(self._drawn.popleft(), self.crc)

    @property
    def pending(self) -> list[Any]:
        """Indices drawn and not consumed, oldest first."""
        return list(self._drawn)

    def _skip_consumed(self, draws: Iterator[Any]) -> None:
        for done in range(self._skip):
            index = next(draws, _END)
            if index is _END:
                raise LoaderChangedError(
                    f"the loader ends after {done} batches, but {self._skip} of this pass were consumed before",
                    was=self._skip,
                    now=done,
                    hint="resume with the data set and the batch size that the run was started with",
                )
            self.crc = _checksum(index, self.crc)
        if self._skip and self.crc != self._skip_crc:
            raise DataOrderError(
                f"the loader deals other samples than before the checkpoint, in the first {self._skip} batches",
                hint="its order depends on something that changed in between, such as sampling weights: "
                "run.track(...) that object, or give the sampler a state_dict and load_state_dict",
            )

    def _draws(self, iterator: Iterator[Any], quiet: bool) -> Iterator[Any]:
        """What the sampler yields.

        A sampler of unknown type may draw from the global generators with each index, between training's own
        draws, and with workers also ahead of time. From its second index on it has a stream of its own.
        """
        while True:
            if quiet or self.lane is None:
                index = next(iterator, _END)
                if not quiet:
                    self.lane = self._new_lane()
            else:
                outside = capture_global(cuda=False)
                restore_global(self.lane)
                index = next(iterator, _END)
                self.lane = capture_global(cuda=False)
                restore_global(outside)
            if index is _END:
                self.exhausted = True
                return
            yield index

    def _check_length(self, number: int) -> None:
        """A sampler with its own position that begins a whole pass anew would make this one longer."""
        if self._start and not self._skip and self._length is not None and number >= self._length:
            raise DataOrderError(
                f"after a resume the sampler deals more than the {self._length} batches of its pass",
                hint="its __iter__ must go on from the position in its state_dict to the end of that pass only",
            )

    def _new_lane(self) -> dict[str, Any]:
        # from a seed, and not a copy of the present state: that would deal the numbers that training draws
        outside = capture_global(cuda=False)
        seed_global(batch_seed(self._seed, -1))
        lane = capture_global(cuda=False)
        restore_global(outside)
        return lane

    def _hand_out(self, index: Any, number: int) -> Any:
        if self._counted:
            self._drawn.append(index)
        return Stamped(batch_seed(self._seed, number), index) if self._stamp else index


_END = object()


def _checksum(index: Any, crc: int) -> int:
    try:
        data = array("q", index if isinstance(index, list) else [index]).tobytes()
    except (TypeError, OverflowError):  # indices need not be numbers
        data = repr(index).encode()
    return zlib.crc32(data, crc)
