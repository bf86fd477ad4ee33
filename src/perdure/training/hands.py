"""Threads that stay: beginning a new one for each save would hold the training up until it runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue


class Hand:
    """A thread that does one thing after the other, until it is dismissed.

    Args:
        name: Of the thread.
        nice: How much less it counts than the training, if the processor is wanted by both; on Linux that is
            per thread (setpriority(2)).
    """

    def __init__(self, name: str, nice: int = 0) -> None:
        self._name = name
        self._nice = nice
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Have it done; it must not raise."""
        if self._thread is None or not self._thread.is_alive():  # a child made by fork has none of these threads
            self._thread = threading.Thread(target=self._run, args=(self._work,), name=self._name, daemon=True)
            self._thread.start()
        self._work.put(work)

    def dismiss(self) -> None:
        """Nothing more is to be done; another begins should there be something after all."""
        if self._thread is not None:
            self._work.put(None)
        self._thread, self._work = None, SimpleQueue()

    def _run(self, work: SimpleQueue[Callable[[], None] | None]) -> None:
        _step_back(self._nice)
        while (piece := work.get()) is not None:
            piece()
            del piece  # while it waits for the next, it would hold all that this one had to do with


def _step_back(nice: int) -> None:
    try:
        me = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, me, max(nice, os.getpriority(os.PRIO_PROCESS, me)))
    except (OSError, AttributeError):  # a higher one than the process has, or not a thing here
        return
