"""A relay of 1,000 sessions: no tick costs more because of those before it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from perdure.platforms.protocol import Pace
from perdure.testing.clock import FakeClock
from perdure.testing.platform import Course, ScriptedPlatform
from relay.steady import PACE, stage

SESSIONS = 1000
SIZE_MOST_BYTES = 1_500_000
_OPERATIONS = 50


class Meter:
    """Counts what the database does: statements, and operations of its machine, which follow the rows it touches."""

    def __init__(self, stage_of_it) -> None:
        self.statements = self.operations = 0
        connection = stage_of_it.store.connection
        connection.set_trace_callback(self._statement)
        connection.set_progress_handler(self._operation, _OPERATIONS)

    def _statement(self, text: str) -> None:
        self.statements += 1

    def _operation(self) -> int:
        self.operations += _OPERATIONS
        return 0

    def read(self) -> tuple[int, int]:
        figures = (self.statements, self.operations)
        self.statements = self.operations = 0
        return figures


def test_the_cost_of_a_tick_does_not_grow_over_a_thousand_sessions(tmp_path: Path) -> None:
    clock = FakeClock()
    pace = Pace(poll_s=1800.0, settle_s=PACE.settle_s, lag_s=PACE.lag_s)
    platform = ScriptedPlatform(clock, lambda each: Course(runs_s=each.window_s), pace=pace)
    it = stage(tmp_path, platform, clock, goal=360 * SESSIONS)
    controller, meter = it.controller(), Meter(it)
    costs: list[tuple[int, int]] = []
    meter.read()
    while (wake_s := controller.tick(it.relay_id)) is not None:
        costs.append(meter.read())
        clock.forward(max(0.0, wake_s - clock.time()))
        platform.sessions = dict(list(platform.sessions.items())[-3:])  # the script's own, which nobody asks about

    relay = it.relay
    assert (relay.state, len(relay.sessions), relay.standing.numbers) == ("done", SESSIONS, SESSIONS)
    assert [each.number for each in relay.sessions] == list(range(1, SESSIONS + 1))
    tenth = len(costs) // 10
    for early, late in zip(
        zip(*costs[tenth : 2 * tenth], strict=True), zip(*costs[-tenth:], strict=True), strict=True
    ):
        assert median(late) <= median(early) * 1.1
        assert max(late) <= max(early) * 1.1
    assert max(statements for statements, _ in costs) < 120
    it.store.close()
    size_bytes = it.home.database.stat().st_size
    print(f"database of {SESSIONS} sessions: {size_bytes} bytes")
    assert size_bytes < SIZE_MOST_BYTES
