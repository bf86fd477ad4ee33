"""One pass over a loader: opened at its head or in its middle, and able to say where it stands.

Life of a pass that is taken up again: the generators are set to what they were as the pass began, the loader
is opened, its sampler started and advanced past what was consumed; then ``ready`` is called, which puts back
everything of the boundary; then the next batch is read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perdure.core.errors import DataOrderError, LoaderChangedError
from perdure.core.say import warn
from perdure.data.generators import capture_global, restore_global, seed_global, state_of
from perdure.data.seeds import batch_seed, call_seed
from perdure.data.source import Source, check_subset, has_state
from perdure.data.standin import Deal

State = Mapping[str, Any]
"""Where a pass stands, as plain values and tensors."""


class Feed:
    """Batches of one pass.

    Args:
        source: The loader.
        identity: What tells this pass from others that begin under the same generators.
        resume: ``state()`` of the same pass in an earlier session.
        ready: Called when the past is made up for and the next batch is not yet read.

    Raises:
        LoaderChangedError: The loader has another length than when ``resume`` was taken.
        DataOrderError: It is of another kind, or over another part of the data.
    """

    def __init__(
        self,
        source: Source,
        identity: tuple[object, ...],
        *,
        resume: State | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        if resume is not None:
            _check_same(source, resume)
        self.source = source
        self.batch = int(resume["batch"]) if resume else 0
        self._resume = resume
        self._ready = ready
        self._identity = identity
        self._iterator: Iterator[Any] | None = None
        self._begin: dict[str, Any] = {}
        self._sampler_begin: dict[str, Any] | None = None
        self._seed = 0

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._open()
        batch = self._read(self._iterator)
        self.batch += 1
        return batch

    @property
    def at_end(self) -> bool:
        """Every batch was dealt; False where the loader has no length."""
        return self.source.length is not None and self.batch >= self.source.length

    @property
    def iterator(self) -> object:
        """The loader's iterator, None before the first batch."""
        return self._iterator

    def close(self) -> None:
        """Drop the loader's iterator, so that its workers get their end message at once."""
        self._iterator = None

    def state(self) -> State | None:
        """Where the pass stands, to be taken between two batches. None before its first batch."""
        if self._iterator is None:
            return self._resume
        return {
            "kind": self.source.kind,
            "batch": self.batch,
            "length": self.source.length,
            "subset": self.source.subset,
            "seed": self._seed,
            "begin": self._begin,
            "sampler": self._sampler_begin,
            "dataset": [state_of(g) for g in self.source.dataset_owned],
            **self._own_state(),
        }

    def _open(self) -> Iterator[Any]:
        if self._resume is None:
            self._seed = call_seed(*self._identity)
            self._begin = self.source.capture()
        else:
            self._seed = self._resume["seed"]
            self._begin = dict(self._resume["begin"])
            self.source.restore(self._begin)
        return self._start(self._resume)

    def _made_up(self) -> None:
        """The past is made up for: the boundary may be put back."""
        if self._resume is not None:
            self.source.restore_dataset(self._resume["dataset"])
            self._ready()

    def _undo_base_seed(self) -> None:
        """Persistent workers have their base seed drawn in the first pass of each process only: undo it in all."""
        if self.source.persistent:
            self.source.restore(self._begin)

    def _start(self, resume: State | None) -> Iterator[Any]:
        """Open the loader; call ``_made_up`` when a resumed pass is about to read its next batch."""
        raise NotImplementedError

    def _read(self, iterator: Iterator[Any]) -> Any:
        return next(iterator)

    def _own_state(self) -> dict[str, Any]:
        return {}


class IndexedFeed(Feed):
    """A DataLoader over a data set with indices: skips in the sampler, reads no sample twice."""

    _deal: Deal

    def _start(self, resume: State | None) -> Iterator[Any]:
        holder = self.source.holder
        state = resume or {}
        self._deal = Deal(
            seed=self._seed,
            stamp=self.source.workers > 0,
            start=self.batch,
            skip=holder is None,
            crc=state.get("crc", 0),
            pending=state.get("pending", ()),
            lane=state.get("lane"),
            exhausted=state.get("exhausted", False),
            length=self.source.length,
            on_start=self._on_sampler_start,
            on_ready=self._made_up if holder is None else lambda: None,
        )
        assert self.source.stand_in is not None
        self.source.stand_in.next_deal = self._deal
        return iter(self.source.loader)

    def _on_sampler_start(self) -> None:
        source, resume = self.source, self._resume
        self._undo_base_seed()
        if resume is not None and resume["sampler"] is not None:
            source.restore(resume["sampler"])
        self._sampler_begin = source.capture()
        if resume is not None and source.holder is not None:
            if resume["live"] is not None:
                source.holder.load_state_dict(copy.deepcopy(resume["live"]))
            self._made_up()

    def _read(self, iterator: Iterator[Any]) -> Any:
        batch = next(iterator)
        self._deal.consume()
        return batch

    def _own_state(self) -> dict[str, Any]:
        deal, holder = self._deal, self.source.holder
        if holder is None:
            return {"crc": deal.crc}
        live = copy.deepcopy(holder.state_dict()) if has_state(holder) else None
        return {
            "crc": deal.crc,
            "live": live,
            "pending": deal.pending,
            "lane": deal.lane,
            "exhausted": deal.exhausted,
        }


class ReplayedFeed(Feed):
    """An iterable that cannot be entered in its middle: what was consumed is read once more and dropped.

    Each batch is read under a seed of its own, with the global generators put back afterwards, so that an
    iterable that draws from them gives the same batches again, whatever training drew in between.
    """

    def _start(self, resume: State | None) -> Iterator[Any]:
        if self.source.stand_in is not None:
            self.source.stand_in.next_deal = Deal(
                seed=self._seed,
                stamp=self.source.workers > 0,
                counted=False,
                on_start=self._undo_base_seed,
                on_ready=lambda: None,
            )
        iterator: Iterator[Any] = iter(self.source.loader)
        if resume is not None:
            self._drop_consumed(iterator)
        return iterator

    def _drop_consumed(self, iterator: Iterator[Any]) -> None:
        if self.batch:
            warn(
                f"{type(self.source.loader).__name__} cannot begin in its middle: {self.batch} batches are read "
                "again and dropped; give it a state_dict and load_state_dict to save that time"
            )
        for number in range(self.batch):
            if self._read_seeded(iterator, number) is _END:
                raise _shorter(self.batch, number)
        self._made_up()

    def _read(self, iterator: Iterator[Any]) -> Any:
        batch = self._read_seeded(iterator, self.batch)
        if batch is _END:
            raise StopIteration
        return batch

    def _read_seeded(self, iterator: Iterator[Any], number: int) -> Any:
        outside = capture_global()
        seed_global(batch_seed(self._seed, number))
        try:
            return next(iterator, _END)
        finally:
            restore_global(outside)


class StatefulFeed(Feed):
    """A loader or data set that says and takes its own position."""

    def _start(self, resume: State | None) -> Iterator[Any]:
        if resume is None:
            return iter(self.source.loader)
        self.source.holder.load_state_dict(copy.deepcopy(resume["live"]))
        iterator: Iterator[Any] = iter(self.source.loader)
        self._made_up()
        return iterator

    def _own_state(self) -> dict[str, Any]:
        return {"live": copy.deepcopy(self.source.holder.state_dict())}


class ListFeed(Feed):
    """A list or tuple of batches."""

    def _start(self, resume: State | None) -> Iterator[Any]:
        self._made_up()
        return iter(self.source.loader[self.batch :])


_END = object()
_FEEDS: dict[str, type[Feed]] = {
    "indexed": IndexedFeed,
    "replayed": ReplayedFeed,
    "stateful": StatefulFeed,
    "list": ListFeed,
}


def open_feed(
    source: Source,
    identity: tuple[object, ...],
    *,
    resume: State | None = None,
    ready: Callable[[], None] = lambda: None,
) -> Feed:
    """The pass over a loader that fits its kind; arguments as of ``Feed``."""
    return _FEEDS[source.kind](source, identity, resume=resume, ready=ready)


def _check_same(source: Source, resume: State) -> None:
    if resume["kind"] != source.kind:
        raise DataOrderError(
            f"this pass was begun over a loader of another kind ({resume['kind']}, now {source.kind}), "
            "so it cannot be taken up in its middle",
            hint="resume with the loader that the run was started with",
        )
    was, now = resume["length"], source.length
    if was is not None and now is not None and was != now:
        raise LoaderChangedError(
            f"the loader has {now} batches a pass, it had {was} when the checkpoint was made",
            was=was,
            now=now,
            hint="resume with the data set, batch size and drop_last that the run was started with",
        )
    check_subset(source, resume["subset"])


def _shorter(was: int, now: int) -> LoaderChangedError:
    return LoaderChangedError(
        f"the loader ended after {now} batches, but {was} of this pass were consumed before",
        was=was,
        now=now,
        hint="resume with the data that the run was started with",
    )
