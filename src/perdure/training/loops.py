"""The loops of a run: epochs, batches, steps and streams. What the user's own loop is made of."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perdure.core.errors import ConfigError, LoopError
from perdure.core.say import warn
from perdure.data.feed import Feed, State, open_feed
from perdure.data.generators import capture_global, restore_global
from perdure.training.engine import Engine


def check_count(value: Any, what: str) -> int:
    """A number of epochs or steps.

    Raises:
        ConfigError: It is not a whole number from 0 up.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"run.{what}() takes a whole number from 0 up, got {value!r}", hint=f"run.{what}(100)")
    return value


def epochs(engine: Engine, count: int) -> Iterator[int]:
    """Numbers of the epochs that are left to do; the run is finished when they are."""
    first = count if engine.finished else engine.epoch
    for epoch in range(first, count):
        engine.enter_epoch(epoch)
        with engine.body():
            yield epoch
        engine.leave_epoch()
    engine.finish()


def steps(engine: Engine, count: int) -> Iterator[int]:
    """Numbers of the steps that are left to do; the run is finished when they are."""
    first = count if engine.finished else engine.step
    if first < count:
        engine.begin_here()
    for step in range(first, count):
        with engine.body():
            yield step
        engine.step += 1
        stream = next(iter(engine.state.calls.streams()), None)
        engine.epoch = stream.passes if stream is not None else 0
        if engine.step < count:
            engine.boundary("step")
    engine.finish()


class Batches:
    """What ``run.batches(loader)`` returns: the batches of one pass over a loader.

    Args:
        engine: The run's.
        loader: The user's.
    """

    def __init__(self, engine: Engine, loader: Any) -> None:
        if not hasattr(loader, "__iter__"):
            raise ConfigError(
                f"run.batches() takes a loader, got {type(loader).__name__}",
                hint="a DataLoader, or anything else that can be iterated",
            )
        self._engine = engine
        self._loader = loader
        self._source = engine.state.calls.source(loader, carried=engine.state.book.knows(loader))
        self._number: list[int | None] = [engine.number_call()]

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> BatchIterator:
        number = self._number.pop() if self._number else self._engine.number_call()
        return BatchIterator(self._engine, self._source, number)


class BatchIterator:
    """One pass: makes the boundaries of the run, if it is the leading one.

    Attributes:
        number: Number of the call in its epoch; None if nested in a batch of another.
        feed: The pass itself; None before its first batch.
        out: A batch is with the training.
    """

    def __init__(self, engine: Engine, source: Any, number: int | None) -> None:
        self.number = number
        self.feed: Feed | None = None
        self.out = False
        self._engine = engine
        self._source = source
        self._ended = False

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self.feed is None:
            self.feed = self._begin()
        elif self._leads:
            self._between()
        if self.feed is None:  # finished before the checkpoint
            self._ended = True
            raise StopIteration
        try:
            batch = self._engine.watch.next_of(self.feed)
        except StopIteration:
            self._end()
            raise
        self.out = True
        return batch

    def __del__(self) -> None:
        # left by break: the batch that is out counts as a step, the call is finished
        self._end()

    @property
    def _leads(self) -> bool:
        return self.number is not None and self._engine.state.calls.leading() is self

    def _between(self) -> None:
        """The batch that was out is done; a boundary, unless the pass has dealt its last batch.

        Saving there would make a resumed epoch find an empty loop, and names that are set in its body unset;
        the boundary is the epoch's end instead, or the start of the next call.
        """
        engine, feed = self._engine, self.feed
        assert feed is not None
        if self.out:
            self.out = False
            engine.step += 1
        if feed.at_end:
            return
        last = feed.source.length is not None and feed.batch + 1 >= feed.source.length
        try:
            engine.boundary("tail" if last else "step")
        except SystemExit:
            self._end()
            raise

    def _begin(self) -> Feed | None:
        engine, source = self._engine, self._source
        if self.number is None:
            return open_feed(source, ("nested", engine.epoch, engine.step))
        opened = engine.open_call(self)
        if opened is None:
            return None
        state, ready = opened
        engine.state.book.use(source, self.number, reopened=state is not None)
        if state is None:
            return open_feed(source, ("call", engine.epoch, self.number))
        self._warn_of_counters(state["batch"])
        return open_feed(source, (), resume=state, ready=ready or _no_trace())

    def _warn_of_counters(self, done: int) -> None:
        """What counts the batches of a pass from outside begins at 0 again when the pass is resumed."""
        for referrer in gc.get_referrers(self):
            counts_beside = isinstance(referrer, tuple) and any(
                isinstance(item, type(iter(range(0)))) for item in referrer
            )
            if isinstance(referrer, (enumerate, itertools.islice)) or counts_beside:
                name = "zip(range(...), ...)" if counts_beside else type(referrer).__name__
                warn(
                    f"{name} over run.batches(...) counts from 0 again, though {done} batches of this pass were "
                    "done before; use run.batch, which counts on"
                )

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self.feed is not None:
            self.feed.close()
            if self.number is not None:
                self._engine.close_call(self)


class Stream:
    """What ``run.cycle(loader)`` returns: the batches of a loader, pass after pass, without end.

    Attributes:
        passes: Passes that are done.
        feed: The present pass; None before its first batch.
    """

    def __init__(self, engine: Engine, loader: Any) -> None:
        if not hasattr(loader, "__iter__"):
            raise ConfigError(
                f"run.cycle() takes a loader, got {type(loader).__name__}",
                hint="a DataLoader, or anything else that can be iterated",
            )
        self._source = engine.state.calls.source(loader, carried=True)
        self._book = engine.state.book
        self._watch = engine.watch
        self._number, saved = engine.add_stream(self)
        self.passes = int(saved["passes"]) if saved else 0
        self._resume: State | None = saved["feed"] if saved else None
        self.feed: Feed | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        if self.feed is None:
            self.feed = self._open(self._resume)
        try:
            return self._watch.next_of(self.feed)
        except StopIteration:
            if self.feed.batch == 0:
                raise LoopError("the loader of run.cycle() gives no batch", hint="check its data set") from None
        self.feed.close()
        self.passes += 1
        self.feed = self._open(None)
        return self._watch.next_of(self.feed)

    def state(self) -> Mapping[str, Any] | None:
        """Where it stands."""
        return {"passes": self.passes, "feed": self.feed.state() if self.feed else self._resume}

    def close(self) -> None:
        """Drop the loader's iterator."""
        if self.feed is not None:
            self.feed.close()

    def _open(self, resume: State | None) -> Feed:
        identity = ("stream", self._number, self.passes)
        self._book.use(self._source, -1 - self._number, reopened=resume is not None)
        self._resume = None
        if resume is None:
            return open_feed(self._source, identity)
        return open_feed(self._source, identity, resume=resume, ready=_no_trace())


def _no_trace() -> Callable[[], None]:
    """Have a pass taken up again leave no trace in the generators: the draws of its beginning were made before."""
    before = capture_global()
    return lambda: restore_global(before)
