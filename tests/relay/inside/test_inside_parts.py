"""The parts of a session: the order, the look at the cards, how an end is judged, what is said meanwhile."""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.core.errors import RelayError
from perdure.hardware.cards import Card, Cards, read_cards
from perdure.platforms.protocol import Accelerator
from perdure.platforms.report import RunReport, SessionReport
from perdure.platforms.source import CARGO_NAME, build_source
from perdure.relay.inside.beat import beat, platform_session
from perdure.relay.inside.cards import check_accelerator
from perdure.relay.inside.ending import judge_end
from perdure.relay.inside.order import Asked, Expected, read_order, session_order
from perdure.relay.inside.project import ProjectCopies
from perdure.relay.inside.refusing import Refused
from perdure.relay.inside.watching import Watcher
from perdure.relay.records import Relay, RelayOrder, RunSource, RunStand, SessionRecord, Standing
from perdure.testing.nvml import FakeCard, Scene, playing
from relay.inside.hosted import RELAY, digest, expected, order, run

T4X2 = Asked("t4x2", 2, "T4", "gpu")


@pytest.fixture(scope="module")
def fake_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nvml")


# the order


def test_an_order_says_what_the_session_must_find_and_is_read_back(tmp_path):
    asked = RelayOrder(
        name="digits", target="src/train.py", project=Path("/p"), platform="kaggle", accelerator="t4x2",
        window_s=43200.0, out=Path("/o"), bundle=Path("/b"), bundle_digest="sha256:00", arguments=("--a", "1"),
        environment={"A": "b"}, internet=True, mirror="kaggle",
    )  # fmt: skip
    runs = (
        RunSource(RunStand("fold-1", "finished", 100, 3, "step-000000100"), 1),
        RunSource(RunStand("fold-2", "paused", 40, 1, "step-000000040"), 2),
        RunSource(RunStand("fold-3", "running", 0, 0, None), 2),
    )
    record = SessionRecord(3, "perdure-digits-3", "intended", "t4x2", 43200.0, 0.0)
    relay = Relay(RELAY, asked, "active", "", 1, 0.0, sessions=(record,), standing=Standing(runs=runs))
    accelerator = Accelerator("t4x2", "NvidiaTeslaT4", "gpu", 2, "T4")
    value = session_order(relay, 3, accelerator, 3600.0)
    path = tmp_path / "order.json"
    path.write_text(json.dumps(value))
    read = read_order(path)
    assert value["cargo"] == {"name": CARGO_NAME, "digest": "sha256:00"}
    assert read.slug == "perdure-digits-3"
    assert read.accelerator == T4X2
    assert not read.older
    again = replace(relay, standing=replace(relay.standing, last="refused"))
    assert session_order(again, 3, accelerator, 3600.0)["older"]
    assert read.expects == (Expected("fold-1", 100, "step-000000100"), Expected("fold-2", 40, "step-000000040"))
    assert (read.target, read.arguments, read.environment) == ("src/train.py", ("--a", "1"), {"A": "b"})
    assert (read.window_s, read.margin_s, read.mirror_to, read.internet) == (3600.0, 120.0, "kaggle", True)
    assert session_order(relay, 3, accelerator, 60.0)["margin_s"] == 4.0  # a small window is not eaten up by it


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "relay": "x"}'])
def test_what_is_no_order_is_said_to_be_none(tmp_path, text):
    (tmp_path / "order.json").write_text(text)
    with pytest.raises(RelayError, match="is no order of a session"):
        read_order(tmp_path / "order.json")


def test_a_source_is_ascii_and_holds_any_order_unharmed():
    odd = order(environment={"A": "\"\"\"\\N{x} ü \u2028 %s {x} '''"}, target='a"""\n.py')
    source = build_source(odd, b"\x00\xff", CARGO_NAME, digest(b"\x00\xff"))
    assert source.isascii()
    scope = {"__name__": "other"}
    compile(source, "kernel.py", "exec")
    exec(source[source.index("\nORDER = ") : source.index("\n# a notebook")], scope)
    assert json.loads(scope["ORDER"]) == odd


# the accelerator


def test_the_right_cards_are_named(fake_folder):
    with playing(fake_folder, Scene([FakeCard(), FakeCard()])):
        assert check_accelerator(T4X2, "kaggle") == ["Tesla T4", "Tesla T4"]


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        (
            [FakeCard("Tesla P100-PCIE-16GB")],
            "t4x2 (2 x T4) was asked for, and this session has Tesla P100-PCIE-16GB",
        ),
        ([FakeCard()], "t4x2 (2 x T4) was asked for, and this session has Tesla T4"),
        ([FakeCard(), FakeCard(lost_after=0, errors={"handle": 15})], "and this session has Tesla T4"),
    ],
)
def test_another_card_is_refused_with_what_to_do(fake_folder, cards, words):
    with playing(fake_folder, Scene(cards)), pytest.raises(Refused) as caught:
        check_accelerator(T4X2, "kaggle")
    assert words in str(caught.value)
    assert "NvidiaTeslaT4" in str(caught.value)  # the fix


def test_no_card_at_all_is_refused_with_why(fake_folder):
    with (
        playing(fake_folder, Scene(init_error=12)),
        pytest.raises(Refused, match="t4x2 was asked for, and there is no NVIDIA driver"),
    ):
        check_accelerator(T4X2, "kaggle")


def test_a_driver_that_never_answers_does_not_hold_the_session_up():
    forever = threading.Event()
    with pytest.raises(Refused, match="gave no answer"):
        check_accelerator(T4X2, "kaggle", read=lambda: forever.wait() and Cards(), answer_most_s=0.05)
    forever.set()


def test_hidden_cards_count_and_nothing_is_looked_for_where_nothing_was_asked():
    hidden = Cards(cards=(Card(0, "GPU-0", "Tesla T4"), Card(1, "GPU-1", "Tesla T4")), trouble="hidden")
    assert check_accelerator(T4X2, "kaggle", read=lambda: hidden) == ["Tesla T4", "Tesla T4"]
    assert check_accelerator(Asked(), "kaggle", read=lambda: pytest.fail("looked")) == []


def test_a_tpu_is_known_by_what_the_platform_announces():
    tpu = Asked("tpu", 0, "", "tpu")
    assert check_accelerator(tpu, "kaggle", {"TPU_ACCELERATOR_TYPE": "v5e-8"}) == ["v5e-8"]
    with pytest.raises(Refused, match="this session has Tesla T4"):
        check_accelerator(tpu, "kaggle", {}, read=lambda: Cards(cards=(Card(0, "GPU-0", "Tesla T4"),)))
    check_accelerator(tpu, "kaggle", {}, read=Cards)  # no sign of one proves nothing


def test_a_session_with_another_card_ends_at_once_and_says_refused(tmp_path, fake_folder):
    with playing(fake_folder, Scene([FakeCard("Tesla P100-PCIE-16GB")])) as fake:
        assert read_cards().cards[0].name.startswith("Tesla P100")
        what = order(accelerator={"name": "t4x2", "cards": 2, "card": "T4", "resource": "gpu"})
        done = run(tmp_path, {"train.py": "print('ran')"}, what, **fake.environment)
    assert (done.code, done.marker.status) == (0, "refused")
    assert "Tesla P100-PCIE-16GB" in done.marker.reason
    assert "ran" not in done.out.splitlines()
    assert done.marker.accelerator_s > 0  # it has used hours all the same


# how it ended


def report(status, **more):
    return SessionReport(status, (RunReport("digits", Path("/x"), status, **more),))


@pytest.mark.parametrize(
    ("code", "told", "closed", "status", "words"),
    [
        (0, None, False, "finished", "does not use Perdure"),
        (0, report("finished"), False, "finished", ""),
        (75, report("paused", reason="the window closes"), False, "paused", "the window closes"),
        (0, report("paused", reason="the window closes"), False, "paused", "the window closes"),
        (75, None, False, "paused", ""),
        (0, report("failed", reason="disk full"), False, "failed", "is failed: disk full"),
        (3, None, False, "failed", "failed with exit code 3"),
        (1, report("failed", reason="ValueError: x"), False, "failed", "exit code 1: ValueError: x"),
        (1, report("finished"), False, "failed", "exit code 1"),  # after the training, in the export
        (128 + signal.SIGSEGV, report("running"), True, "failed", "killed by SIGSEGV"),
        (128 + signal.SIGKILL, report("running", checkpoint="step-000000005"), True, "paused", "last checkpoint"),
        (128 + signal.SIGKILL, report("running", checkpoint="step-000000005"), False, "failed", "out of memory"),
        (128 + signal.SIGTERM, report("running"), True, "failed", "saved nothing"),
        (255, None, False, "failed", "failed with exit code 255"),
    ],
)
def test_an_end_is_judged_by_the_exit_code_and_the_runs(code, told, closed, status, words):
    ending = judge_end(code, told, window_closed=closed)
    assert ending.status == status
    assert words in ending.reason
    assert ending.exit_code == (1 if status == "failed" else 0)


def test_a_run_that_was_at_its_end_already_need_not_be_opened_again():
    assert judge_end(0, report("finished"), window_closed=False, unfinished=["digits"]).status == "finished"
    assert judge_end(0, None, window_closed=False, unfinished=[]).status == "finished"
    assert judge_end(0, report("finished"), window_closed=False, unfinished=["fold2"]).status == "failed"


# what is said meanwhile


def test_a_line_says_step_speed_cards_and_the_platforms_number(tmp_path, monkeypatch):
    folder = tmp_path / "perdure" / "digits"
    folder.mkdir(parents=True)
    card = {"name": "Tesla T4", "busy_percent": 87.5, "memory_peak_bytes": 6, "memory_total_bytes": 16}
    facts = {"plan": {"unit": "epochs", "count": 9}, "speeds": {"steps_per_s": 2.5}, "metrics": {"loss": 0.5}}
    (folder / "session.json").write_text(json.dumps({**facts, "gpu": {"cards": [card], "recent": [card]}}))
    monkeypatch.setenv("KAGGLE_CONTAINER_NAME", "kaggle_abCd12-217483647-webtier")
    told = SessionReport("running", (RunReport("digits", folder, "running", step=30, epoch=2),))
    value = json.loads(beat(4, told, tmp_path, now_s=5.0, left_s=60.04).removeprefix("@perdure "))
    assert (value["session"], value["said_s"], value["left_s"]) == (4, 5.0, 60.0)
    assert value["platform_session"] == "217483647"
    assert (
        value["runs"][0] | {"name": "digits", "step": 30, "epoch": 2, "count": 9, "steps_per_s": 2.5}
        == value["runs"][0]
    )
    assert value["metrics"] == {"loss": 0.5}
    assert value["cards"][0]["busy_percent"] == 87.5
    assert value["cards"][0]["memory_used_bytes"] == 6
    assert platform_session({}) == ""


def test_only_a_run_that_was_to_go_on_is_stopped_for_beginning_afresh(tmp_path, capfd):
    (tmp_path / "order.json").write_text(json.dumps(order(expects=[expected(7)])))
    stopped = []
    path = tmp_path / "report.json"
    watcher = Watcher(
        read_order(tmp_path / "order.json"), path, tmp_path, 1e9, lambda _: None, stop=lambda: stopped.append(1)
    )

    def tell(**run):
        entry = {"name": "digits", "folder": "/x", "status": "running", "step": 7, "resumed_from": 7, **run}
        path.write_text(json.dumps({"status": "running", "runs": [entry]}))
        watcher.look()
        return len(stopped)

    watcher.look()
    assert tell() == 0
    assert tell(name="other", step=0, resumed_from=None) == 0
    assert tell(status="finished", step=0, resumed_from=None) == 0
    assert tell(step=0, resumed_from=None) == 1
    assert tell(step=1, resumed_from=None) == 1
    assert "began afresh" in watcher.afresh
    assert capfd.readouterr().out.count("@perdure ") == 6


# the project's files


def test_what_the_project_brings_never_replaces_what_is_there(tmp_path):
    project, working = tmp_path / "project", tmp_path / "working"
    for name in ("a/b.txt", "perdure/x.py", "perdure-session.json", "linked/c.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("project")
    (project / "short").symlink_to("linked")
    working.mkdir()
    (working / "perdure-session.json").write_text("marker")
    copies = ProjectCopies(project, working)
    copies.lay_out()
    there = sorted(p.relative_to(working).as_posix() for p in working.rglob("*") if p.is_file())
    assert there == ["a/b.txt", "linked/c.txt", "perdure-session.json", "short/c.txt"]
    (working / "a" / "new.txt").write_text("new")
    copies.take_back()
    assert sorted(p.relative_to(working).as_posix() for p in working.rglob("*")) == [
        "a",
        "a/new.txt",
        "perdure-session.json",
    ]
    assert (working / "perdure-session.json").read_text() == "marker"
