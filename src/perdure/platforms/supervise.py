"""Sees a session's process to its end: hands on signals, and closes the window on a script that ignores it."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from perdure.core.clock import SystemClock
from perdure.core.say import say, warn
from perdure.platforms.processes import SessionProcess

_LOOK_EVERY_S = 0.05
_POLL_EVERY_S = 1.0


@dataclass(frozen=True)
class Closing:
    """When a script that does not stop by itself is stopped, on the scale of ``SystemClock.monotonic()``.

    Attributes:
        stop_at_s: When it is told to, by ``SIGTERM``.
        kill_at_s: When it is killed.
    """

    stop_at_s: float = math.inf
    kill_at_s: float = math.inf


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes:
        code: Return code, negative for a signal.
        window_closed: It was told to stop because its window closed.
        asked: The signal by which somebody else asked it to stop; 0 if nobody did.
    """

    code: int
    window_closed: bool
    asked: int


class Supervisor:
    """Watches over one session's process.

    The first ``SIGTERM``, ``SIGHUP`` or ``SIGINT`` is handed on to the script, once, so that it can save and stop;
    a second ``SIGINT`` kills it.

    Args:
        closing: Asked at each look, so that it may learn from what the session does.
        poll: Called about once a second while it runs, and once after its end.
    """

    def __init__(
        self, *, closing: Callable[[], Closing] = Closing, poll: Callable[[], None] = lambda: None
    ) -> None:
        self._closing = closing
        self._poll = poll
        self._clock = SystemClock()
        self._process: SessionProcess | None = None
        self._window_closed = False
        self._asked = 0
        self._interrupted = 0

    def run(self, start: Callable[[], SessionProcess]) -> Outcome:
        """Start the process and wait for its end; all processes of the session are gone when this returns."""
        with self._signals():
            process = self._process = start()
            if self._asked:  # while it was started
                process.signal(signal.SIGTERM)
            try:
                self._watch(process)
            finally:
                code = process.end()
        self._poll()
        return Outcome(code, self._window_closed, self._asked)

    def _watch(self, process: SessionProcess) -> None:
        next_poll_s = self._clock.monotonic() + _POLL_EVERY_S
        while process.poll() is None:
            self._close_window(process)
            if self._clock.monotonic() >= next_poll_s:
                self._poll()
                next_poll_s = self._clock.monotonic() + _POLL_EVERY_S
            time.sleep(_LOOK_EVERY_S)

    def _close_window(self, process: SessionProcess) -> None:
        now_s, closing = self._clock.monotonic(), self._closing()
        if self._window_closed and now_s >= closing.kill_at_s:
            warn("the script did not stop when its window closed: killed")
            process.end()
        elif not self._window_closed and now_s >= closing.stop_at_s:
            self._window_closed = True
            say("the window closes: the script is told to stop")
            process.signal(signal.SIGTERM)

    def _hand_on(self, number: int, _: FrameType | None) -> None:
        first = not self._asked
        self._asked = self._asked or number
        self._interrupted += number == signal.SIGINT
        if self._process is None:
            return
        if self._interrupted > 1:
            self._process.signal(signal.SIGKILL)
        elif first:
            self._process.signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup keeps what it asked for
                before[number] = signal.signal(number, self._hand_on)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
