"""What does watching a run cost? Makes the second part of docs/performance.md.

    .venv/bin/python benchmarks/watching.py [--looks 2000] [--steps 200000] [--rounds 5] [--save]

Two figures. The monitor's thread: CPU time a look at one card, by ``CLOCK_THREAD_CPUTIME_ID``, through the real
nvidia-ml-py; on a card where there is one, else on the fake NVML of the tests, which costs the Python side only.
And the loop: CPU time a step of the timed feed beside the bare one, taking turns. ``--save`` keeps the figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

from perdure.core.clock import SystemClock
from perdure.data.feed import Feed
from perdure.hardware.cards import read_cards
from perdure.hardware.monitor import EVERY_S, Monitor
from perdure.testing.nvml import FakeCard, Scene, playing
from perdure.training.looptimes import LoopClock
from perdure.training.session import current_session
from perdure.training.watch import Watch

RESULTS = Path(__file__).parent / "results"


@contextmanager
def cards() -> Iterator[str]:
    """The cards of this machine, or played ones; says which."""
    found = read_cards()
    with tempfile.TemporaryDirectory() as folder:
        fake = nullcontext() if found.visible else playing(Path(folder), Scene([FakeCard(busy=90, used_mb=900)]))
        with fake:
            yield found.visible[0].name if found.visible else "fake NVML"


def look_s(looks: int) -> float:
    """CPU time of the thread a look, after the first ones."""
    monitor = Monitor(SystemClock(), every_s=0.001, share=1.0)
    monitor.start()

    def until(count: int) -> float:
        while sum(card.samples for card in monitor.use(whole_session=True)) < count:
            if monitor.trouble:
                raise SystemExit(monitor.trouble)
            time.sleep(0.01)
        return monitor.cost_s

    began_s, first = until(50), monitor.use(whole_session=True)[0].samples
    ended_s, last = until(50 + looks), monitor.use(whole_session=True)[0].samples
    monitor.stop()
    return (ended_s - began_s) / (last - first)


def step_s(steps: int) -> tuple[float, float]:
    """CPU time a step: the bare feed, and the timed one with its boundary."""
    session = current_session()
    watch = Watch("benchmark", session, session.window(session.limits(None)), cast(Any, None), cards=False)
    watch.loop = LoopClock(session.clock)
    batch, feed = object(), cast(Feed, iter(lambda: batch, None))
    began = time.process_time()
    for _ in range(steps):
        next(feed)
    bare = time.process_time()
    for step in range(steps):
        watch.next_of(feed)
        watch.due(step)
    return (bare - began) / steps, (time.process_time() - bare) / steps


def main() -> None:
    """Measure, print, and keep if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--looks", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    with cards() as name:
        looks = [look_s(arguments.looks // arguments.rounds) for _ in range(arguments.rounds)]
    steps = [step_s(arguments.steps) for _ in range(arguments.rounds)]
    look, extra = statistics.median(looks), statistics.median(timed - bare for bare, timed in steps)
    figures = {
        "cards": name,
        "every_s": EVERY_S,
        "look_us": round(look * 1e6, 1),
        "look_us_all": [round(value * 1e6, 1) for value in looks],
        "share_of_a_core_percent": round(100 * look / EVERY_S, 4),
        "step_us": round(extra * 1e6, 3),
        "step_us_all": [round((timed - bare) * 1e6, 3) for bare, timed in steps],
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(figures, indent=2))
    if arguments.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "watching.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
