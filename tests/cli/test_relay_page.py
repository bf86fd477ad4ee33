"""How a relay is shown: what matters is there, in one line each, and for programs too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.relay_page import Page, cards, document, lines, progress, quota_line, session_table, short_line
from perdure.platforms.protocol import Handle, Quota
from perdure.relay.driving import Glance, changes
from perdure.relay.forecast import Forecast
from perdure.relay.live import PREFIX, Live, newest_live
from perdure.relay.prospects import Prospect
from perdure.relay.records import Relay, RelayOrder, RunStand, SessionRecord

H = 3600.0
NOW = 1_796_083_200.0  # Tuesday 1 December 2026, 00:00 UTC


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def order(**changes: Any) -> RelayOrder:
    known = {
        "name": "digits", "target": "train.py", "project": Path("/project"), "platform": "kaggle",
        "accelerator": "t4x2", "window_s": 12 * H, "out": Path("/out"), "bundle": Path("/bundle"), "bundle_digest": "",
    }  # fmt: skip
    return RelayOrder(**{**known, **changes})


def stand(step: int, epoch: int, status: str = "paused") -> RunStand:
    return RunStand("digits", status, step, epoch, f"step-{step}", 10, "epochs", 1.0)


PAUSED = SessionRecord(
    1, "perdure-digits-1", "collected", "t4x2", 12 * H, NOW - 15 * H, submitted_s=NOW - 15 * H, started_s=NOW - 15 * H,
    ended_s=NOW - 3 * H, outcome="paused", reason="the window closes", runs=(stand(400, 4),), accelerator_s=12 * H,
)  # fmt: skip
RUNNING = SessionRecord(
    2, "perdure-digits-2", "submitted", "t4x2", 12 * H, NOW - 2 * H, submitted_s=NOW - 2 * H, started_s=NOW - 2 * H,
    handle=Handle("kaggle", "me/perdure-digits-2", 1, "https://www.kaggle.com/code/me/perdure-digits-2"),
)  # fmt: skip
CARD = {
    "name": "Tesla T4",
    "busy_percent": 97.2,
    "memory_used_bytes": 9_000_000_000,
    "memory_total_bytes": 16_000_000_000,
}
LIVE = Live(2, (stand(520, 5, "running"),), {"loss": 0.25}, (CARD, {**CARD, "busy_percent": 95}), NOW - 30)
QUOTA = Quota("gpu", 14 * H, 10 * H, 30 * H, NOW + 4 * 86400)
PROSPECT = Prospect(Forecast(1, 8 * H, NOW + 8 * H), "from the measured speed", 8 * H, 0.52)


def relay(*sessions: SessionRecord, state: str = "active", reason: str = "", **changes: Any) -> Relay:
    return Relay("0a0a0a0a", order(**changes), state, reason, 3, NOW - 15 * H, NOW + 60, sessions)


def page(*sessions: SessionRecord, **changes: Any) -> Page:
    known = {"resource": "gpu", "live": LIVE, "quota": QUOTA, "seen_s": NOW - 12, "prospect": PROSPECT}
    return Page(relay(*sessions), NOW, **{**known, **changes})


def test_a_page_shows_step_loss_cards_window_hours_and_the_expected_end() -> None:
    assert lines(page(PAUSED, RUNNING)) == [
        "digits  active, train.py on kaggle, t4x2",
        "  training  step 520, epoch 6 of 10, 52 % done, loss 0.25",
        "  session   2 running for 2 h, window closes in 10 h",
        "  page      https://www.kaggle.com/code/me/perdure-digits-2",
        "  gpu       2 x Tesla T4, 97 and 95 % busy, 9.0 GB and 9.0 GB of 16.0 GB",
        "  so far    1 session ended, 12.0 h of GPU",
        "  hours     GPU 6.0 h left of 30.0 h, 14.0 h used, 10.0 h reserved, refreshes Saturday 00:00 UTC (in 4 d)",
        "  expected  1 session, 8.0 GPU hours, done about today 08:00 UTC (from the measured speed)",
        "",
        "  session  began                 lasted  came to  step  with  why",
        "  1        Mon 30 Nov 09:00 UTC  12 h    paused   400   t4x2  the window closes",
        "  2        Mon 30 Nov 22:00 UTC  2 h     running  520   t4x2",
    ]


def test_what_is_not_as_it_should_be_is_said_of_an_active_relay_too() -> None:
    shown = page(PAUSED, RUNNING)
    told = [
        replace(shown, relay=replace(shown.relay, reason=f"session 2 {what}")) for what in ("runs", "is hidden")
    ]
    assert lines(told[0]) == lines(shown)
    assert lines(told[1]) == [lines(shown)[0], "  now       session 2 is hidden", *lines(shown)[1:]]


def test_a_line_says_the_same() -> None:
    assert short_line(page(PAUSED, RUNNING)) == (
        "digits: active, step 520, epoch 6 of 10, 52 % done, loss 0.25, 2 x Tesla T4, 97 and 95 % busy, 9.0 GB and 9.0 GB"
        " of 16.0 GB, window closes in 10 h, 1 session, 8.0 GPU hours, done about today 08:00 UTC (from the measured speed)"
    )


def test_who_waits_learns_for_what_and_until_when() -> None:
    waiting = Relay(
        "0a", order(), "waiting", "30.0 h of 30.0 h of GPU are used", 3, NOW, NOW + 4 * 86400, (PAUSED,)
    )
    shown = "\n".join(lines(Page(waiting, NOW, "gpu", seen_s=NOW)))
    assert "  why       30.0 h of 30.0 h of GPU are used\n" in shown
    assert "  next      tried again Saturday 00:00 UTC (in 4 d)\n" in shown


def test_who_is_needed_sees_the_end_of_the_log_without_what_is_meant_for_programs() -> None:
    failed = SessionRecord(
        1, "s", "collected", "none", H, NOW - H, started_s=NOW - H, ended_s=NOW, outcome="failed",
        tail=("Traceback", PREFIX + "{}", "ValueError: no data"),
    )  # fmt: skip
    shown = lines(Page(relay(failed, state="needs-you", reason="the script failed twice"), NOW))
    assert shown[0].startswith("digits  needs-you")
    assert [line.strip() for line in shown if "Trace" in line or "Error" in line or PREFIX in line] == [
        "Traceback", "ValueError: no data",
    ]  # fmt: skip


def test_the_hint_of_an_error_has_a_line_of_its_own_on_the_page_and_none_among_events() -> None:
    reason = "Kaggle accepted it without a/b\nhint: check the names"
    asked = relay(state="needs-you", reason=reason)
    assert lines(Page(asked, NOW))[1:] == [
        "  why       Kaggle accepted it without a/b",
        "  hint      check the names",
    ]
    told = "needs-you: Kaggle accepted it without a/b; check the names"
    assert changes(relay(), asked) == [told]
    assert short_line(Page(asked, NOW)) == "digits: " + told.replace(":", ",")


def test_notices_that_could_not_be_sent_are_said() -> None:
    asked = page(PAUSED, unsent=("tgram://...: it could not be delivered",) * 2)
    assert "  notices   2 not sent: tgram://...: it could not be delivered" in lines(asked)
    assert len(document(asked)["notices_not_sent"]) == 2


def test_a_relay_that_nobody_drives_says_so() -> None:
    shown = "\n".join(lines(page(PAUSED, RUNNING, seen_s=NOW - 7200, poll_s=60.0)))
    assert (
        "  seen      2 h ago; nobody drives it now: perdure relay watch digits" not in shown
    )  # it is to wake later
    late = Relay("0a", order(), "active", "", 3, NOW, NOW - 7200, (RUNNING,))
    assert "  seen      2 h ago; nobody drives it now: perdure relay watch digits" in lines(
        Page(late, NOW, seen_s=NOW - 7200)
    )


def test_a_session_that_saved_nothing_new_does_not_take_the_run_back() -> None:
    last = SessionRecord(
        2, "s", "collected", "t4x2", H, NOW, started_s=NOW - 60, ended_s=NOW, outcome="finished",
        runs=(RunStand("digits", "finished", 0, 0, None, 10, "epochs"),),
    )  # fmt: skip
    assert "  training  step 400, epoch 4 of 10, finished" in lines(Page(relay(PAUSED, last, state="done"), NOW))


def test_a_session_that_only_brought_a_finished_run_to_its_end_is_shown_where_that_stood() -> None:
    last = replace(
        PAUSED, number=2, outcome="finished", runs=(replace(stand(0, 0, "finished"), checkpoint=None),)
    )  # its training was over before: it saved nothing
    shown = page(replace(PAUSED, runs=(stand(1000, 10),)), last, live=None)
    assert "finished  1000" in session_table(shown)[-1]
    runs = document(shown)["sessions"][-1]["runs"]
    assert [(run["step"], run["checkpoint"], run["status"]) for run in runs] == [(1000, "step-1000", "finished")]


def test_where_nothing_is_left_to_train_no_end_is_foretold_second_by_second() -> None:
    shown = lines(
        page(PAUSED, RUNNING, prospect=Prospect(Forecast(1, 0.0, NOW), "from the measured speed", 0.0, 1.0))
    )
    assert "  expected  nothing is left to train; the session comes to its end" in shown


def test_the_epoch_is_the_same_before_and_after_the_end_of_a_session() -> None:
    running = progress(stand(520, 5, "running"), named=False)
    assert running == progress(stand(520, 5), named=False) == "step 520, epoch 6 of 10"
    assert progress(stand(1000, 10, "finished"), named=False) == "step 1000, epoch 10 of 10, finished"


def test_of_many_sessions_the_newest_are_shown() -> None:
    many = tuple(
        SessionRecord(n, f"s{n}", "collected", "t4x2", H, NOW, started_s=NOW, ended_s=NOW + n, outcome="paused")
        for n in range(1, 101)
    )
    told = session_table(Page(relay(*many), NOW), 5)
    assert told[0] == "(95 earlier left out; perdure relay status --json has all)"
    assert [line.split()[0] for line in told[2:]] == ["96", "97", "98", "99", "100"]


def test_a_page_for_programs_is_json() -> None:
    value = json.loads(json.dumps(document(page(PAUSED, RUNNING))))
    assert (value["state"], value["forecast"]["sessions"], value["quota"]["left_s"]) == ("active", 1, 6 * H)
    assert value["runs"][0]["step"] == 520
    assert value["sessions"][1]["url"].endswith("perdure-digits-2")


def test_hours_that_nobody_knows_the_refresh_of() -> None:
    assert quota_line(Quota("tpu", 0, 0, 20 * H, None), NOW) == "TPU 20.0 h left of 20.0 h, 0 h used"


def test_cards_without_figures_are_named() -> None:
    assert cards(Live(1, cards=({"name": "Tesla T4", "busy_percent": None},))) == "Tesla T4"


def test_the_newest_word_of_a_session_is_found_in_a_damaged_log() -> None:
    beat = {
        "session": 2,
        "said_s": 5.0,
        "runs": [{"name": "digits", "step": 7, "new": 1}],
        "metrics": {"loss": "nan", "acc": 0.5},
    }
    log = [
        "hello",
        PREFIX + json.dumps({"session": 1}),
        PREFIX + json.dumps(beat),
        PREFIX + '{"session":',
        PREFIX + "[1]",
        "end",
    ]
    got = newest_live(log)
    assert got is not None
    assert (got.session, got.runs[0].step, got.metrics) == (2, 7, {"acc": 0.5})
    assert newest_live(["nothing"]) is None


def test_what_was_seen_is_kept_and_what_is_damaged_counts_as_not_seen(tmp_path: Path) -> None:
    seen = Glance(NOW, LIVE, (QUOTA,), "no answer")
    seen.write(tmp_path)
    assert Glance.read(tmp_path) == seen
    (tmp_path / "glance.json").write_text('{"format": 1, "live": 3}')
    assert Glance.read(tmp_path) == Glance()
    seen.write(tmp_path / "glance.json" / "x")  # as little as a full disk


def test_what_has_happened_is_told_once() -> None:
    before, after = relay(PAUSED), relay(PAUSED, RUNNING)
    assert changes(None, after) == []
    assert changes(before, after) == [
        "session 2 submitted: https://www.kaggle.com/code/me/perdure-digits-2", "session 2 runs",
    ]  # fmt: skip
    assert changes(after, after) == []
    over = relay(PAUSED, state="done", reason="finished")
    assert changes(relay(state="active"), over) == [
        "session 1 runs",
        "session 1 paused: digits at step 400: the window closes",
        "done",
    ]
