"""The doctor's line about the week's hours."""

from datetime import UTC, datetime

from perdure.checkup import quota as module
from perdure.checkup.checks import lines
from perdure.checkup.gather import Unknown
from perdure.checkup.quota import look_at_quota, quota_checks
from perdure.platforms.protocol import Quota
from perdure.testing.kaggle import Emulator, Fault, Rules

FRIDAY = datetime(2026, 12, 4, tzinfo=UTC).timestamp()


def home(emulator, tmp_path):
    return {"HOME": str(tmp_path), **emulator.environment()}


def test_the_hours_that_are_left_are_said_where_credentials_are_there(emulator, tmp_path):
    (check,) = quota_checks(look_at_quota(home(emulator, tmp_path), "local"))
    assert check.state == "ok"
    assert check.fact.startswith("GPU: 30 h of 30 h left; TPU: 20 h of 20 h left; refreshed ")
    assert check.fact.endswith("UTC") and check.details["gpu"]["allowed_s"] == 108000


def test_the_line_says_what_is_reserved_and_when_it_is_refreshed():
    answer = (Quota("gpu", 20 * 3600, 8 * 3600, 30 * 3600, FRIDAY), Quota("tpu", 0, 0, 20 * 3600, FRIDAY))
    (check,) = quota_checks(answer)
    assert check.fact == (
        "GPU: 2 h of 30 h left, 8 h reserved; TPU: 20 h of 20 h left; refreshed Fri 2026-12-04 00:00 UTC"
    )


def test_few_hours_are_a_warning(tmp_path):
    with Emulator(tmp_path / "emulator", Rules(gpu_used_s=30 * 3600)) as emulator:
        (check,) = quota_checks(look_at_quota(home(emulator, tmp_path), "kaggle"))
    assert check.state == "warning" and check.fact.startswith("GPU: none of 30 h left")
    assert "processor" in check.fix


def test_without_credentials_nobody_is_asked_and_only_kaggle_has_a_line(tmp_path):
    nothing = {"HOME": str(tmp_path)}
    assert quota_checks(look_at_quota(nothing, "local")) == []
    (check,) = quota_checks(look_at_quota(nothing, "kaggle"))
    assert check.state == "note" and "no credentials" in check.fact and "perdure quota" in check.fix


def test_nobody_is_asked_where_the_internet_is_not_to_be_tried(emulator, tmp_path):
    off = home(emulator, tmp_path) | {"PERDURE_REACH": "off"}
    assert quota_checks(look_at_quota(off, "local")) == []
    assert quota_checks(look_at_quota(off, "kaggle"))[0].fact == "not looked at: PERDURE_REACH is off"
    assert not [call for call in emulator.calls() if call.status]


def test_a_kaggle_that_is_silent_costs_some_seconds_and_one_line(emulator, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ASK_S", 0.5)
    emulator.switch(faults=(Fault("*", "stall", stall_s=30.0),))
    (check,) = quota_checks(look_at_quota(home(emulator, tmp_path), "local"))
    assert check.state == "note" and check.fact.startswith("not looked at: ") and "no answer" in check.fact


def test_refused_credentials_are_a_line_and_no_failure(emulator, tmp_path):
    (check,) = quota_checks(look_at_quota(home(emulator, tmp_path) | {"KAGGLE_KEY": "wrong"}, "local"))
    assert check.state == "note" and "does not accept" in check.fact and "wrong" not in check.fact


def test_no_answer_at_all_is_a_line():
    (check,) = quota_checks(Unknown("no answer within 23 s"))
    assert check.state == "note" and list(lines_of(check))


def lines_of(check):
    from perdure.checkup.checks import Checkup

    return lines(Checkup((check,)))
