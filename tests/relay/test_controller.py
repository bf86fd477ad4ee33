"""The controller on a scripted platform: every way in which a session, a call or a driver can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.core.errors import (
    CredentialsError,
    NotThereError,
    PlatformError,
    RefusedError,
    RelayError,
    TransientPlatformError,
    UncertainError,
)
from perdure.platforms.protocol import Submission
from perdure.relay.controller import resume_relay, stop_relay
from perdure.relay.handover import Collected
from perdure.relay.lease import Lease
from perdure.relay.records import RunStand
from perdure.relay.store import Store
from perdure.testing.clock import FakeClock
from perdure.testing.platform import Course, ScriptedPlatform
from relay.steady import PACE, STEP_S, Stage, stage

HOUR_S = 3600.0


def set_up(
    tmp_path: Path,
    course: Callable[[Submission], Course] = lambda submission: Course(runs_s=submission.window_s),
    goal: int = 1000,
    allowed_s: float | None = None,
    period_s: float = 7 * 86400.0,
    slots: int = 2,
    **changed: object,
) -> Stage:
    clock = FakeClock()
    platform = ScriptedPlatform(
        clock, course, pace=PACE, allowed_s=allowed_s, period_s=period_s, slots=slots, window_s=12 * HOUR_S
    )
    return stage(tmp_path, platform, clock, goal, **changed)


def failing(call: str, errors: list[BaseException]) -> Callable[[str], None]:
    """Raises the errors, one each time that this call is made."""

    def hook(made: str) -> None:
        if made == call and errors:
            raise errors.pop(0)

    return hook


class Died(BaseException):
    """The process ends here."""


def test_a_run_that_needs_three_windows_gets_three_sessions_in_a_row(tmp_path: Path) -> None:
    it = set_up(tmp_path, notify=("json://x",))
    relay = it.until_rest()
    assert (relay.state, relay.reason, it.fetched) == ("done", "finished", 1)
    assert [each.outcome for each in relay.sessions] == ["paused", "paused", "finished"]
    assert [each.runs[0].step for each in relay.sessions] == [360, 720, 1000]
    sent = list(it.platform.sessions.values())
    assert [[handle.ref[-1] for handle in each.submission.sessions] for each in sent] == [[], ["1"], ["2"]]
    assert sent[2].submission.order["expects"] == [{"run": "digits", "step": 720, "checkpoint": "step-000000720"}]
    assert it.platform.most_at_once() == 1
    assert it.told == [
        "digits: session 1 paused",
        "digits: session 2 paused",
        "digits: session 3 finished",
        "digits is done",
    ]
    assert it.tick() is None


def test_the_intent_is_on_disk_before_the_platform_is_asked(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    seen = []

    def look(call: str) -> None:
        if call == "submit":
            with Store(it.home) as other:
                seen.extend((each.number, each.stage) for each in other.load(it.relay_id).sessions)

    it.platform.before = look
    it.tick()
    assert seen == [(1, "intended")]


def test_an_answer_that_never_came_leads_to_the_session_that_had_begun(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=submission.window_s, hidden_s=100.0))
    it.platform.after = failing("submit", [UncertainError("no answer")])
    relay = it.until_rest()
    assert relay.state == "done"
    assert [each.number for each in relay.sessions] == [1, 2, 3]
    assert it.platform.most_at_once() == 1


def test_a_session_that_never_began_is_given_up_and_its_slug_not_used_again(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.platform.before = failing("submit", [UncertainError("no answer")])
    it.tick()
    assert it.relay.reason == "nobody knows yet whether session 1 began"
    relay = it.until_rest()
    assert [each.stage for each in relay.sessions] == ["abandoned", "collected", "collected", "collected"]
    first, second = relay.sessions[0], relay.sessions[1]
    assert second.intended_s - first.intended_s >= PACE.settle_s
    assert next(iter(it.platform.sessions)) == second.slug != first.slug
    assert relay.state == "done"


def test_a_session_that_turns_up_late_is_taken_instead_of_a_new_one(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=submission.window_s, hidden_s=PACE.settle_s + 30.0))
    it.platform.after = failing("submit", [UncertainError("no answer")])
    blocked = [TransientPlatformError("busy")] * 3
    it.tick()
    it.clock.forward(PACE.settle_s)
    it.platform.before = failing("submit", list(blocked))  # nothing can be submitted until it has turned up
    relay = it.until_rest()
    assert relay.sessions[0].stage == "collected"
    assert relay.state == "done"
    assert it.platform.most_at_once() == 1


def test_a_session_that_turns_up_beside_another_is_ended_at_once(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=submission.window_s, hidden_s=PACE.settle_s + 200.0))
    it.platform.after = failing("submit", [UncertainError("no answer")])
    relay = it.until_rest()
    assert relay.sessions[0].outcome == "no-output"
    assert "after it had been given up" in relay.sessions[0].reason
    double = it.platform.sessions[relay.sessions[0].slug]
    assert double.end == "stopped"
    assert double.ran_s(it.clock.time()) < 600
    assert relay.state == "done"
    assert relay.standing.idle == 0


@pytest.mark.parametrize("call", ["submit", "find", "observe", "quota"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_dies_in_any_call_loses_and_doubles_nothing(tmp_path: Path, call: str, moment: str) -> None:
    it = set_up(tmp_path, allowed_s=100 * HOUR_S, accelerator="t4x2")
    for _ in range(3):
        setattr(it.platform, moment, failing(call, [Died()]))
        if call == "find":
            it.platform.before = failing("submit", [UncertainError("no answer")])
            setattr(it.platform, moment, failing(call, [Died()]) if moment == "after" else it.platform.before)
        for _ in range(100):
            try:
                wake_s = it.tick()
            except Died:
                break
            if wake_s is None:
                break
            it.clock.forward(max(0.0, wake_s - it.clock.time()))
    relay = it.until_rest()
    assert relay.state == "done"
    assert it.platform.most_at_once() == 1
    assert relay.standing.runs[0].stand.step == 1000


def test_slots_that_are_full_are_waited_for_longer_and_longer(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.platform.before = failing("submit", [RefusedError("all slots are taken", code="slots-full")] * 7)
    waits = []
    for _ in range(8):
        wake_s = it.tick()
        assert wake_s is not None
        waits.append(wake_s - it.clock.time())
        it.clock.forward(waits[-1])
    assert waits[:7] == [60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0]
    assert (it.relay.state, [each.number for each in it.relay.sessions]) == ("active", [1])
    assert it.until_rest().state == "done"


def test_a_refusal_that_no_time_can_change_needs_you_at_once(tmp_path: Path) -> None:
    it = set_up(tmp_path, notify=("json://x",))
    it.platform.before = failing(
        "submit", [RefusedError("the source is too large", code="source-size", hint="leave files out")]
    )
    assert it.tick() is None
    assert (it.relay.state, it.relay.sessions) == ("needs-you", ())
    assert it.relay.reason == "the source is too large\nhint: leave files out"
    assert it.told == ["digits needs you"]
    resume_relay(it.store, it.relay_id, it.clock.time())
    assert it.until_rest().state == "done"


def test_inputs_that_are_not_accepted_are_tried_again_under_a_new_slug(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.platform.before = failing("submit", [RefusedError("an input is not valid", code="sources")] * 2)
    relay = it.until_rest()
    assert [each.stage for each in relay.sessions[:3]] == ["abandoned", "abandoned", "collected"]
    assert relay.state == "done"
    it = set_up(tmp_path / "other")
    it.platform.before = failing("submit", [RefusedError("an input is not valid", code="sources")] * 9)
    assert (it.until_rest().state, it.relay.reason) == ("needs-you", "an input is not valid")


def test_errors_that_pass_are_waited_out_and_asked_waits_kept(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.platform.before = failing("observe", [TransientPlatformError("429", retry_after_s=500.0)])
    wake_s = it.tick()  # submitted, and then asked in vain
    assert wake_s == it.clock.time() + 500.0
    assert (it.relay.state, it.relay.reason) == ("active", "429; tried again")
    assert it.until_rest().state == "done"


def test_credentials_that_are_not_accepted_need_you_and_the_session_goes_on(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.tick()
    it.platform.before = failing("observe", [CredentialsError("the key is not accepted", hint="renew it")])
    it.clock.forward(PACE.poll_s)
    assert it.tick() is None
    assert (it.relay.state, it.relay.sessions[0].stage) == ("needs-you", "submitted")
    it.clock.forward(5 * HOUR_S)
    resume_relay(it.store, it.relay_id, it.clock.time())
    assert it.until_rest().state == "done"
    assert len(it.platform.sessions) == 3


@pytest.mark.parametrize("moment", ["before the first session", "unknown fate", "while it runs", "at its end"])
def test_with_the_credentials_of_another_account_nothing_is_asked_and_nothing_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    it = set_up(tmp_path, account="Tester")
    if moment == "unknown fate":
        it.platform.after = failing("submit", [UncertainError("no answer")])
    if moment != "before the first session":
        it.tick()
    it.clock.forward(2 * HOUR_S if moment == "at its end" else 600)
    calls, begun = list(it.platform.calls), len(it.platform.sessions)
    monkeypatch.setattr(it.platform, "account", lambda: "another")
    assert it.until_rest().state == "needs-you"
    assert "those of another" in it.relay.reason and "account Tester" in it.relay.reason
    assert (it.platform.calls, len(it.platform.sessions)) == (calls, begun)
    monkeypatch.setattr(it.platform, "account", lambda: "tester")
    resume_relay(it.store, it.relay_id, it.clock.time())
    assert it.until_rest().state == "done"
    assert (it.platform.most_at_once(), len(it.platform.sessions)) == (1, 3)


def test_a_full_disk_on_this_machine_is_waited_out(tmp_path: Path) -> None:
    it = set_up(tmp_path, goal=100)
    judged = it.judge.__call__
    failures = [OSError(28, "No space left on device")]

    def collect(*args: object) -> Collected | None:
        if failures:
            raise failures.pop()
        return judged(*args)  # type: ignore[arg-type]

    it.judge = collect  # type: ignore[assignment]
    relay = it.until_rest()
    assert relay.state == "done"


def test_a_session_that_is_not_shown_is_not_taken_for_ended(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.tick()
    lost = [NotThereError("not there")] * 10
    it.platform.before = failing("observe", lost)
    for _ in range(10):
        it.clock.forward(PACE.poll_s)
        it.tick()
    assert lost == []
    assert it.relay.sessions[0].stage == "submitted"
    assert "does not show session 1" in it.relay.reason
    assert it.until_rest().state == "done"
    assert it.platform.most_at_once() == 1


def test_a_session_that_stays_away_for_a_window_counts_as_ended(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=submission.window_s, hidden_s=1e9), goal=360)
    it.judge.outcomes = {1: Collected("no-output", "nothing is left of it")}
    it.tick()
    begun_s = it.clock.time()
    while it.relay.sessions[0].stage == "submitted":
        it.clock.forward(60)
        it.tick()
    assert it.clock.time() - begun_s >= HOUR_S + PACE.lag_s
    assert it.relay.standing.idle == 1


@pytest.mark.parametrize(("ran_s", "late_s"), [(100.0, 2 * HOUR_S), (0.0, 8 * HOUR_S)])
def test_an_unknown_word_is_waited_on_and_the_way_out_is_told(tmp_path: Path, ran_s: float, late_s: float) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=ran_s, end="unknown"))
    it.tick()
    it.clock.forward(HOUR_S)
    it.tick()
    reason = "session 1 is in a state that is not known here: 'UNKNOWN'"
    assert (it.relay.sessions[0].stage, it.relay.reason) == ("submitted", reason)
    it.clock.forward(late_s - HOUR_S)
    it.tick()
    assert it.relay.sessions[0].stage == "submitted"
    assert it.relay.reason.startswith(reason)
    assert "`perdure relay stop digits --now` ends it" in it.relay.reason


def test_an_output_that_lags_is_waited_for(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.judge.lags = {1: 3, 2: 1}
    assert it.until_rest().state == "done"
    assert it.judge.judged == [1, 2, 3]


def test_the_third_session_in_a_row_without_progress_needs_you(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    killed = Collected(
        "killed", "it ran out of memory", (RunStand("digits", "running", 0, 0, None),), tail=("OOM",)
    )
    it.judge.outcomes = {1: killed, 3: killed, 4: killed, 5: killed}
    relay = it.until_rest()
    assert [each.outcome for each in relay.sessions] == ["killed", "paused", "killed", "killed", "killed"]
    assert relay.state == "needs-you"
    assert relay.reason == "3 sessions in a row made no progress: it ran out of memory"
    assert relay.sessions[-1].tail == ("OOM",)
    resume_relay(it.store, it.relay_id, it.clock.time())
    assert it.until_rest().state == "done"


def test_a_killed_session_that_got_further_counts_as_progress(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=500.0, end="failed"))
    relay = it.until_rest()
    assert relay.state == "done"
    assert {each.outcome for each in relay.sessions[:-1]} == {"killed"}
    assert len(relay.sessions) == 1000 * STEP_S / 500


def test_a_script_that_fails_twice_at_the_same_step_needs_you_at_once(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    stand = RunStand("digits", "failed", 100, 1, "step-000000100")
    it.judge.outcomes = {number: Collected("failed", "ValueError: x", (stand,)) for number in (1, 2, 3)}
    relay = it.until_rest()
    assert [each.outcome for each in relay.sessions] == ["failed", "failed"]
    assert relay.reason == "the script failed twice at the same step: ValueError: x"


def test_a_script_that_fails_further_on_each_time_goes_on(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.judge.outcomes = {
        number: Collected("failed", "flaky", (RunStand("digits", "failed", 100 * number, 1, "c"),))
        for number in (1, 2, 3, 4, 5)
    }
    assert it.until_rest().state == "done"


def test_a_wrong_accelerator_is_tried_once_more_and_then_needs_you(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    refused = Collected("refused", "no T4 but a P100")
    it.judge.outcomes = {1: refused}
    assert it.until_rest().state == "done"
    it = set_up(tmp_path / "again")
    it.judge.outcomes = {1: refused, 2: refused}
    relay = it.until_rest()
    assert (relay.state, len(relay.sessions)) == ("needs-you", 2)
    assert relay.reason == "two sessions in a row refused to train: no T4 but a P100"


def test_a_session_goes_on_from_where_each_run_got_the_furthest(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    one, two = RunStand("fold1", "finished", 50, 5, "a"), RunStand("fold2", "paused", 20, 2, "b")
    older = RunStand("fold2", "paused", 10, 1, "c")
    it.judge.outcomes = {
        1: Collected("paused", "", (one, two)),
        2: Collected("paused", "cut short", (older,)),
        3: Collected("paused", "", (replace(two, step=30),)),
        4: Collected("finished", "", (replace(two, step=40, status="finished"),)),
    }
    relay = it.until_rest()
    sources = [[handle.ref[-1] for handle in each.submission.sessions] for each in it.platform.sessions.values()]
    assert sources == [[], ["1"], ["1"], ["1", "3"]]
    assert [(each.stand.name, each.session) for each in relay.standing.runs] == [("fold1", 1), ("fold2", 4)]


# hours


def test_hours_that_are_used_up_are_waited_for_until_the_refresh(tmp_path: Path) -> None:
    it = set_up(tmp_path, goal=1500, allowed_s=2.5 * HOUR_S, period_s=86400.0, accelerator="t4x2")
    begun_s = it.clock.time()
    states = []
    while (wake_s := it.tick()) is not None:
        states.append((it.relay.state, it.relay.reason))
        it.clock.forward(max(0.0, wake_s - it.clock.time()))
    relay = it.relay
    assert relay.state == "done"
    windows = [each.submission.window_s for each in it.platform.sessions.values()]
    assert windows[:2] == [HOUR_S, HOUR_S]
    assert 1700 <= windows[2] <= 1800  # what was left, a short session
    assert it.clock.time() - begun_s > 86400.0
    waiting = next(reason for state, reason in states if state == "waiting")
    assert waiting.startswith("2.5 h of 2.5 h of GPU are used; the next come ")
    assert relay.sessions[3].started_s >= begun_s + 86400.0  # type: ignore[operator]


def test_with_cpu_the_run_goes_on_without_an_accelerator_until_the_refresh(tmp_path: Path) -> None:
    it = set_up(
        tmp_path, goal=1500, allowed_s=HOUR_S, period_s=3 * HOUR_S, accelerator="t4x2", when_exhausted="cpu"
    )
    relay = it.until_rest()
    assert relay.state == "done"
    assert [each.accelerator for each in relay.sessions] == ["t4x2", "none", "none", "t4x2", "none"]
    assert it.platform.most_at_once() == 1


def test_with_stop_the_relay_stops_and_says_why(tmp_path: Path) -> None:
    it = set_up(tmp_path, allowed_s=HOUR_S, accelerator="t4x2", when_exhausted="stop")
    relay = it.until_rest()
    assert relay.state == "stopped"
    assert relay.reason.startswith("1.0 h of 1.0 h of GPU are used")
    assert len(relay.sessions) == 1


@pytest.mark.parametrize("accelerator", ["t4x2", "none"])
def test_a_session_without_an_accelerator_that_is_refused_for_hours_is_waited_for(
    tmp_path: Path, accelerator: str
) -> None:
    it = set_up(tmp_path, allowed_s=0.0, accelerator=accelerator, when_exhausted="cpu")
    refused = RefusedError("Maximum weekly accelerator quota reached", code="quota-exhausted")
    it.platform.before = failing("submit", [refused] * 50)
    it.tick()
    assert (it.relay.state, it.platform.calls.count("submit")) == ("waiting", 1)
    assert it.relay.reason == "Maximum weekly accelerator quota reached"


def test_hours_that_the_platform_does_not_tell_are_seen_by_trying(tmp_path: Path) -> None:
    it = set_up(tmp_path, allowed_s=30 * HOUR_S, accelerator="t4x2")
    it.platform.before = failing("quota", [NotThereError("not there, or not for this account")] * 50)
    assert it.until_rest().state == "done"


def test_an_accelerator_that_is_retired_meanwhile_costs_the_running_session_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = set_up(tmp_path, accelerator="t4x2")
    it.tick()

    def retired(name: str) -> float:
        if name == "t4x2":
            raise RefusedError("t4x2 cannot be had any more", code="accelerator")
        return 12 * HOUR_S

    monkeypatch.setattr(it.platform, "window_s", retired)
    it.platform.before = lambda call: retired("t4x2") and None if call == "submit" else None
    relay = it.until_rest()
    assert (relay.state, relay.reason) == ("needs-you", "t4x2 cannot be had any more")
    assert [each.outcome for each in relay.sessions] == ["paused"]


def test_a_refusal_for_hours_is_believed_over_the_figures(tmp_path: Path) -> None:
    it = set_up(tmp_path, allowed_s=30 * HOUR_S, accelerator="t4x2")
    it.platform.before = failing("submit", [RefusedError("Maximum weekly GPU quota", code="quota-exhausted")])
    it.tick()
    assert it.relay.state == "waiting"
    assert it.until_rest().state == "done"


# stop and resume


def test_stop_asks_the_session_and_keeps_what_it_saved(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.tick()
    it.clock.forward(1000)
    assert stop_relay(it.store, it.relay_id, it.clock.time()).state == "stopping"
    relay = it.until_rest()
    assert (relay.state, relay.sessions[0].runs[0].step) == ("stopped", 100)
    assert len(relay.sessions) == 1
    resume_relay(it.store, it.relay_id, it.clock.time())
    relay = it.until_rest()
    assert (relay.state, relay.sessions[1].runs[0].step) == ("done", 460)


def test_stop_says_where_nothing_can_be_stopped_and_waits(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=submission.window_s, stops=False))
    it.tick()
    it.clock.forward(100)
    stop_relay(it.store, it.relay_id, it.clock.time())
    it.tick()
    assert it.relay.state == "stopping"
    assert "its window closes today" in it.relay.reason
    relay = it.until_rest()
    assert (relay.state, relay.sessions[0].runs[0].step) == ("stopped", 360)
    assert it.platform.calls.count("stop") == 1


def test_stop_now_ends_it_at_once(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=submission.window_s, stops=False))
    it.tick()
    it.clock.forward(100)
    stop_relay(it.store, it.relay_id, it.clock.time())
    it.tick()
    stop_relay(it.store, it.relay_id, it.clock.time(), now=True)
    assert it.tick() is None
    assert (it.relay.state, it.platform.running()) == ("stopped", [])


def test_stop_now_does_not_take_a_hidden_session_for_gone(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda each: Course(runs_s=each.window_s, stops=False, hidden_s=PACE.settle_s - 1))
    it.tick()
    stop_relay(it.store, it.relay_id, it.clock.time(), now=True)
    it.tick()
    assert it.relay.state == "stopping"
    resume_relay(it.store, it.relay_id, it.clock.time())
    assert it.until_rest().state == "done"
    assert it.platform.most_at_once() == 1


def test_stop_while_a_session_may_have_begun_leaves_none_behind(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=submission.window_s, hidden_s=60.0))
    it.platform.after = failing("submit", [UncertainError("no answer")])
    it.tick()
    stop_relay(it.store, it.relay_id, it.clock.time())
    relay = it.until_rest()
    assert (relay.state, it.platform.running()) == ("stopped", [])
    assert relay.sessions[0].stage == "collected"


def test_stop_between_the_intent_and_the_submission_submits_nothing(tmp_path: Path) -> None:
    it = set_up(tmp_path, allowed_s=30 * HOUR_S, accelerator="t4x2")

    def stop(call: str) -> None:
        with Store(it.home) as other:
            stop_relay(other, it.relay_id, it.clock.time())

    it.platform.after = lambda call: stop(call) if call == "quota" else None
    it.until_rest()
    assert (it.relay.state, it.platform.sessions) == ("stopped", {})


def test_stop_during_the_submission_is_not_forgotten(tmp_path: Path) -> None:
    it = set_up(tmp_path)

    def stop(call: str) -> None:
        if call == "submit":
            with Store(it.home) as other:
                stop_relay(other, it.relay_id, it.clock.time())

    it.platform.after = stop
    it.until_rest()
    assert (it.relay.state, it.platform.running(), len(it.platform.sessions)) == ("stopped", [], 1)


def test_a_relay_that_is_done_cannot_be_resumed(tmp_path: Path) -> None:
    it = set_up(tmp_path, goal=10)
    it.until_rest()
    with pytest.raises(RelayError, match="is done"):
        resume_relay(it.store, it.relay_id, it.clock.time())


# sessions that do not end


def test_a_session_that_never_leaves_the_queue_is_submitted_anew(tmp_path: Path) -> None:
    it = set_up(
        tmp_path, lambda each: Course(queued_s=1e7 if each.slug.endswith("-1") else 0.0, runs_s=each.window_s)
    )
    it.judge.outcomes = {1: Collected("no-output", "it never ran")}
    relay = it.until_rest()
    assert relay.state == "done"
    assert [each.outcome for each in relay.sessions] == ["no-output", "paused", "paused", "finished"]


def test_a_session_that_runs_past_its_window_is_asked_to_end_and_never_killed_unasked(tmp_path: Path) -> None:
    it = set_up(tmp_path, lambda submission: Course(runs_s=submission.window_s, stops=False), window_s=2 * HOUR_S)
    it.tick()
    session = next(iter(it.platform.sessions.values()))
    session.ended_s += 10 * HOUR_S
    it.clock.forward(6 * HOUR_S)
    it.tick()
    it.clock.forward(HOUR_S)
    it.tick()
    assert it.platform.calls.count("stop") == 1
    assert "`perdure relay stop digits --now` ends it" in it.relay.reason
    assert it.until_rest().state == "done"


# drivers


def test_a_second_driver_keeps_its_hands_off_while_one_acts(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    with Store(it.home) as other:
        lease = Lease(other, it.relay_id)
        assert lease.take(it.clock.time()) is None
        wake_s = it.tick()
        assert wake_s is not None
        assert it.clock.time() < wake_s < it.clock.time() + 10
        assert it.platform.calls == []
        lease.release()
    it.tick()
    assert it.platform.calls == ["submit", "observe"]


def test_a_tick_before_its_time_asks_nothing(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    wake_s = it.tick()
    calls = list(it.platform.calls)
    it.clock.forward(30)
    assert it.tick() == wake_s
    assert it.platform.calls == calls


def test_a_clock_that_was_set_back_does_not_put_the_relay_to_sleep(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    it.tick()
    it.clock.set_wall(it.clock.time() - 30 * 86400)
    calls = len(it.platform.calls)
    it.tick()
    assert len(it.platform.calls) > calls


def test_a_clock_that_was_ahead_when_a_session_ended_does_not_hold_its_output_back(tmp_path: Path) -> None:
    it = set_up(tmp_path)
    nothing = Collected("no-output", "it left nothing")
    it.judge.outcomes, it.judge.lags = {1: nothing}, {1: 1}
    it.tick()
    it.clock.forward(365 * 86400)
    it.tick()
    it.clock.set_wall(it.clock.time() - 364 * 86400)
    it.tick()
    ended_s = it.relay.sessions[0].ended_s
    assert ended_s is not None and ended_s <= it.clock.time()


def test_notices_that_fail_are_recorded_and_never_stop_a_relay(tmp_path: Path) -> None:
    it = set_up(tmp_path, goal=10, notify=("json://x",))
    it.notify = lambda *args: ("json://...: no answer in time",)  # type: ignore[method-assign]
    assert it.until_rest().state == "done"
    assert it.store.problems(it.relay_id) == ("json://...: no answer in time",) * 2
    assert it.store.unsent(it.relay_id) == ()


def test_a_notice_whose_sender_died_is_sent_by_the_next_tick_and_once(tmp_path: Path) -> None:
    it = set_up(tmp_path, goal=10, notify=("json://x",))
    send = it.notify
    it.notify = lambda *args: (_ for _ in ()).throw(Died())  # type: ignore[method-assign]
    while it.relay.state != "done":
        try:
            wake_s = it.tick()
        except Died:
            wake_s = it.store.working(it.relay_id).wake_s
        it.clock.forward(max(0.0, (wake_s or 0.0) - it.clock.time()))
    it.notify = send  # type: ignore[method-assign]
    with Store(it.home) as other:
        lease = Lease(other, it.relay_id)
        assert lease.take(it.clock.time()) is None
        it.tick()
        assert it.told == []  # the other one may be about to send it
        lease.release()
    it.tick()
    it.tick()
    assert it.told == ["digits: session 1 finished", "digits is done"]


def test_a_finished_run_that_cannot_be_brought_is_tried_again(tmp_path: Path) -> None:
    it = set_up(tmp_path, goal=10)
    errors: list[Exception] = [TransientPlatformError("reset"), TransientPlatformError("reset")]

    def fetch(*args: object) -> None:
        if errors:
            raise errors.pop()

    it.fetch = fetch  # type: ignore[method-assign]
    assert it.until_rest().state == "done"
    assert errors == []


def test_a_finished_run_that_is_gone_or_broken_needs_you(tmp_path: Path) -> None:
    for place, error in (("a", NotThereError("no such output")), ("b", PlatformError("cannot write"))):
        it = set_up(tmp_path / place, goal=10)
        it.fetch = lambda *args, error=error: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
        relay = it.until_rest()
        assert (relay.state, relay.reason) == ("needs-you", error.what)
        it.fetch = lambda *args: None  # type: ignore[method-assign]
        resume_relay(it.store, it.relay_id, it.clock.time())
        assert it.until_rest().state == "done"
        assert len(it.relay.sessions) == 1
