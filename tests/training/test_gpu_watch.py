"""A run is watched while it trains: times, cards, verdicts, each once; and it costs the training nothing."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace

import pytest
import torch

import perdure
from perdure.cli.main import main
from perdure.core.events import read_events
from perdure.core.limits import Window
from perdure.hardware.use import CardUse, Circumstances, LoopTimes
from perdure.platforms.place import Place
from perdure.testing.clock import FakeClock
from perdure.testing.nvml import FakeCard, Scene
from perdure.training import afterwards, watch
from perdure.training.afterwards import Reminder
from perdure.training.circumstances import AutocastWatch, circumstances
from perdure.training.looptimes import LoopClock
from perdure.training.session import current_session
from perdure.training.world.world import World
from training.jobs import Job
from training.test_loops import shuffled

MIB = 2**20


def t4(**more):
    """A T4 at work on this process' behalf."""
    return FakeCard(**{"busy": 90, "used_mb": 6000, "processes": {os.getpid(): 5900}, **more})


IDLE = FakeCard(busy=0, used_mb=3)


class Slow(torch.utils.data.Dataset):
    """Items that take as long as the clock says."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.clock.forward(self.seconds)
        return (torch.full((4,), float(index)),)


def go(root, *, item_s=0.05, step_s=3.95, epochs=1, card=True, job=None, do=lambda step: None, **more):
    """A run of 40 steps an epoch on a clock of its own; a card is played, the CPU computes.

    Each step waits for a look at the cards, so that the figures do not depend on how busy this machine is.
    """
    session = current_session()
    session.clock = clock = FakeClock()
    session.started_s = clock.monotonic() - 300
    run = perdure.Run("job", root=root, **more)
    on_card = torch.device("cuda:0")
    with run:
        job = job or Job()
        run.track(book=job.book)  # no module: where its tensors are is another test
        for _ in run.epochs(epochs):
            for (x,) in run.batches(torch.utils.data.DataLoader(Slow(clock, item_s), shuffle=True)):
                if card:
                    run._watch.device = on_card
                job.step(x)
                clock.forward(step_s)
                wait_for_a_look(run)
                do(run.step)
                run.log(loss=0.5)
    return run


def wait_for_a_look(run):
    monitor = run._watch._monitor
    if monitor is None or monitor.trouble:
        return
    seen = sum(card.samples for card in monitor.use(whole_session=True))
    for _ in range(200):
        if monitor.trouble or sum(card.samples for card in monitor.use(whole_session=True)) > seen:
            return
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def _real_device(monkeypatch):
    """A played card has no memory that torch could copy a batch to."""
    monkeypatch.setattr(watch, "copy_time", lambda batch, device: 0.0)


def told(root):
    return json.loads((root / "job" / "session.json").read_text())


def events(root, kind):
    return [event for event in read_events(root / "job" / "events.jsonl") if event.get("event") == kind]


# -------------------------------------------------------------------- times


def test_times_of_the_loop_add_up_and_recent_ones_forget_the_past():
    clock = FakeClock()
    loop = LoopClock(clock)
    loop.begin(10)
    for step in range(10, 110):
        clock.forward(0.75)
        loop.waited(0.75)
        clock.forward(0.25)
        if step == 100:
            clock.forward(4.0)
            loop.saved(4.0)
        loop.boundary(step + 1)
    whole = loop.session(110)
    assert (whole.steps, whole.wait_s, whole.save_s, whole.total_s) == (100, 75.0, 4.0, 104.0)
    assert (whole.copy_s, whole.compute_s) == (None, 25.0)
    recent = loop.recent(110)
    assert 56 <= recent.steps <= 65
    assert 60 <= recent.total_s <= 69
    loop.copied(0.01)
    assert loop.session(110).copy_s == pytest.approx(1.0)


def test_what_the_loop_waits_for_and_saves_is_measured_in_the_run(tmp_path):
    run = go(tmp_path, item_s=0.5, step_s=0.25, card=False, save_every="1 h")
    loop = told(tmp_path)["loop"]
    assert run.finished
    assert (loop["steps"], loop["wait_s"], loop["total_s"]) == (40, 20.0, 30.0)
    assert (loop["compute_s"], loop["copy_s"]) == (10.0, None)


def test_a_validation_pass_counts_as_waiting_for_data_too(tmp_path):
    clock = current_session().clock = FakeClock()
    with perdure.Run("job", root=tmp_path, accelerator="cpu") as run:
        job = Job()
        run.track(**job.tracked())
        for _ in run.epochs(1):
            for loader in (shuffled(), torch.utils.data.DataLoader(Slow(clock, 1.0))):
                for (x,) in run.batches(loader):
                    job.step(x)
    assert told(tmp_path)["loop"]["wait_s"] == 40.0


# -------------------------------------------------------------------- the live line


def test_a_loader_that_draws_from_another_pass_makes_no_wait_count_twice(tmp_path):
    session = current_session()
    session.clock = clock = FakeClock()
    with perdure.Run("job", root=tmp_path, accelerator="cpu") as run:
        for _ in run.epochs(1):
            inner = run.batches(torch.utils.data.DataLoader(Slow(clock, 1.0)))
            for _ in run.batches(batch for batch in inner):
                clock.forward(1.0)
    facts = told(tmp_path)["loop"]
    assert (facts["wait_s"], facts["total_s"]) == (40.0, 80.0)


def test_after_a_minute_and_then_every_five_there_is_a_line(tmp_path, stage, capfd):
    stage.set(Scene([t4(temperature_c=71)]))
    go(tmp_path, step_s=15.95, limits=perdure.Limits(window="2 h"))
    lines = [line for line in capfd.readouterr().err.splitlines() if "steps/s" in line]
    assert len(lines) == 2  # 40 steps of 16 s: after 1 and after 6 minutes
    for part in (
        "job: step 5, epoch 0 of 1; 0.0625 steps/s; loss 0.5; Tesla T4 (cuda:0) 90 % busy, 6.3 GB of 16.1 GB, 71 °C",
        "; 0 % of the time waiting for data; done in about 9 min 20 s",
        "; the window closes in 1 h 53 min",
    ):
        assert part in lines[0]


def test_a_short_run_says_no_line_and_no_verdict(tmp_path, stage, capfd):
    stage.set(Scene([IDLE]))
    go(tmp_path, step_s=0.1)
    assert "steps/s" not in capfd.readouterr().err
    assert events(tmp_path, "verdict") == []
    assert told(tmp_path)["gpu"]["cards"][0]["busy_percent"] == 0


# -------------------------------------------------------------------- verdicts


def codes(root):
    return [event["code"] for event in events(root, "verdict")]


@pytest.mark.parametrize(
    ("cards", "item_s", "want"),
    [
        ([t4()], 0.05, []),
        ([t4(), FakeCard(busy=0)], 0.05, ["second-card-idle"]),
        ([t4(busy=4)], 0.05, ["card-idle"]),
        ([t4(busy=9)], 5.0, ["starved"]),
        ([t4(used_mb=15000)], 0.05, ["memory-nearly-full"]),
        ([t4(throttle=0x20, temperature_c=93)], 0.05, ["throttled"]),
    ],
    ids=["well", "b48-second-idle", "idle", "b68-starved", "full", "hot"],
)
def test_each_scene_gets_its_verdict_once_and_none_of_the_others(tmp_path, stage, capfd, cards, item_s, want):
    stage.set(Scene(cards))
    go(tmp_path, item_s=item_s)
    assert codes(tmp_path) == want
    verdicts = told(tmp_path)["verdicts"]
    assert [verdict["code"] for verdict in verdicts] == want
    err = capfd.readouterr().err
    for verdict in verdicts:
        assert err.count(f"perdure: warning: job: {verdict['sentence']}\n  {verdict['remedy']}\n") == 1


def test_a_verdict_is_said_again_only_if_it_went_away_and_came_back(tmp_path, stage, capfd):
    stage.set(Scene([IDLE]))
    scenes = {100: Scene([t4()]), 180: Scene([IDLE])}  # looks at 1, 6, 11 and 16 minutes: steps 16, 91, 166, 241
    go(tmp_path, epochs=7, do=lambda step: stage.set(scenes[step]) if step in scenes else None)
    assert codes(tmp_path) == ["card-idle", "card-idle"]
    assert [event["code"] for event in events(tmp_path, "verdict over")] == ["card-idle"]
    assert capfd.readouterr().err.count("Tesla T4 (cuda:0) was 0 % busy") == 2


def test_a_card_that_is_lost_is_said_and_does_not_stop_the_run(tmp_path, stage, capfd):
    stage.set(Scene([t4(lost_after=8)]))
    assert go(tmp_path, epochs=2).finished
    assert codes(tmp_path) == ["card-lost"]
    assert capfd.readouterr().err.count("has stopped answering") == 1
    assert told(tmp_path)["gpu"]["cards"][0]["lost"]


def test_nvml_that_fails_is_said_once_and_is_not_fatal(tmp_path, stage, capfd):
    stage.set(Scene(init_error=12))
    assert go(tmp_path).finished
    err = capfd.readouterr().err
    assert err.count("the cards cannot be watched as they should") == 1
    assert len(events(tmp_path, "not watched")) == 1
    assert told(tmp_path)["gpu"]["trouble"]


def test_on_a_machine_without_a_card_nothing_is_said_of_nvml(tmp_path, stage, capfd):
    assert go(tmp_path, card=False).finished
    assert "cannot be watched" not in capfd.readouterr().err
    assert told(tmp_path)["gpu"] is None


def test_a_failure_in_the_watching_itself_is_said_once_and_training_goes_on(tmp_path, stage, capfd, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("by me")

    monkeypatch.setattr(watch, "judge", broken)
    assert go(tmp_path, step_s=30.0).finished
    assert capfd.readouterr().err.count("watching fails: ZeroDivisionError: by me; training goes on") == 1


def test_a_cpu_run_looks_at_no_card(tmp_path, stage):
    stage.set(Scene([IDLE]))
    threads = []
    go(tmp_path, card=False, accelerator="cpu", do=lambda _: threads.extend(t.name for t in threading.enumerate()))
    assert "perdure-monitor" not in threads
    assert told(tmp_path)["gpu"] is None
    assert codes(tmp_path) == []


def test_a_run_that_fell_back_to_the_cpu_beside_a_card_is_told(tmp_path, stage):
    stage.set(Scene([IDLE]))
    go(tmp_path, card=False)
    assert codes(tmp_path) == ["card-idle"]


def test_the_monitor_ends_with_the_loop(tmp_path, stage):
    stage.set(Scene([t4()]))
    go(tmp_path)
    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "failed", do=lambda step: step / 0)
    assert "perdure-monitor" not in [thread.name for thread in threading.enumerate()]


def test_hardware_is_noted_at_saves_and_looks_at_most_once_a_minute(tmp_path, stage):
    stage.set(Scene([t4()]))
    go(tmp_path, save_every="1 step")  # 160 s
    noted = events(tmp_path, "hardware")
    assert 2 <= len(noted) <= 4
    assert noted[-1]["loop"]["steps"] == 40
    assert noted[-1]["cards"][0]["memory_own_bytes"] == 5900 * MIB
    assert max(len(json.dumps(event)) for event in noted) < 1000


# -------------------------------------------------------------------- circumstances


def test_autocast_is_seen_and_its_door_is_given_back():
    plain = torch.autocast.__enter__
    seen = AutocastWatch()
    seen.begin()
    with torch.autocast("cpu", enabled=False):
        assert not seen.seen
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
    assert seen.seen
    assert torch.autocast.__enter__ is plain
    unseen = AutocastWatch()
    unseen.begin()
    unseen.end()
    assert (unseen.seen, torch.autocast.__enter__) == (False, plain)


def test_autocast_is_seen_in_a_compiled_model():
    seen = AutocastWatch()
    seen.begin()

    @torch.compile(backend="eager")
    def forward(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    assert forward(torch.ones(2, 2)).dtype == torch.bfloat16
    seen.end()
    assert seen.seen


@pytest.mark.parametrize(
    ("tracked", "half"),
    [
        ({"model": torch.nn.Linear(2, 2)}, False),
        ({"model": torch.nn.Linear(2, 2).bfloat16()}, True),
        ({"model": torch.nn.Linear(2, 2), "scaler": torch.amp.GradScaler("cpu")}, True),
        ({"model": torch.nn.Linear(2, 2), "scaler": torch.amp.GradScaler("cpu", enabled=False)}, False),
    ],
    ids=["float32", "bfloat16", "scaler", "scaler-off"],
)
def test_mixed_precision_is_known_from_what_is_tracked(tracked, half):
    world = World()
    world.track(tracked)
    around = circumstances(world, None, "cuda:0", "process", autocast=False)
    assert around.autocast is half
    assert sum(around.parameter_dtypes.values()) == (12 if "bfloat16" in around.parameter_dtypes else 24)


def test_tf32_is_known_by_the_old_name_and_the_new():
    def allowed():
        return circumstances(World(), None, "cuda:0", "process", autocast=False).tf32

    assert not allowed()
    torch.set_float32_matmul_precision("high")
    try:
        assert allowed()
    finally:
        torch.set_float32_matmul_precision("highest")
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        assert allowed()
    finally:
        products.fp32_precision = before


def test_workers_and_pinned_memory_are_those_of_the_loader_that_leads(tmp_path, stage, monkeypatch):
    seen = []
    monkeypatch.setattr(watch, "judge", lambda cards, loop, around: seen.append((cards, loop, around)) or [])
    stage.set(Scene([t4()]))
    go(tmp_path)
    ((card,), loop, around) = seen[0]
    assert (around.workers, around.pinned, around.device) == (0, False, "cuda:0")
    assert isinstance(loop, LoopTimes) and loop.steps == 15
    assert isinstance(card, CardUse) and card.memory_own_bytes == 5900 * MIB


# -------------------------------------------------------------------- after the end


def reminder(lines, monkeypatch, after_s, *, busy=0, mode="interactive"):
    """After a run that kept its card busy; ``busy`` is what the card does now."""
    card = CardUse(0, 0, "GPU-1", "Tesla T4", samples=9, busy_percent=90, memory_own_bytes=5900 * MIB)
    clock = FakeClock()
    monkeypatch.setattr(afterwards, "warn", lines.append)
    monkeypatch.setattr(afterwards.Reminder, "_look", lambda self: (replace(card, busy_percent=busy),))
    window = Window(clock, clock.monotonic() - 7200, 43200)
    return Reminder(clock, window, "kaggle", Circumstances(mode=mode), [card], after_s)


def until(lines, count):
    for _ in range(400):
        if len(lines) >= count:
            return
        time.sleep(0.01)


def test_b76_a_session_that_still_holds_its_card_is_told_of_and_how_long_it_has_lasted(monkeypatch):
    lines = []
    reminder(lines, monkeypatch, (0.0, 0.0)).start()
    until(lines, 2)
    assert len(lines) == 2
    assert "the run has ended, but this session still holds Tesla T4 (cuda:0)" in lines[0]
    assert "the session has lasted 2 h\n" in lines[0]


def test_b76_it_is_not_said_once_another_run_has_begun_or_where_the_script_ends_the_session(monkeypatch, tmp_path):
    lines = []
    waiting = reminder(lines, monkeypatch, (60.0,))
    waiting.start()
    with perdure.Run("job", root=tmp_path) as run:
        for _ in run.epochs(1):
            pass
    waiting.leave()
    reminder(lines, monkeypatch, (0.0,), mode="batch").start()
    assert lines == []


def test_b76_at_the_end_of_the_process_it_is_said_if_it_was_not_yet(monkeypatch):
    lines = []
    reminder(lines, monkeypatch, (60.0,)).start()
    afterwards._leave()
    afterwards._leave()
    assert len(lines) == 1


def test_b76_it_is_not_said_while_the_card_is_busy_with_something_else(monkeypatch):
    lines = []
    busy = reminder(lines, monkeypatch, (0.0, 0.0, 0.0), busy=80)
    busy.start()
    time.sleep(0.1)
    assert lines == []


def test_b76_where_nvml_answers_no_more_it_is_said_by_what_was_seen_last(monkeypatch):
    lines = []
    waiting = reminder(lines, monkeypatch, (0.0,))
    monkeypatch.setattr(afterwards.Reminder, "_look", lambda self: ())
    waiting.start()
    until(lines, 1)
    assert "still holds Tesla T4 (cuda:0)" in lines[0]


def test_b76_a_run_in_an_interactive_session_ends_with_a_reminder(tmp_path, stage, monkeypatch, capfd):
    stage.set(Scene([t4()]))
    session = current_session()
    session.place = Place("kaggle", "interactive", tmp_path)
    go(tmp_path)
    afterwards._leave()
    assert "this session still holds Tesla T4 (cuda:0)" in capfd.readouterr().err


# -------------------------------------------------------------------- the check in one command


def required(root, capsys):
    code = main(["status", "job", "--root", str(root), "--require", "gpu"])
    return code, capsys.readouterr()


def test_status_requires_that_a_card_was_busy_with_memory_of_the_run(tmp_path, stage, capsys):
    stage.set(Scene([t4(busy=87)]))
    go(tmp_path)
    code, out = required(tmp_path, capsys)
    assert code == 0
    assert "  gpu         Tesla T4 (cuda:0) 87 % busy, 6.3 GB of 16.1 GB, 40 °C" in out.out
    assert "  loop        1 % waiting for data, 0 % copying, 0 % saving, 99 % in steps, of 2 min 40 s" in out.out


@pytest.mark.parametrize(
    ("scene", "card", "why"),
    [
        (Scene([IDLE]), True, "trains on cuda:0, but no card was busy: Tesla T4 (cuda:0) 0 % busy"),
        (Scene([FakeCard(busy=80, used_mb=900, processes={1: 800})]), True, "but has put nothing on a card"),
        (Scene(init_error=9), True, "trains on cuda:0, but nobody saw how busy it was: "),
        (Scene([t4()]), False, "job did not train on a GPU in its newest session"),
    ],
    ids=["idle", "others", "unseen", "cpu"],
)
def test_status_fails_where_that_is_not_so_and_says_why(tmp_path, stage, capsys, scene, card, why):
    stage.set(scene)
    go(tmp_path, card=card)
    code, out = required(tmp_path, capsys)
    assert code == 1
    assert why in out.err
    assert "hint: perdure doctor --require gpu" in out.err


def test_a_finished_run_that_is_run_again_has_used_no_card(tmp_path, stage, capsys):
    stage.set(Scene([t4()]))
    for _ in range(2):
        go(tmp_path)
    assert len(events(tmp_path, "hardware")) >= 1
    assert (told(tmp_path)["gpu"], told(tmp_path)["loop"]) == (None, None)
    code, out = required(tmp_path, capsys)
    assert code == 1
    assert "error: job made no step in its newest session" in out.err


def test_status_shows_verdicts_that_stand(tmp_path, stage, capsys):
    stage.set(Scene([t4(), FakeCard(busy=0)]))
    go(tmp_path)
    main(["status", "--root", str(tmp_path)])
    out = capsys.readouterr().out
    assert "  verdict     2 cards are there and 1 of them works: Tesla T4 (cuda:1) was 0 % busy" in out
    assert "  remedy      " in out


def test_a_monitor_in_the_run_changes_no_number(tmp_path, stage):
    stage.set(Scene([t4()]))
    ends = []
    for accelerator in ("auto", "cpu"):
        torch.manual_seed(3)
        job = Job()
        go(tmp_path / accelerator, card=False, job=job, accelerator=accelerator, seed=5)
        ends.append(job.result())
    assert ends[0] == ends[1]
