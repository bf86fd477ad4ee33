"""A loader as a run sees it: what kind it is, how long, and which generators belong to it."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch.utils.data as tud

from perdure.core.errors import DataOrderError
from perdure.data.generators import capture_global, owned_by, restore_global, set_state, state_of
from perdure.data.seeds import SeededCollate
from perdure.data.standin import StandIn

Kind = Literal["indexed", "replayed", "stateful", "list"]
"""How a pass is taken up again in its middle: skip indices in the sampler; read and drop what was read before;
ask the object that carries the position as its state; or index into a list."""

_QUIET_SAMPLERS = (
    *(tud.SequentialSampler, tud.RandomSampler, tud.SubsetRandomSampler, tud.WeightedRandomSampler),
    tud.DistributedSampler,
)
"""Samplers that draw from the global generators at most once, with their first index (read in torch 2.6-2.13)."""


@dataclass
class Source:
    """One loader of the user's.

    Attributes:
        loader: What is iterated: a copy of a DataLoader, with a stand-in for its sampler; others as they are.
        kind: How it is taken up again.
        length: Batches a pass, None if it has no length.
        stand_in: The copy's sampler; None for other loaders.
        owned: Generators of the loader and of its samplers.
        dataset_owned: Generators of its data set and of its ``collate_fn``.
        holder: The object whose state_dict is the position (``stateful``), or a sampler that has one.
        carried: It was made before the loop, so that its generators carry on from pass to pass.
        subset: Checksum of the indices where the data set is a part of another (``random_split``), else 0.
    """

    loader: Any
    kind: Kind
    length: int | None
    stand_in: StandIn | None = None
    owned: Sequence[Any] = ()
    dataset_owned: Sequence[Any] = ()
    holder: Any = None
    carried: bool = False
    subset: int = 0

    @property
    def workers(self) -> int:
        """Worker processes of the loader."""
        return int(getattr(self.loader, "num_workers", 0) or 0)

    @property
    def persistent(self) -> bool:
        """Whether the workers live on from pass to pass."""
        return bool(getattr(self.loader, "persistent_workers", False)) and self.workers > 0

    def close(self) -> None:
        """End workers that live on from pass to pass.

        Left to the garbage collector they miss their end message, and each costs torch's join time-out of 5 s.
        """
        if self.stand_in is not None:
            self.loader.__dict__["_iterator"] = None

    def capture(self) -> dict[str, Any]:
        """State of the global generators and of those of the loader and its samplers."""
        return {"global": capture_global(), "owned": [state_of(g) for g in self.owned]}

    def restore(self, state: dict[str, Any]) -> None:
        """Put ``capture`` back."""
        restore_global(state["global"])
        self.restore_owned(state["owned"])

    def restore_owned(self, states: Sequence[dict[str, Any]]) -> None:
        """Put back the generators of the loader and its samplers alone."""
        for generator, state in zip(self.owned, states, strict=False):
            set_state(generator, state)

    def restore_dataset(self, states: Sequence[dict[str, Any]]) -> None:
        """Put back the generators of the data set."""
        for generator, state in zip(self.dataset_owned, states, strict=False):
            set_state(generator, state)


def has_state(value: Any) -> bool:
    """Whether an object says and takes its state itself."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def make_source(loader: Any, *, is_tracked: Callable[[Any], bool]) -> Source:
    """See what a loader is.

    Args:
        loader: Anything that can be iterated.
        is_tracked: Whether an object is already part of the run's state.
    """
    length = _length(loader)
    if has_state(loader):
        return Source(loader, "stateful", length, holder=loader)
    if isinstance(loader, (list, tuple)):
        return Source(loader, "list", length)
    if isinstance(loader, tud.DataLoader):
        return _dataloader_source(loader, length, is_tracked)
    return Source(loader, "replayed", length, owned=owned_by([loader]))


def _dataloader_source(
    loader: tud.DataLoader[Any], length: int | None, is_tracked: Callable[[Any], bool]
) -> Source:
    slot = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = getattr(loader, slot)
    chain = _sampler_chain(sampler)
    live = next((s for s in chain if has_state(s) or is_tracked(s)), None)
    stand_in = StandIn(sampler, quiet=all(type(s) in (*_QUIET_SAMPLERS, tud.BatchSampler) for s in chain))
    clone = copy.copy(loader)
    # __dict__, since a DataLoader refuses to have its sampler set after construction; and its own iterator,
    # not the one that persistent workers left on the user's object
    clone.__dict__.update({slot: stand_in, "_iterator": None})
    dataset_owned = owned_by([loader.dataset, loader.collate_fn])
    of_collate = owned_by([loader.collate_fn])
    if of_collate and loader.num_workers > 0:
        clone.__dict__["collate_fn"] = SeededCollate(loader.collate_fn, of_collate)
    known = {id(g) for g in dataset_owned}
    owned = [g for g in owned_by([loader.generator, *chain]) if id(g) not in known]
    source = Source(clone, "indexed", length, stand_in, owned, dataset_owned, holder=live)
    source.subset = _subset_checksum(loader.dataset)
    if type(loader).__iter__ is not tud.DataLoader.__iter__:
        source.kind = "replayed"  # its batches need not be those of its sampler, one for one
    elif isinstance(loader.dataset, tud.IterableDataset):
        stateful = has_state(loader.dataset) and source.workers == 0
        source.kind = "stateful" if stateful else "replayed"
        source.holder = loader.dataset if stateful else None
    elif live is not None:
        source.owned = []  # they are part of the sampler's own state
    return source


def is_own_copy(loader: tud.DataLoader[Any]) -> bool:
    """Whether it is the copy that a run made of a loader of the user's."""
    return isinstance(loader.batch_sampler, StandIn) or isinstance(loader.sampler, StandIn)


def _subset_checksum(dataset: Any) -> int:
    crc = 0
    while isinstance(dataset, tud.Subset):
        crc = zlib.crc32(np.asarray(dataset.indices, dtype=np.int64).tobytes(), crc)
        dataset = dataset.dataset
    return crc


def check_subset(source: Source, saved: int) -> None:
    """A split that is made anew in each session lets samples wander between training and validation.

    Raises:
        DataOrderError: The data set is another part than it was when the checkpoint was made.
    """
    if source.subset != saved:
        raise DataOrderError(
            "the data set is another part than before: its indices differ from those of the earlier session",
            hint='make the split the same in each session: perdure.Run("name", seed=0) above it, or '
            "random_split(..., generator=torch.Generator().manual_seed(0))",
        )


def _sampler_chain(sampler: Any) -> list[Any]:
    chain = [sampler]
    while hasattr(chain[-1], "sampler") and len(chain) < 4:
        chain.append(chain[-1].sampler)
    return chain


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None
