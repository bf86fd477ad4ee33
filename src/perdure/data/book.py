"""Generators of the loaders that the user made before the loop: they carry on from pass to pass.

Between two passes no feed is open, so their state is kept here. A loader that is made in the body of the
loop, say with ``generator=torch.Generator().manual_seed(epoch)``, begins as it was made.
"""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils.data as tud
import xxhash
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perdure.data.generators import state_of
from perdure.data.source import Source, check_subset, has_state, is_own_copy, make_source

_BUILTIN = ("builtins", "collections", "torch", "numpy", "typing", "_io")


class LoaderBook:
    """Keeps account of loaders that existed when the loop began."""

    def __init__(self) -> None:
        self._existing: dict[int, weakref.ref[Any]] = {}
        self._persistent: list[weakref.ref[tud.DataLoader[Any]]] = []
        self._loaders: list[tuple[Source, str]] = []
        self._used: list[tuple[Source, int, str]] = []
        self._saved: list[Mapping[str, Any]] = []

    def begin(self) -> None:
        """The loop begins: note which loaders there are, and how their generators begin."""
        for value in _alive(_makes_loaders):
            is_loader = issubclass(type(value), tud.DataLoader)
            if is_loader and is_own_copy(value):
                continue  # else each run would copy those of all runs before it that are still referred to
            try:
                self._existing[id(value)] = weakref.ref(value)
            except TypeError:  # cannot be referred to weakly
                continue
            if is_loader:
                if value.persistent_workers and value.generator is None:
                    self._persistent.append(weakref.ref(value))
                source = make_source(value, is_tracked=lambda _: False)
                self._loaders.append((source, _fingerprint(source)))

    def iterated_outside(self) -> bool:
        """Whether a loader with persistent workers was iterated by itself, and not through the run.

        Its first pass in each process draws one number from torch's generator, later ones draw none. So a resumed
        run draws one more, and nothing can be done about it from here.
        """
        return any(getattr(ref(), "_iterator", None) is not None for ref in self._persistent)

    def knows(self, loader: Any) -> bool:
        """Whether a loader was made before the loop."""
        known = self._existing.get(id(loader))
        return known is not None and known() is loader

    def resume(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Take what ``state()`` gave in an earlier session; it is put back as loaders are used."""
        self._saved = list(saved)

    def use(self, source: Source, call: int, *, reopened: bool) -> None:
        """A pass over a loader is about to begin.

        Args:
            source: The loader.
            call: Number of the call in its epoch, or -1 - number of the stream.
            reopened: The pass is taken up in its middle; its feed sees to the generators itself.
        """
        if not source.carried or any(_same(source, used) for used, _, _ in self._used):
            return
        if not (source.owned or source.dataset_owned or source.subset or _has_live(source)):
            return
        fingerprint = _fingerprint(source)
        entry = self._claim(fingerprint, call)
        if entry is not None and (entry["fingerprint"], entry["call"]) == (fingerprint, call):
            check_subset(source, entry["subset"])
        if entry is not None and not reopened:
            source.restore_owned(entry["owned"])
            source.restore_dataset(entry["dataset"])
            if entry["live"] is not None and _has_live(source):
                source.holder.load_state_dict(copy.deepcopy(entry["live"]))
        self._used.append((source, call, fingerprint))

    def state(self) -> list[dict[str, Any]]:
        """What is to be known of every loader used so far."""
        fresh = [_entry(source, call, fingerprint) for source, call, fingerprint in self._used]
        outside = [_entry(source, None, fingerprint) for source, fingerprint in self._outside()]
        return fresh + outside + [dict(entry) for entry in self._saved]

    def restore_outside(self) -> None:
        """The boundary is put back: so are the generators of loaders that the script iterates by itself.

        A validation loader with a generator of its own draws from it in each pass, and the run sees none of them.
        """
        waiting = [entry for entry in self._saved if entry["call"] is None]
        self._saved = [entry for entry in self._saved if entry["call"] is not None]
        for source, fingerprint in self._outside():
            entry = next((e for e in waiting if e["fingerprint"] == fingerprint), None)
            if entry is not None:
                waiting.remove(entry)
                source.restore_owned(entry["owned"])
                source.restore_dataset(entry["dataset"])

    def _outside(self) -> list[tuple[Source, str]]:
        """Loaders with generators of their own that the run has not been given."""
        used = {id(g) for source, _, _ in self._used for g in (*source.owned, *source.dataset_owned)}
        return [
            (source, fingerprint)
            for source, fingerprint in self._loaders
            if (source.owned or source.dataset_owned)
            and used.isdisjoint(id(g) for g in (*source.owned, *source.dataset_owned))
        ]

    def _claim(self, fingerprint: str, call: int) -> Mapping[str, Any] | None:
        """The saved entry of a loader.

        That is the one whose generators began alike. Where they are seeded otherwise in each session, no loader
        here begins like the saved one: then it is the one in the same place of the loop.
        """
        same = [e for e in self._saved if e["fingerprint"] == fingerprint]
        known = {fingerprint for _, fingerprint in self._loaders}
        orphans = [e for e in self._saved if e["fingerprint"] not in known and e["call"] == call]
        near = [e for e in same if e["call"] == call] or same or orphans
        if not near:
            return None
        self._saved = [e for e in self._saved if e is not near[0]]
        return near[0]


def iterators_outside(own: Sequence[object]) -> bool:
    """Whether a DataLoader's iterator is alive that is not one of the run's: between two steps it is in the middle
    of a pass, and nobody saves where.

    Args:
        own: The iterators of the run's passes.
    """
    alive = _alive(lambda kind: issubclass(kind, _BaseDataLoaderIter))
    kept = {id(value) for value in own}  # persistent workers keep the iterator of a pass that is over
    kept |= {
        id(getattr(loader, "_iterator", None)) for loader in _alive(lambda kind: issubclass(kind, tud.DataLoader))
    }
    return any(id(value) not in kept for value in alive)


def _alive(wanted: Callable[[type], bool]) -> list[Any]:
    """Objects of wanted types, among hundreds of thousands: the interpreter's own loops do the looking.

    By type, and never isinstance: that would ask strange objects for their ``__class__``.
    """
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if wanted(kind)}
    return list(itertools.compress(objects, map(kinds.__contains__, map(type, objects)))) if kinds else []


def _makes_loaders(kind: type) -> bool:
    if issubclass(kind, tud.DataLoader):
        return True
    if not any("__iter__" in vars(base) for base in kind.__mro__) or issubclass(kind, (type, torch.nn.Module)):
        return False
    return str(kind.__module__).partition(".")[0] not in _BUILTIN


def _entry(source: Source, call: int | None, fingerprint: str) -> dict[str, Any]:
    return {
        "fingerprint": fingerprint,
        "call": call,
        "subset": source.subset,
        "owned": [state_of(g) for g in source.owned],
        "dataset": [state_of(g) for g in source.dataset_owned],
        "live": copy.deepcopy(source.holder.state_dict()) if _has_live(source) else None,
    }


def _same(one: Source, other: Source) -> bool:
    return one is other or (one.loader is other.loader)


def _has_live(source: Source) -> bool:
    """Its sampler or data set carries a position. A loader that does so itself begins a pass at its head."""
    return source.holder is not source.loader and has_state(source.holder)


def _fingerprint(source: Source) -> str:
    digest = xxhash.xxh3_64(repr((type(source.loader).__qualname__, source.length)).encode())
    for generator in (*source.owned, *source.dataset_owned):
        _feed(digest, state_of(generator))
    return digest.hexdigest()


def _feed(digest: xxhash.xxh3_64, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            digest.update(str(key).encode())
            _feed(digest, item)
    else:
        data = value.tobytes() if hasattr(value, "tobytes") else None
        data = value.numpy().tobytes() if isinstance(value, torch.Tensor) else data
        digest.update(repr(value).encode() if data is None else data)
