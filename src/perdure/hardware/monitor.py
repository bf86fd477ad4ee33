"""Looks at the cards every few seconds while a run trains: one light thread, NVML only."""

from __future__ import annotations

import threading
import time

from perdure.core.clock import Clock
from perdure.core.intervals import format_duration
from perdure.hardware.cards import read_cards
from perdure.hardware.nvml import Nvml, Refusal, open_nvml
from perdure.hardware.sampling import Pids, Sample, Tally, Target, targets_of
from perdure.hardware.use import CardUse

EVERY_S = 2.0
"""Seconds between two looks."""

WINDOW_S = 60.0
"""Seconds that the recent figures are about."""

PROCESSES_EVERY = 5
"""Looks from one question for the processes on a card to the next: it is the dearest."""

SHARE = 0.001
"""Share of a core that looking may take; where a driver is slow to answer, looks become rarer."""

SELDOM_S = 60.0
"""Seconds between two looks at most."""

HUNG_S = 30.0
"""Seconds after which a driver that has not come back with an answer is said to hang."""


class Monitor:
    """Samples the cards that this process sees. Nothing in it raises; trouble is told.

    The thread alone talks to NVML: a driver that hangs costs the caller nothing. What it has seen it publishes as
    whole values, so that no lock is held when a loader forks its workers; in those there is no thread.

    Args:
        clock: Tells how long ago a sample was.
        every_s: Seconds between two looks.
        window_s: Seconds that ``use()`` looks back.
        share: Share of a core that looking may take.
    """

    def __init__(
        self, clock: Clock, every_s: float = EVERY_S, window_s: float = WINDOW_S, share: float = SHARE
    ) -> None:
        self._clock = clock
        self._every_s = every_s
        self._window_s = window_s
        self._share = share
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._watched: tuple[_Watched, ...] = ()
        self._refusal = ""
        self._asking_since: float | None = None
        self._cost_s = 0.0

    def start(self) -> None:
        """Begin; once. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="perdure-monitor", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End; what was seen stays readable. Returns when the thread has ended, or after a second."""
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def use(self, *, whole_session: bool = False) -> tuple[CardUse, ...]:
        """What the cards did lately, or since ``start()``; empty if NVML cannot be asked."""
        if whole_session:
            return tuple(watched.session for watched in self._watched)
        since = self._clock.monotonic() - self._window_s
        return tuple(watched.since(since) for watched in self._watched)

    @property
    def trouble(self) -> str:
        """Why nothing, or not everything, can be sampled; empty if all is well. To be said when it changes."""
        since = self._asking_since
        hung_s = 0.0 if since is None else self._clock.monotonic() - since
        lines = [self._refusal] if self._refusal else []
        if hung_s >= HUNG_S and self._thread is not None and self._thread.is_alive():
            lines.append(f"the NVIDIA driver has not answered for {format_duration(hung_s)}")
        for watched in self._watched:
            target = watched.target
            lines += [f"{target.name} (card {target.card.index}) is lost: {target.lost}"] if target.lost else []
            lines += target.notes
        return "; ".join(lines)

    @property
    def cost_s(self) -> float:
        """CPU time that the thread took, seconds."""
        return self._cost_s

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001  telemetry never stops training, and never fails in silence
            self._refusal = f"the monitor stopped: {type(error).__name__}: {error}"
        self._asking_since = None

    def _sample(self) -> None:
        self._asking_since = self._clock.monotonic()
        nvml = self._open()
        looks, began_s = 0, time.thread_time()
        while nvml is not None and not self._end.is_set():
            self._asking_since = self._clock.monotonic()
            for watched in self._watched:
                watched.look(self._clock, looks % PROCESSES_EVERY == 0)
            if any(watched.target.closed for watched in self._watched):
                nvml = self._attach()
            self._asking_since = None
            self._cost_s = time.thread_time()
            looks += 1
            affordable_s = (self._cost_s - began_s) / looks / self._share
            self._end.wait(max(self._every_s, min(affordable_s, SELDOM_S)))
        if nvml is not None:
            nvml.close()

    def _open(self) -> Nvml | None:
        cards = read_cards()
        if cards.trouble:
            self._refusal = cards.trouble
            return None
        kept = round(self._window_s / self._every_s) + 1
        pids = Pids()
        targets = [target for card in cards.visible for target in targets_of(card, pids)]
        self._watched = tuple(_Watched(target, kept) for target in targets)
        return self._attach()

    def _attach(self) -> Nvml | None:
        """Open NVML for all that is watched; also after another part of the program has shut it down."""
        nvml = open_nvml()
        if isinstance(nvml, Refusal):
            self._refusal = nvml.sentence
            return None
        for watched in self._watched:
            watched.target.attach(nvml)
        return nvml


class _Watched:
    """A card with what was seen of it, published as whole values."""

    def __init__(self, target: Target, kept: int) -> None:
        self.target = target
        self.session = Tally().use(target)
        self._kept = kept
        self._tally = Tally()
        self._recent: tuple[Sample, ...] = ()

    def look(self, clock: Clock, processes: bool) -> None:
        if self.target.lost:
            return
        sample = self.target.look(clock.monotonic(), processes=processes)
        if sample is not None:
            self._tally.add(sample)
            self._recent = (*self._recent[1 - self._kept :], sample)
        self.session = self._tally.use(self.target)

    def since(self, at_s: float) -> CardUse:
        tally = Tally()
        for sample in self._recent:
            if sample.at_s >= at_s:
                tally.add(sample)
        return tally.use(self.target)
