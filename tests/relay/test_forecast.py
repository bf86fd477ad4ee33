"""What a relay says of its future: sessions, hours, end, waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.relay.forecast import WEEK_S, Forecast, Hours, Work, forecast

H = 3600.0
NOW = 1_796_083_200.0  # Tuesday 1 December 2026, 00:00 UTC
SATURDAY = NOW + 4 * 86400


def test_a_training_that_fits_is_one_session_without_a_wait() -> None:
    got = forecast(Work(left_s=5 * H, window_s=12 * H, overhead_s=180, margin_s=120), NOW)
    assert got == Forecast(1, 5 * H + 180, NOW + 5 * H + 180, trained_s=5 * H)


def test_forty_hours_are_four_sessions_that_wait_for_the_refresh_once() -> None:
    work = Work(left_s=38 * H, window_s=12 * H, least_s=1200, overhead_s=180, margin_s=120, between_s=120)
    got = forecast(work, NOW, Hours(30 * H, 30 * H, SATURDAY))
    assert (got.sessions, got.waits) == (4, 1)
    # three sessions use up the 30 hours: 12, 12, 6; each loses start and margin; the rest comes on Saturday
    assert got.session_s == pytest.approx(30 * H + (38 * H - (30 * H - 3 * 300)) + 180)
    assert got.end_s == pytest.approx(SATURDAY + (38 * H - (30 * H - 3 * 300)) + 180)


def test_hours_that_are_too_few_for_a_session_wait_for_the_refresh() -> None:
    work = Work(left_s=1 * H, window_s=12 * H, least_s=1200)
    got = forecast(work, NOW, Hours(1199, 30 * H, SATURDAY))
    assert (got.sessions, got.waits, got.waited_s) == (1, 1, SATURDAY - NOW)
    assert got.end_s == SATURDAY + H


def test_told_to_stop_it_says_how_far_the_hours_reach() -> None:
    work = Work(left_s=38 * H, window_s=12 * H, least_s=1200)
    got = forecast(work, NOW, Hours(20 * H, 30 * H, SATURDAY), "stop")
    assert (got.sessions, got.trained_s, got.end_s) == (2, 20 * H, None)
    assert got.why == "it stops when the hours are used up"


def test_a_session_over_the_refresh_uses_both_weeks() -> None:
    refresh = NOW + 2 * H
    work = Work(left_s=20 * H, window_s=12 * H, least_s=1200)
    got = forecast(work, NOW, Hours(12 * H, 17 * H, refresh))
    # 2 h of the first session are of the old week, 10 h of the new one: 7 h are left, then a week's wait
    assert (got.sessions, got.waits) == (3, 1)
    assert got.end_s == refresh + WEEK_S + 1 * H


def test_the_session_that_runs_now_is_the_first_one() -> None:
    work = Work(left_s=4 * H, window_s=12 * H, overhead_s=600, running_s=3 * H)
    got = forecast(work, NOW)
    assert (got.sessions, got.session_s) == (2, 4 * H + 600)


@pytest.mark.parametrize(
    ("work", "hours", "why"),
    [
        (
            Work(H, window_s=200, overhead_s=180, margin_s=120),
            None,
            "a window of 3 min 20 s leaves no time to train",
        ),
        (Work(1e9, window_s=60), None, "it is not done after 10000 sessions"),
        (Work(H, 12 * H), Hours(0, 30 * H, None), "the hours are used up, and nobody says when they refresh"),
        (Work(H, 12 * H, least_s=1200), Hours(0, 600, SATURDAY), "the 10 min of a whole period are too short for"),
    ],
)
def test_what_never_ends_is_said(work: Work, hours: Hours | None, why: str) -> None:
    got = forecast(work, NOW, hours)
    assert got.end_s is None
    assert got.why.startswith(why)


def test_hours_of_a_period_that_is_over_are_those_of_the_next() -> None:
    got = forecast(Work(2 * H, 12 * H), NOW, Hours(0, 30 * H, NOW - 1))
    assert (got.sessions, got.waits, got.end_s) == (1, 0, NOW + 2 * H)


seconds = st.floats(0, 400 * H, allow_nan=False)


@given(
    left_s=seconds,
    window_s=st.floats(H, 12 * H),
    overhead_s=st.floats(0, 900),
    margin_s=st.floats(0, 900),
    free_s=st.floats(0, 30 * H),
    refresh_s=st.floats(-WEEK_S, WEEK_S),
    running_s=st.none() | st.floats(0, 12 * H),
)
def test_all_of_the_work_is_done_within_what_is_allowed(
    left_s, window_s, overhead_s, margin_s, free_s, refresh_s, running_s
) -> None:
    work = Work(left_s, window_s, overhead_s, margin_s, 60.0, 1200.0, running_s)
    got = forecast(work, NOW, Hours(free_s, 30 * H, NOW + refresh_s))
    assert got.end_s is not None
    assert got.trained_s == pytest.approx(left_s)
    assert got.session_s >= left_s - 1e-6
    # no hour is used twice: sessions and waits fit in the time there is, and into its periods
    assert got.end_s - NOW >= got.session_s + got.waited_s - 1e-3
    periods = 1 + (got.end_s - NOW) // WEEK_S + 1
    assert got.session_s <= free_s + periods * 30 * H + (running_s or 0) + 1e-3
    assert got.sessions <= 2 + left_s / (window_s - overhead_s - margin_s) + 2 * (got.waits + 1)


@given(left_s=seconds, more_s=st.floats(0, 40 * H), free_s=st.floats(0, 30 * H))
def test_more_work_never_ends_earlier(left_s: float, more_s: float, free_s: float) -> None:
    hours = Hours(free_s, 30 * H, SATURDAY)
    less, more = (
        forecast(Work(work_s, 12 * H, 180, 120, 60, 1200), NOW, hours) for work_s in (left_s, left_s + more_s)
    )
    assert less.end_s is not None and more.end_s is not None
    assert less.end_s <= more.end_s + 1e-3
