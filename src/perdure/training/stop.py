"""Signals: they set a flag, and the loop stops at its next boundary."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from perdure.core.say import say
from perdure.training.notebook import cell_number

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopFlag:
    """Remembers that the session was asked to stop.

    The handlers are put in place when a loop begins and not on import: other libraries install theirs in
    between (``ray.init`` replaces the one for SIGTERM). Earlier handlers are put back when the loop ends.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._earlier: dict[int, Any] = {}
        self._pid = 0
        self._cell: int | None = None
        self._loops: list[int | None] = []  # those that have begun and not ended, by the cell that they are in

    def forget(self) -> None:
        """A run begins. In a notebook, what was interrupted in an earlier cell was that cell."""
        if self.reason and self._cell is not None and cell_number() != self._cell:
            self.reason = ""

    def install(self) -> None:
        """A loop begins: take SIGTERM and SIGINT over; only the main thread can."""
        self._loops.append(cell_number())
        if self._earlier or threading.current_thread() is not threading.main_thread():
            return
        self._pid = os.getpid()
        for number in _SIGNALS:
            self._earlier[number] = signal.signal(number, self._handle)

    def release(self) -> None:
        """A loop has ended. The signals are given back, unless it ran inside the loop of another run.

        One that failed in an earlier cell, and was never closed, does not count.
        """
        self._loops = self._loops[:-1]
        if cell_number() not in self._loops:
            self.restore()

    def restore(self) -> None:
        """Give the signals back."""
        self._loops = []
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._earlier.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._earlier = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # a forked loader worker: Ctrl-C reaches it too, and its batches are wanted up to the boundary
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        name = signal.Signals(number).name
        if number == signal.SIGINT and self.reason:
            self.restore()
            raise KeyboardInterrupt
        self.reason = f"{name} was received"
        self._cell = cell_number() if number == signal.SIGINT else None
        again = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
        say(f"{name}: saving at the next boundary, then stopping{again}")
        earlier = self._earlier.get(number)
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)
