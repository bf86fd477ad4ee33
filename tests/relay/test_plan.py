"""The plan is pure, and its order is the safety: nothing new while anything may still run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.platforms.protocol import Handle, Observation, Pace, Quota
from perdure.relay import actions
from perdure.relay.actions import Seen, Terms
from perdure.relay.hours import least_s, retry_s
from perdure.relay.plan import LOOKS_MOST, plan
from perdure.relay.records import Relay, RelayOrder, RunSource, RunStand, SessionRecord, Standing
from perdure.relay.standing import forgiven, standing_after, trouble

NOW_S = 1_800_000_000.0
PACE = Pace()
ORDER = RelayOrder("digits", "train.py", Path("/p"), "kaggle", "t4x2", 43200.0, Path("/o"), Path("/b"), "d")
RELAY = Relay("0123abcd", ORDER, "active", "", 1, NOW_S)
TERMS = Terms(PACE, "gpu", 43200.0, 43200.0)
HANDLE = Handle("kaggle", "me/slug")

stages = st.sampled_from(["intended", "submitted", "ended", "collected", "abandoned"])
states = st.sampled_from(["queued", "running", "stopping", "complete", "failed", "stopped", "unknown", "missing"])
times = st.one_of(st.none(), st.floats(NOW_S - 1e6, NOW_S + 1e6))


@st.composite
def relays(draw: st.DrawFn) -> Relay:
    sessions = []
    for number in range(1, draw(st.integers(0, 6)) + 1):
        stage = draw(stages)
        if stage in ("intended", "submitted") and any(each.is_open for each in sessions):
            stage = "collected"
        shown = stage not in ("intended", "abandoned") or (stage == "abandoned" and draw(st.booleans()))
        sessions.append(
            SessionRecord(
                number,
                f"s{number}",
                stage,
                "t4x2",
                43200.0,
                NOW_S - 1e5,
                handle=HANDLE if shown else None,
                submitted_s=draw(times),
                started_s=draw(times),
                doubted_s=draw(times),
                missing_s=draw(times),
            )
        )
    standing = Standing(
        numbers=len(sessions),
        idle=draw(st.integers(0, 4)),
        last=draw(st.sampled_from(["", "finished", "paused", "failed", "refused"])),
        alike=draw(st.integers(0, 3)),
    )
    state = draw(st.sampled_from(["active", "waiting", "stopping", "stopped", "done", "needs-you"]))
    stop = draw(st.sampled_from(["", "kindly", "now"]))
    return replace(
        RELAY,
        sessions=tuple(sessions),
        standing=standing,
        state=state,
        stop=stop,
        told=draw(st.sampled_from(["", "kindly", "now"])),
    )


@st.composite
def seens(draw: st.DrawFn) -> Seen:
    numbers = st.sets(st.integers(1, 6))
    return Seen(
        looked=frozenset(draw(numbers)),
        sought=frozenset(draw(numbers)),
        observed={number: Observation(draw(states)) for number in draw(numbers)},
        halted={number: "" for number in draw(numbers)},
        lagging=frozenset(draw(numbers)),
        quota=draw(st.sampled_from([None, (), (Quota("gpu", 0.0, 0.0, 108000.0, None),)])),
        fresh=draw(st.integers(0, 6)),
        refused=draw(st.sampled_from(["", "slots-full", "quota-exhausted", "request"])),
        said="no",
        fetched=draw(st.booleans()),
    )


@given(relays(), seens())
def test_nothing_new_begins_while_anything_may_still_run(relay: Relay, seen: Seen) -> None:
    action = plan(relay, seen, NOW_S, TERMS)
    assert action == plan(relay, seen, NOW_S, TERMS)
    unsettled = [each for each in relay.sessions if each.stage in ("intended", "submitted", "ended")]
    turned_up = [each for each in relay.sessions if each.stage == "abandoned" and each.handle]
    if isinstance(action, actions.Intend | actions.Fetch | actions.Close):
        assert unsettled == turned_up == []
    if isinstance(action, actions.Submit):
        (session,) = [each for each in relay.sessions if each.is_open]
        assert (session.number, session.stage, seen.fresh) == (action.number, "intended", action.number)
    if isinstance(action, actions.End):
        assert seen.observed[action.number].state in ("complete", "failed", "stopped", "missing")
    if isinstance(action, actions.Rest) and relay.state in ("active", "waiting", "stopping"):
        assert action.wake_s is not None
        assert action.wake_s > NOW_S
        assert action.reason
    if relay.state in ("done", "stopped", "needs-you"):
        assert action == actions.Rest(relay.state, relay.reason, None)


@given(relays(), seens())
def test_what_was_asked_once_is_not_asked_again_in_a_tick(relay: Relay, seen: Seen) -> None:
    action = plan(relay, seen, NOW_S, TERMS)
    match action:
        case actions.Look(number):
            assert number not in seen.looked
            assert len(seen.looked) < LOOKS_MOST
        case actions.Find(number):
            assert number not in seen.sought
        case actions.Observe(number):
            assert number not in seen.observed
        case actions.Halt(number):
            assert number not in seen.halted
        case actions.Collect(number):
            assert number not in seen.lagging
        case actions.AskQuota():
            assert seen.quota is None


def gpu(used_h: float, reserved_h: float = 0.0, refresh_s: float | None = NOW_S + 86400.0) -> Seen:
    return Seen(quota=(Quota("gpu", used_h * 3600, reserved_h * 3600, 108000.0, refresh_s),))


@pytest.mark.parametrize(
    ("used_h", "reserved_h", "window_s"),
    [(0, 0, 43200.0), (18, 0, 43200.0), (20, 0, 36000.0), (20, 8, 7200.0), (29.5, 0, 1800.0)],
)
def test_a_session_is_as_long_as_the_hours_that_are_left(used_h: float, reserved_h: float, window_s: float) -> None:
    assert plan(RELAY, gpu(used_h, reserved_h), NOW_S, TERMS) == actions.Intend("t4x2", window_s)


def test_a_session_that_is_not_worth_its_beginning_is_not_begun() -> None:
    action = plan(RELAY, gpu(29.7), NOW_S, TERMS)
    assert isinstance(action, actions.Rest)
    assert (action.state, action.wake_s) == ("waiting", NOW_S + PACE.retry_most_s)
    assert action.reason.startswith("29.7 h of 30.0 h of GPU are used; the next come ")
    soon = plan(RELAY, gpu(29.7, refresh_s=NOW_S + 100), NOW_S, TERMS)
    assert isinstance(soon, actions.Rest)
    assert soon.wake_s == NOW_S + 100
    assert least_s(43200.0) == 1200.0
    assert least_s(10.0) == 5.0


def test_a_session_without_an_accelerator_ends_when_the_hours_come_back() -> None:
    relay = replace(RELAY, order=replace(ORDER, when_exhausted="cpu"))
    assert plan(relay, gpu(30, refresh_s=NOW_S + 7200), NOW_S, TERMS) == actions.Intend("none", 7200.0)
    assert plan(relay, gpu(30, refresh_s=NOW_S + 86400), NOW_S, TERMS) == actions.Intend("none", 43200.0)
    assert isinstance(plan(relay, gpu(30, refresh_s=NOW_S + 60), NOW_S, TERMS), actions.Rest)


def test_waits_double_up_to_their_limit() -> None:
    assert [retry_s(PACE, tries) for tries in (0, 1, 2, 3, 6, 7, 5000)] == [60, 60, 120, 240, 1800, 1800, 1800]


def session(number: int, outcome: str, *runs: RunStand) -> SessionRecord:
    return SessionRecord(number, f"s{number}", "collected", "t4x2", 1.0, NOW_S, outcome=outcome, runs=runs)  # type: ignore[arg-type]


def stand(step: int, status: str = "paused", name: str = "digits", checkpoint: str | None = "c") -> RunStand:
    return RunStand(name, status, step, 0, checkpoint)


def standing_of(*sessions: SessionRecord) -> Standing:
    standing = Standing()
    for each in sessions:
        standing = standing_after(standing, each)
    return standing


def test_progress_is_a_greater_step_or_a_run_that_is_finished() -> None:
    assert standing_of(session(1, "paused", stand(10))).idle == 0
    assert standing_of(session(1, "paused", stand(10)), session(2, "paused", stand(10))).idle == 1
    assert standing_of(session(1, "paused", stand(10)), session(2, "paused", stand(10, "finished"))).idle == 0
    assert standing_of(session(1, "killed", stand(10, checkpoint=None))).idle == 1
    assert standing_of(session(1, "paused", stand(10)), session(2, "paused", stand(3, name="b"))).idle == 0


def test_the_source_of_a_run_is_its_furthest_whole_checkpoint() -> None:
    standing = standing_of(
        session(1, "paused", stand(10)),
        session(2, "killed", stand(0, checkpoint=None)),
        session(3, "paused", stand(7)),
        session(4, "paused", stand(10)),
    )
    assert standing.runs == (RunSource(stand(10), 4),)
    assert (standing.collected, standing.newest, standing.idle) == (4, 4, 3)


def test_what_went_wrong_is_told_by_its_kind_and_can_be_forgiven() -> None:
    twice = standing_of(session(1, "failed", stand(10)), session(2, "failed", stand(10)))
    assert trouble(twice) == "the script failed twice at the same step"
    assert trouble(forgiven(twice)) == ""
    assert trouble(standing_of(session(1, "failed", stand(10)), session(2, "failed", stand(20)))) == ""
    assert (
        trouble(standing_of(session(1, "refused"), session(2, "refused")))
        == "two sessions in a row refused to train"
    )
    assert trouble(standing_of(session(1, "refused"), session(2, "killed"))) == ""
    assert "3 sessions" in trouble(standing_of(*(session(n, "killed") for n in (1, 2, 3))))
    assert forgiven(standing_of(session(1, "finished", stand(10, "finished")))).last == "finished"
