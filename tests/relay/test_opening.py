"""What is checked and packed before a relay begins."""

from __future__ import annotations

from pathlib import Path

from perdure.core.errors import NotThereError
from perdure.relay.home import Home
from perdure.relay.opening import Wish, prepare
from perdure.testing.clock import FakeClock
from perdure.testing.platform import ScriptedPlatform


def wish(tmp_path: Path) -> Wish:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print(1)\n")
    return Wish(tmp_path / "project" / "train.py", out=tmp_path / "out")


def test_the_account_is_kept_and_hours_that_may_not_be_asked_for_are_no_hindrance(tmp_path: Path) -> None:
    clock = FakeClock()
    platform = ScriptedPlatform(clock, allowed_s=3600.0)

    def denied(call: str) -> None:
        if call == "quota":
            raise NotThereError("not there, or not for this account")

    platform.before = denied
    opening = prepare(wish(tmp_path), platform, Home(tmp_path / "home"), (), clock.time())
    assert (opening.relay.order.account, opening.quotas) == ("tester", ())
    assert opening.notes[-1] == "the hours that are left are not known: not there, or not for this account"
