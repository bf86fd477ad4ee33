"""Stopping in time, on a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.core.intervals import Interval
from perdure.core.limits import Window
from perdure.testing.clock import FakeClock
from perdure.training.pace import Pace
from perdure.training.schedule import COST, DISK, YOUNG, SaveSchedule


def test_there_is_always_time_without_a_window():
    clock = FakeClock()
    assert Pace(clock).stop_reason(Window(clock, 0), 0, "step") is None


def test_the_tail_of_an_epoch_is_expected_before_its_last_batch():
    clock = FakeClock()
    pace, window = Pace(clock), Window(clock, clock.monotonic(), 200)
    for kind, seconds in (("step", 1), ("step", 1), ("tail", 60), ("step", 1)):
        gap(pace, clock, seconds, kind)
    pace.saved(0.1)
    clock.forward(100)  # 37 s are left
    assert pace.stop_reason(window, 0, "step") is None
    assert "closes" in pace.stop_reason(window, 0, "tail")


@given(
    step_s=st.floats(0.01, 20),
    save_s=st.floats(0.01, 10),
    window_s=st.floats(100, 50_000),
    margin_s=st.floats(0, 20),
)
def test_a_steady_run_never_passes_its_deadline_and_uses_nearly_all_of_it(step_s, save_s, window_s, margin_s):
    assume(window_s / step_s < 5000)  # each step of the loop below is one of the test's
    clock = FakeClock()
    pace, window = Pace(clock), Window(clock, clock.monotonic(), window_s)
    for _ in range(3):
        pace.leave("step")
        clock.forward(step_s)
        pace.boundary()
        pace.saved(save_s)
    while pace.stop_reason(window, margin_s, "step") is None:
        pace.leave("step")
        clock.forward(step_s)
        pace.boundary()
    clock.forward(save_s)
    assert window.left_s >= 0
    assert window.left_s <= 2 * step_s + save_s + margin_s + 5.1


def gap(pace, clock, seconds, kind="step"):
    pace.leave(kind)
    clock.forward(seconds)
    pace.boundary()


def test_a_slow_first_step_counts_only_until_there_is_another():
    clock = FakeClock()
    pace = Pace(clock)
    gap(pace, clock, 30)
    assert pace.expected_s("step") == 30
    gap(pace, clock, 2)
    assert pace.expected_s("step") == 2
    assert pace.training_s == 32


def test_time_in_a_save_is_no_training_time():
    clock = FakeClock()
    pace = Pace(clock)
    gap(pace, clock, 1)
    pace.leave("step")
    clock.forward(5)
    pace.boundary()
    clock.forward(100)  # a save
    pace.leave("step")
    clock.forward(5)
    pace.boundary()
    assert pace.training_s == 11
    assert pace.expected_s("step") == 5


def test_saves_by_steps_epochs_and_time():
    clock = FakeClock()
    by_steps = SaveSchedule(Interval("steps", 200), clock)
    by_steps.begin(0)
    assert [s for s in range(1, 601) if by_steps.due(s) and (by_steps.begun(s) or True)] == [200, 400, 600]
    by_epochs = SaveSchedule(Interval("epochs", 2), clock)
    by_epochs.epoch_ended()
    assert not by_epochs.due(5)
    by_epochs.epoch_ended()
    assert by_epochs.due(10)
    by_time = SaveSchedule(Interval("seconds", 300), clock)
    clock.forward(299)
    assert not by_time.due(1)
    clock.forward(1)
    assert by_time.due(1)


@given(st.floats(0.001, 5))
def test_auto_holds_the_cost_of_saving_under_one_percent(save_s):
    clock = FakeClock()
    schedule = SaveSchedule(Interval("auto"), clock)
    spent = 0.0
    began = clock.monotonic()
    for _ in range(5000):
        clock.forward(1)
        if schedule.due(0):
            clock.forward(save_s)
            spent += save_s
            schedule.begun(0)
            schedule.saved(save_s, save_s, 1000)
    assert spent / (clock.monotonic() - began) < 0.011


@pytest.mark.parametrize(
    ("cost_s", "seconds", "nbytes", "every_s", "why"),
    [
        (0.001, 0.01, 1_000, 10.0, COST),  # never more often than this
        (3.0, 3.0, 1_000, 360.0, YOUNG),  # sqrt(2 x 3 s x 6 h); 1 % of the time would be 300 s
        (0.0, 1.0, 700_000_000, 35.0, DISK),
        (0.0, 30.0, 1_000, 150.0, DISK),
        (60.0, 60.0, 1_000, 600.0, COST),  # never more rarely than this
    ],
)
def test_the_automatic_interval_says_what_it_was_chosen_for(cost_s, seconds, nbytes, every_s, why):
    clock = FakeClock()
    schedule = SaveSchedule(Interval("auto"), clock)
    told = schedule.saved(cost_s, seconds, nbytes)
    assert told == (every_s != 10.0)
    assert why in str(schedule)
    clock.forward(every_s - 0.1)
    assert not schedule.due(1)
    clock.forward(0.2)
    assert schedule.due(1)


def test_an_interval_of_steps_counts_on_after_a_resume():
    schedule = SaveSchedule(Interval("steps", 100), FakeClock())
    schedule.begin(250)
    assert not schedule.due(299)
    assert schedule.due(300)
