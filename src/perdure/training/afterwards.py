"""After the end: an interactive session that still holds its card costs quota, and somebody has to say so."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Sequence

from perdure.core.clock import Clock
from perdure.core.intervals import format_duration
from perdure.core.limits import Window
from perdure.core.say import warn
from perdure.hardware.monitor import Monitor
from perdure.hardware.rules import IDLE_PERCENT
from perdure.hardware.use import CardUse, Circumstances
from perdure.hardware.verdicts import after_the_end

REMIND_AFTER_S = (20.0, 600.0, 1800.0, 3600.0)
"""Seconds after the end; the first ones leave time for another run of the same script to begin."""

_LOOK_S = 4.0


class Reminder:
    """Says that a session still holds its card, now and again while the process lives.

    Another run that begins ends it. At the end of the process it is said at once, if it was not yet.

    Args:
        clock: Where "now" comes from.
        window: The session's, which began before the script.
        platform: Where this is.
        around: What else the verdict needs to know.
        cards: As last seen.
        after_s: When to say it, seconds after the end.
    """

    def __init__(
        self,
        clock: Clock,
        window: Window,
        platform: str,
        around: Circumstances,
        cards: Sequence[CardUse],
        after_s: Sequence[float] = REMIND_AFTER_S,
    ) -> None:
        self._clock = clock
        self._window = window
        self._platform = platform
        self._around = around
        self._cards = tuple(cards)
        self._after_s = tuple(after_s)
        self._ended_s = clock.monotonic()
        self._said = False
        self._over = threading.Event()

    def start(self) -> None:
        """The run has ended."""
        if not after_the_end(self._cards, 0.0, self._around, platform=self._platform):
            return
        another_begins()  # one that ran inside of this one's loop has no more to say
        _pending.add(self)
        threading.Thread(target=self._run, name="perdure-reminder", daemon=True).start()

    def cancel(self) -> None:
        """Another run has begun."""
        self._over.set()
        _pending.discard(self)

    def leave(self) -> None:
        """The process ends."""
        if not self._said and not self._over.is_set():
            self._say(self._cards)
        self.cancel()

    def _run(self) -> None:
        for after_s in self._after_s:
            if self._over.wait(max(0.0, self._ended_s + after_s - self._clock.monotonic())):
                return
            now = self._look()  # how busy a card was while the run lasted says nothing about now
            if not self._over.is_set() and not any((card.busy_percent or 0.0) >= IDLE_PERCENT for card in now):
                self._say(now or self._cards)

    def _look(self) -> tuple[CardUse, ...]:
        """What the cards do now: somebody may be using them for something else."""
        monitor = Monitor(self._clock, every_s=_LOOK_S / 4)
        monitor.start()
        self._over.wait(_LOOK_S)
        monitor.stop()
        return monitor.use()

    def _say(self, cards: Sequence[CardUse]) -> None:
        idle_s = self._clock.monotonic() - self._ended_s
        used = format_duration(max(0.0, self._window.elapsed_s))
        for verdict in after_the_end(cards, idle_s, self._around, platform=self._platform):
            self._said = True
            warn(f"{verdict.sentence}; the session has lasted {used}\n  {verdict.remedy}")


_pending: weakref.WeakSet[Reminder] = weakref.WeakSet()


def another_begins() -> None:
    """A loop begins in this process: what was to be said of earlier ones is out of date."""
    for reminder in list(_pending):
        reminder.cancel()


os.register_at_fork(after_in_child=_pending.clear)


@atexit.register
def _leave() -> None:
    for reminder in list(_pending):
        reminder.leave()
