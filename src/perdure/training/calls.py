"""The passes over loaders that a run has open: ``batches()`` calls of the present epoch, and streams."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from perdure.core.errors import LoopError
from perdure.data.feed import Feed, State
from perdure.data.source import Source, make_source
from perdure.training.world.world import World


class OpenCall(Protocol):
    """A ``batches()`` call that is being iterated.

    Attributes:
        number: Its number in the epoch; None if it is nested in a batch of another.
        feed: Its pass; None before its first batch.
        out: A batch of it is with the training.
    """

    number: int | None
    feed: Feed | None
    out: bool


class OpenStream(Protocol):
    """A ``cycle()`` stream."""

    passes: int
    feed: Feed | None

    def state(self) -> Mapping[str, Any] | None:
        """Where it stands."""

    def close(self) -> None:
        """Drop its iterator."""


class Calls:
    """Numbers passes, and knows which are open.

    It refers to them weakly: a pass belongs to the user's loop, and must end with it, so that the loader's
    workers get their end message at once.

    Args:
        world: Says whether a sampler is tracked.
    """

    def __init__(self, world: World) -> None:
        self.begun = 0
        self.skip = 0
        self.reopen: dict[int, State] = {}
        self._world = world
        self._sources: dict[int, tuple[weakref.ref[Any], Source]] = {}
        self._open: list[weakref.ref[OpenCall]] = []
        self._streams: list[weakref.ref[OpenStream]] = []

    def source(self, loader: Any, *, carried: bool) -> Source:
        """The loader as the run sees it; one for each DataLoader, so that persistent workers stay.

        Args:
            loader: The user's.
            carried: It was made before the loop.
        """
        known = self._sources.get(id(loader))
        if known is not None and known[0]() is loader:
            return known[1]
        source = make_source(loader, is_tracked=self._world.is_tracked)
        source.carried = carried
        if source.stand_in is not None:  # the source holds a copy of the loader and not the loader
            self._forget_dead()
            self._sources[id(loader)] = (weakref.ref(loader), source)
        return source

    def _forget_dead(self) -> None:
        """Sources of loaders that are gone hold a copy of them, with its workers."""
        for key, (loader, source) in list(self._sources.items()):
            if loader() is None:
                source.close()
                del self._sources[key]

    def new_epoch(self, skip: int = 0, reopen: Mapping[int, State] | None = None) -> None:
        """An epoch begins.

        Args:
            skip: Calls that were finished before the checkpoint; they deal nothing.
            reopen: States of the calls that were open.
        """
        self.begun, self.skip, self.reopen, self._open = 0, skip, dict(reopen or {}), []

    def number(self) -> int | None:
        """Number of a call that is made now; None if a batch of another call is out."""
        leading = self.leading()
        if leading is not None and leading.out:
            return None
        self.begun += 1
        return self.begun - 1

    def leading(self) -> OpenCall | None:
        """The first of the open calls: the one whose batches are the steps."""
        while self._open:
            call = self._open[0]()
            if call is not None:
                return call
            self._open.pop(0)
        return None

    def leading_feed(self) -> Feed | None:
        """The pass that the steps go by: of the first open call, else of the first stream."""
        leading = self.leading() or next(iter(self.streams()), None)
        return leading.feed if leading is not None else None

    def open(self, call: OpenCall) -> None:
        """A numbered call is about to deal its first batch."""
        self._open.append(weakref.ref(call))

    def close(self, call: OpenCall) -> None:
        """A call has ended."""
        self._open = [ref for ref in self._open if ref() is not None and ref() is not call]

    def opened(self) -> list[OpenCall]:
        """The open calls, oldest first."""
        return [call for ref in self._open if (call := ref()) is not None]

    def add_stream(self, stream: OpenStream) -> int:
        """A stream was made; returns its number."""
        self._streams.append(weakref.ref(stream))
        return len(self._streams) - 1

    def streams(self) -> list[OpenStream | None]:
        """The streams by number; None for one that was dropped."""
        return [ref() for ref in self._streams]

    def states(self) -> dict[str, Any]:
        """Where all passes stand."""
        calls: dict[int, State] = dict(self.reopen)
        for call in self.opened():
            state = call.feed.state() if call.feed is not None else None
            if call.number is not None and state is not None:
                calls[call.number] = state
        streams = [stream.state() if stream is not None else None for stream in self.streams()]
        return {"calls": calls, "streams": streams}

    def iterators(self) -> list[object]:
        """Iterators of the loaders of all open passes."""
        feeds = [call.feed for call in self.opened()]
        feeds += [stream.feed for stream in self.streams() if stream is not None]
        return [feed.iterator for feed in feeds if feed is not None]

    def close_all(self) -> None:
        """The run leaves: end every pass, and every loader's workers."""
        for call in self.opened():
            if call.feed is not None:
                call.feed.close()
        for stream in self.streams():
            if stream is not None:
                stream.close()
        for _, source in self._sources.values():
            source.close()

    def refuse_missing_call(self, call: int, epoch: int) -> None:
        """The epoch of the checkpoint is over, and its open call was never made.

        Raises:
            LoopError: Always.
        """
        raise LoopError(
            f"the checkpoint was taken in batches() call {call} of epoch {epoch} (both from 0), "
            f"but the script made only {self.begun} calls in that epoch",
            hint="resume with the loop that the run was started with",
        )
