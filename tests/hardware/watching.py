"""A scripted scene watched by the real monitor, and the verdicts on it."""

from __future__ import annotations

import time

from perdure.core.clock import SystemClock
from perdure.hardware.monitor import Monitor
from perdure.hardware.use import CardUse, Circumstances, LoopTimes
from perdure.hardware.verdicts import judge

GB = 1_000_000_000
LIMIT_S = 60.0  # until a test that waits gives up


def until(condition) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)


def quick(clock=None, every_s: float = 0.001, **more) -> Monitor:
    """A monitor that looks as often as it is told to, whatever that costs."""
    return Monitor(clock or SystemClock(), every_s=every_s, share=1.0, **more)


def watch(looks: int = 20, every_s: float = 0.001) -> tuple[Monitor, tuple[CardUse, ...]]:
    """A monitor that has looked that often, and what it saw."""
    monitor = quick(every_s=every_s)
    monitor.start()
    until(lambda: _done(monitor, looks))
    monitor.stop()
    return monitor, monitor.use(whole_session=True)


def _done(monitor: Monitor, looks: int) -> bool:
    cards = monitor.use(whole_session=True)
    return bool(cards) and all(card.lost or card.samples >= looks for card in cards)


def loop(step_s: float = 0.05, wait_s: float = 0.001, steps: int = 1000, **more) -> LoopTimes:
    """A stretch of a loop: so long a step, of which so long was spent waiting."""
    return LoopTimes(steps=steps, wait_s=wait_s * steps, total_s=step_s * steps, **more)


def around(**more) -> Circumstances:
    known = {"device": "cuda:0", "workers": 2, "pinned": True, "cores": 4, "mode": "batch"}
    return Circumstances(**{**known, **more})


def codes(cards, times: LoopTimes | None = None, known: Circumstances | None = None) -> list[str]:
    return [verdict.code for verdict in judge(cards, times or loop(), known or around())]
