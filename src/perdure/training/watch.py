"""Watches a run that trains: looks at cards and loop now and then, tells, judges. It never stops a training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from perdure.core.errors import AcceleratorError
from perdure.core.limits import Window
from perdure.core.say import say, warn
from perdure.data.feed import Feed
from perdure.hardware.monitor import Monitor
from perdure.hardware.told import card_facts, loop_facts, verdict_facts
from perdure.hardware.use import CardUse, Circumstances, LoopTimes, Verdict
from perdure.hardware.verdicts import judge
from perdure.training.afterwards import Reminder, another_begins
from perdure.training.circumstances import AutocastWatch
from perdure.training.copying import copy_time, tensors_in
from perdure.training.journal import Journal
from perdure.training.liveline import Progress, live_line
from perdure.training.looptimes import LoopClock
from perdure.training.session import Session

FIRST_LOOK_S = 60.0
LOOK_S = 300.0
_EVENT_S = 60.0
_DURATION = re.compile(r"\d[\d.]* (ms|s|min|h)( \d\d (s|min))?")


class Watch:
    """Watches one run.

    Args:
        name: The run's.
        session: The platform, and where "now" comes from.
        window: The session's.
        journal: Takes events.
        cards: Whether cards are of interest: not where the CPU was asked for.

    Attributes:
        device: Where the run trains; the CPU while that is not chosen.
        loop: The loop's times.
        batch_devices: Where the loader puts its batches.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        window: Window,
        journal: Journal,
        *,
        cards: bool,
    ) -> None:
        clock = session.clock
        self.device = torch.device("cpu")
        self.loop = LoopClock(clock)
        self.batch_devices: set[torch.device] = set()
        self._name = name
        self._clock = clock
        self._place = session.place
        self._window = window
        self._journal = journal
        self._monitor = Monitor(clock) if cards else None
        self._autocast = AutocastWatch()
        self._standing: dict[str, Verdict] = {}
        self._step = 0
        self._first: tuple[float, float] | None = None
        self._next_look_s = math.inf
        self._last_event_s = clock.monotonic()
        self._look_at_batch = False
        self._waiting = False
        self._told: set[str] = set()
        self._told_failure = False
        self._begun = False
        self._taken_before = (0, 0)

    @property
    def _on_card(self) -> bool:
        return self.device.type == "cuda"

    # ---------------------------------------------------------------- from the loop

    def begin(self, step: int) -> None:
        """The loop begins."""
        self._step = step
        self._begun = True
        another_begins()
        self.loop.begin(step)
        self._look_at_batch = True
        self._taken_before = self._taken()
        if self._on_card:
            self._autocast.begin()
        if self._monitor is not None:
            self._monitor.start()

    def next_of(self, feed: Feed) -> Any:
        """The next batch of a pass, timed.

        Raises:
            StopIteration: The pass is over.
        """
        if self._waiting:  # a loader that draws from another pass: the wait is one
            return next(feed)
        self._waiting = True
        began_s = self._clock.monotonic()
        try:
            batch = next(feed)
        finally:
            self._waiting = False
        self.loop.waited(self._clock.monotonic() - began_s)
        if self._look_at_batch:
            self._look_at_batch = False
            with self.never_fatal():
                self._see(batch)
        return batch

    def _see(self, batch: Any) -> None:
        self.batch_devices = {tensor.device for tensor in tensors_in(batch)}
        if self._on_card and self._first is not None:
            self.loop.copied(copy_time(batch, self.device))

    def first_step_done(self, step: int, progress: Progress) -> None:
        """The first step of the session is done: from here on times mean something."""
        now = self._clock.monotonic()
        self._first = (now, progress.done)
        self.loop.first_step_done(step)
        self._look_at_batch = True
        self._next_look_s = now + FIRST_LOOK_S

    def due(self, step: int) -> bool:
        """A boundary is reached; whether it is time for a look."""
        self._step = step
        now = self.loop.boundary(step)
        if now < self._next_look_s:
            return False
        self._next_look_s = now + LOOK_S
        return True

    def saved(self, seconds: float) -> None:
        """A save was made."""
        self.loop.saved(seconds)
        if self._clock.monotonic() - self._last_event_s >= _EVENT_S:
            with self.never_fatal():
                self._hardware_event(self._recent_cards(), self.loop.recent(self._step))

    def stop(self) -> None:
        """Watch no more, and say nothing."""
        self._autocast.end()
        if self._monitor is not None:
            self._monitor.stop()

    def end(self, step: int) -> None:
        """The loop has ended, whatever the reason."""
        self._step = step
        if not self._begun:
            return
        with self.never_fatal():
            self.stop()
            times = self.loop.session(self._step)
            if times.steps:
                self._hardware_event(self._session_cards(), times)
            self._tell_trouble(lost_too=True)
            if self._on_card and self._place.mode == "interactive":
                around = Circumstances(device=str(self.device), mode=self._place.mode)
                Reminder(self._clock, self._window, self._place.platform, around, self._session_cards()).start()

    @property
    def card_used(self) -> bool:
        """This process has put something on the card since the loop began."""
        return self._taken() != self._taken_before

    # ---------------------------------------------------------------- a look

    def look(self, progress: Progress, around: Circumstances) -> None:
        """Tell how it goes, judge it, and note it.

        Args:
            progress: How far the run is.
            around: What else verdicts need to know.
        """
        self._autocast.end()
        self._look_at_batch = True
        with self.never_fatal():
            cards, recent = self._recent_cards(), self.loop.recent(self._step)
            metrics, to_go_s = self._journal.metrics, self._to_go_s(progress)
            say(f"{self._name}: {live_line(progress, cards, recent, metrics, to_go_s, self._window)}")
            self._hardware_event(cards, recent)
            self._tell_trouble(lost_too=False)
            self._take(judge(cards, recent, replace(around, platform=self._place.platform)))

    @property
    def autocast_seen(self) -> bool:
        """Mixed precision was entered."""
        return self._autocast.seen

    def _take(self, verdicts: list[Verdict]) -> None:
        """Say what is new; what went away may be said again when it comes back."""
        now = {_key(verdict): verdict for verdict in verdicts}
        for key in [key for key in self._standing if key not in now]:
            gone = self._standing.pop(key)
            self._journal.event("verdict over", code=gone.code, step=self._step)
        for key, verdict in now.items():
            if key not in self._standing:
                warn(f"{self._name}: {verdict.sentence}\n  {verdict.remedy}")
                self._journal.event("verdict", step=self._step, **verdict_facts(verdict))
            self._standing[key] = verdict

    def _to_go_s(self, progress: Progress) -> float | None:
        """Time to the end of the run, at the speed of this session."""
        if self._first is None or progress.done <= self._first[1]:
            return None
        began_s, began_done = self._first
        taken_s = self._clock.monotonic() - began_s
        return taken_s * (progress.count - progress.done) / (progress.done - began_done)

    def _tell_trouble(self, *, lost_too: bool) -> None:
        """Say what keeps the cards from being watched, each once.

        Args:
            lost_too: Also that a card is lost; in a look the verdict says it.
        """
        trouble = self._monitor.trouble if self._monitor is not None and self._on_card else ""
        for line in trouble.split("; ") if trouble else ():
            kind = _DURATION.sub("", line)
            if kind in self._told:
                continue
            self._told.add(kind)
            self._journal.event("not watched", reason=line, step=self._step)
            if lost_too or " is lost: " not in line:
                warn(f"{self._name}: the cards cannot be watched as they should: {line}; training goes on")

    # ---------------------------------------------------------------- what is known

    def facts(self) -> dict[str, Any]:
        """What ``session.json`` says of cards, loop and verdicts; nothing where the run was finished before."""
        if not self._begun:
            return {"gpu": None, "loop": None, "verdicts": []}
        times = self.loop.session(self._step)
        gpu = None
        with self.never_fatal():
            gpu = self._gpu()
        return {
            "gpu": gpu,
            "loop": {**loop_facts(times), "recent": loop_facts(self.loop.recent(self._step))},
            "verdicts": [verdict_facts(verdict) for verdict in self._standing.values()],
        }

    def _gpu(self) -> dict[str, Any] | None:
        if self._monitor is None:
            return None
        cards, trouble = self._session_cards(), self._monitor.trouble
        if not cards and not self._on_card:
            return None
        return {
            "device": str(self.device),
            "own_peak_bytes": self._own_peak_bytes(),
            "cards": [card_facts(card) for card in cards],
            "recent": [card_facts(card) for card in self._recent_cards()],
            "trouble": trouble,
        }

    @contextmanager
    def never_fatal(self) -> Iterator[None]:
        """What goes wrong in here is said once, and training goes on; a card that is not used is no such thing."""
        try:
            yield
        except AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, training is worth more
            if not self._told_failure:
                self._told_failure = True
                warn(f"{self._name}: watching fails: {type(error).__name__}: {error}; training goes on")

    def _own_peak_bytes(self) -> int:
        """What torch itself had on the card at most; in a container NVML may not tell whose memory it is."""
        if not self._on_card or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.max_memory_allocated(self.device))

    def _taken(self) -> tuple[int, int]:
        """What shows that memory of the card was taken: how often, and the peak, which an earlier run may have set.

        The asynchronous allocator of CUDA counts no allocations (torch, c10/cuda/CUDAMallocAsyncAllocator.cpp).
        """
        if not self._on_card or not torch.cuda.is_initialized():
            return (0, 0)
        count = torch.cuda.memory_stats(self.device).get("allocation.all.allocated", 0)
        return (int(count), self._own_peak_bytes())

    def _recent_cards(self) -> tuple[CardUse, ...]:
        return self._monitor.use() if self._monitor is not None else ()

    def _session_cards(self) -> tuple[CardUse, ...]:
        return self._monitor.use(whole_session=True) if self._monitor is not None else ()

    def _hardware_event(self, cards: tuple[CardUse, ...], times: LoopTimes) -> None:
        self._last_event_s = self._clock.monotonic()
        self._journal.event(
            "hardware",
            step=self._step,
            cards=[card_facts(card) for card in cards],
            loop=loop_facts(times),
        )


def _key(verdict: Verdict) -> str:
    """What it is about: its code, and the card where it is about one."""
    return f"{verdict.code} {verdict.evidence.get('card', '')}"
