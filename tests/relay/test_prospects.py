"""What a relay has left: by what was said, by what was measured; what it used; how that is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta, timezone
from pathlib import Path

import pytest

from perdure.platforms.protocol import Pace, Quota
from perdure.relay.forecast import Forecast
from perdure.relay.ledger import entries, used_by_relay
from perdure.relay.prospects import Prospect, overhead_s, prospect, steps_in_all
from perdure.relay.records import Outcome, Relay, RelayOrder, RunStand, SessionRecord
from perdure.relay.words import moment, sentence, when

H = 3600.0
NOW = 1_796_083_200.0  # Tuesday 1 December 2026, 00:00 UTC
SATURDAY = NOW + 4 * 86400
PACE = Pace(poll_s=60)


def order(**changes: object) -> RelayOrder:
    known = {
        "name": "digits", "target": "train.py", "project": Path("/project"), "platform": "kaggle",
        "accelerator": "t4x2", "window_s": 12 * H, "out": Path("/out"), "bundle": Path("/bundle"), "bundle_digest": "",
    }  # fmt: skip
    return RelayOrder(**{**known, **changes})  # type: ignore[arg-type]


def relay(*sessions: SessionRecord, state: str = "active", name_id: str = "0a0a0a0a", **changes: object) -> Relay:
    return Relay(name_id, order(**changes), state, "", 1, NOW - 100 * H, None, sessions)  # type: ignore[arg-type]


def session(
    number: int, began_s: float, lasted_s: float | None, *runs: RunStand, outcome: Outcome = "paused",
    accelerator: str = "t4x2", accelerator_s: float = 0.0,
) -> SessionRecord:  # fmt: skip
    ended_s = None if lasted_s is None else began_s + lasted_s
    return SessionRecord(
        number, f"perdure-digits-{number}", "submitted" if lasted_s is None else "collected", accelerator, 12 * H,
        began_s, submitted_s=began_s, started_s=began_s, ended_s=ended_s,
        outcome="" if lasted_s is None else outcome, runs=runs, accelerator_s=accelerator_s,
    )  # fmt: skip


def stand(
    step: int, epoch: int = 0, *, count: int | None = 100_000, unit: str = "steps", speed: float | None = 1.0
) -> RunStand:
    return RunStand("digits", "paused", step, epoch, f"step-{step}", count, unit, speed)


def ask(subject: Relay, quota: Quota | None = None, **more: object) -> Prospect:
    return prospect(subject, NOW, PACE, quota=quota, **more)  # type: ignore[arg-type]


def test_before_the_start_the_word_of_the_user_counts() -> None:
    got = ask(relay(expect_s=38 * H), Quota("gpu", 0, 0, 30 * H, SATURDAY), least_s=1200)
    assert got.basis == "from --expect"
    assert got.expected is not None
    assert (got.expected.sessions, got.expected.waits, got.done) == (4, 1, None)


def test_without_a_word_nothing_is_made_up() -> None:
    got = ask(relay())
    assert got.expected is None
    assert "--expect" in got.basis


def test_a_relay_of_the_same_script_tells_how_long_it_took() -> None:
    done = relay(
        session(1, NOW - 50 * H, 12 * H, stand(40_000)),
        session(2, NOW - 30 * H, 8 * H, stand(70_000), outcome="finished"),
        state="done", name_id="0b0b0b0b", name="digits-old",
    )  # fmt: skip
    got = ask(relay(), earlier=[done])
    assert got.basis == "as relay digits-old took"
    # 40,000 s of 12 h and 30,000 s of 8 h were steps at one a second; the newest start cost what was not
    assert got.left_s == pytest.approx(20 * H - 2 * 0 - 2 * overhead_s(done))
    assert got.done is None  # it has not begun
    assert got.expected is not None
    assert got.expected.session_s == pytest.approx(got.left_s + 2 * overhead_s(done) + 120, abs=1)  # of one margin
    other = replace(done, order=replace(done.order, environment={"EPOCHS": "3"}))
    assert ask(relay(), earlier=[other]).expected is None
    other = replace(done, order=replace(done.order, accelerator="none"))
    assert ask(relay(), earlier=[other]).expected is None


def test_measured_speed_beats_the_word_of_the_user() -> None:
    got = ask(relay(session(1, NOW - 13 * H, 12 * H, stand(43_000)), expect_s=380 * H))
    assert got.basis == "from the measured speed"
    assert (got.left_s, got.done) == (57_000, pytest.approx(0.43))
    assert got.expected is not None
    assert got.expected.sessions == 2


def test_the_start_of_a_session_is_what_was_no_training() -> None:
    assert overhead_s(relay()) == 180
    assert overhead_s(relay(window_s=100.0)) == 10
    assert overhead_s(relay(session(1, NOW - 13 * H, 12 * H, stand(42_900)))) == 300


def test_speed_without_an_accelerator_is_not_taken_for_speed_with_one() -> None:
    on_cpu = session(2, NOW - 10 * H, 2 * H, stand(36_100, speed=0.01), accelerator="none")
    got = ask(relay(session(1, NOW - 30 * H, 10 * H, stand(36_000, speed=2.0)), on_cpu))
    assert got.left_s == (100_000 - 36_100) / 2.0


def test_the_running_session_sharpens_it() -> None:
    running = session(2, NOW - 2 * H, None)
    old = relay(session(1, NOW - 20 * H, 12 * H, stand(40_000)), running)
    got = ask(old, live=[stand(50_000, count=None, unit="", speed=None)])
    assert got.left_s == 50_000
    assert got.expected is not None
    # ten hours of its window are left: 36,000 s less the margin
    assert got.expected.sessions == 2


def test_hours_reserved_by_the_running_session_are_its_own() -> None:
    running = relay(session(1, NOW - 2 * H, None), expect_s=20 * H)
    got = ask(running, Quota("gpu", 2 * H, 10 * H, 30 * H, SATURDAY), least_s=1200)
    assert got.expected is not None
    assert (got.expected.sessions, got.expected.waits) == (2, 0)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        (stand(500, count=2000), 2000),
        (stand(500, 5, count=10, unit="epochs"), 10 * 500 / 5.5),
        (stand(500, 0, count=10, unit="epochs"), None),
        (stand(500, count=None), None),
        (stand(1000, 10, count=10, unit="epochs"), 1000),
    ],
)
def test_steps_in_all(given: RunStand, steps: float | None) -> None:
    assert steps_in_all(given) == steps


def test_the_ledger_counts_each_session_once_and_only_what_falls_into_the_period() -> None:
    first = relay(
        session(1, NOW - 14 * H, 12 * H, accelerator_s=10 * H),
        session(2, NOW - 2 * H, 1 * H, accelerator="none"),
        session(3, NOW - 1 * H, None),
    )
    local = relay(session(1, NOW - 2 * H, 1 * H), platform="local")
    found = entries([first, local], "kaggle", {"t4x2": "gpu", "none": None}, "gpu", NOW)
    assert [(entry.session, entry.used_s, entry.runs) for entry in found] == [(1, 10 * H, False), (3, H, True)]
    # the period began when the first session was half through
    assert used_by_relay(found, NOW - 8 * H, NOW) == {"digits": (6 * H, 2)}


def test_a_forecast_is_told_in_the_words_of_the_week() -> None:
    told = sentence(Forecast(4, 38.5 * H, NOW + 14 * H, 1), NOW, "GPU", UTC)
    assert told == "4 sessions, 38.5 GPU hours, done about today 14:00 UTC, waits for the refresh once"
    assert sentence(Forecast(1, 42, NOW + 42), NOW, "GPU", UTC) == "1 session, 42 s of GPU, done in about 42 s"
    stops = Forecast(2, 20 * H, None, trained_s=20 * H, why="it stops when the hours are used up")
    assert sentence(stops, NOW, "GPU", UTC) == (
        "2 sessions, 20.0 GPU hours, not done then: it stops when the hours are used up, 20.0 h of the training done by then"
    )


@pytest.mark.parametrize(
    ("after_s", "hours", "told"),
    [
        (14 * H, 0, "today 14:00 UTC"),
        (5 * 86400 + 14 * H, 0, "Sunday 14:00 UTC"),
        (9 * 86400, 0, "Thu 10 Dec 00:00 UTC"),
        (60 * 86400, 0, "Sat 30 Jan 2027 00:00 UTC"),
        (-2 * 86400, 0, "Sun 29 Nov 00:00 UTC"),
        (20 * H, 14, "Wednesday 10:00 UTC+14:00"),  # it is 14:00 on Tuesday there
        (3 * H, -8, "today 19:00 UTC-08:00"),  # and Monday there
        (61, 0, "today 00:01:01 UTC"),
    ],
)
def test_moments_have_a_zone_and_the_day_of_the_reader(after_s: float, hours: int, told: str) -> None:
    assert moment(NOW + after_s, NOW, timezone(timedelta(hours=hours)) if hours else UTC) == told


def test_how_long_until_then() -> None:
    assert [when(seconds) for seconds in (-5, 90, 7800, 86400, 100 * H)] == [
        "0 s",
        "1 min 30 s",
        "2 h 10 min",
        "1 d",
        "4 d 4 h",
    ]
