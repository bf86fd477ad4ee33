"""The monitor sees what the cards do, costs next to nothing, and never stops a training nor hides its trouble."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from hardware.watching import quick, until, watch
from perdure.core.clock import SystemClock
from perdure.hardware.monitor import EVERY_S, HUNG_S, Monitor
from perdure.testing.clock import FakeClock
from perdure.testing.nvml import (
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeCard,
    Scene,
    fake_slice_uuid,
)


def test_two_cards_are_seen_apart_with_all_figures(stage):
    first = FakeCard(busy=[90, 80], used_mb=[4000, 6000, 5000], temperature_c=[50, 71, 60], power_w=[60, 70])
    stage.set(Scene([first, FakeCard(busy=0, used_mb=3)]))
    monitor, (a, b) = watch(looks=20)
    assert (a.index, a.visible_as, a.name, a.capability) == (0, 0, "Tesla T4", (7, 5))
    assert a.busy_percent == pytest.approx(80 + 10 / a.samples)
    assert (a.busy_now_percent, a.memory_total_bytes, a.memory_peak_bytes) == (80, 15360 << 20, 6000 << 20)
    assert (a.temperature_peak_c, a.power_limit_w) == (71, 70)
    assert a.power_mean_w == pytest.approx(70 - 10 / a.samples)
    assert (b.visible_as, b.busy_percent, b.memory_peak_bytes) == (1, 0, 3 << 20)
    assert monitor.trouble == "" and a.throttled_share == {}


def test_reasons_for_a_slower_clock_are_told_apart(stage):
    """Bits of nvml.h; the general hardware bit is set with the thermal one and is not a second reason."""
    masks = [0x20, 0x48, 0x80, 0x04, 0x01]
    stage.set(Scene([FakeCard(throttle=[*masks, 0])]))
    (card,) = watch(looks=10)[1]
    share = 1 / card.samples
    assert card.throttled_share == pytest.approx(
        {"thermal": 2 * share, "hardware slowdown": share, "power cap": share}
    )


def test_memory_of_this_process_and_of_others_by_pid(stage):
    stage.set(Scene([FakeCard(used_mb=12000, processes={os.getpid(): 2000, 1: 9000, 2: 500})]))
    (card,) = watch()[1]
    assert (card.memory_own_bytes, card.memory_others_bytes) == (2000 << 20, 9500 << 20)


@pytest.mark.parametrize("processes", [{}, {4_000_000: 9000}])
def test_in_a_container_foreign_pids_mean_unknown_and_not_zero(stage, monkeypatch, processes):
    monkeypatch.setattr("perdure.hardware.sampling._INITIAL_PID_NAMESPACE", -1)
    stage.set(Scene([FakeCard(used_mb=12000, processes=processes)]))
    (card,) = watch()[1]
    assert (card.memory_own_bytes, card.memory_others_bytes) == (None, None)


def test_outside_of_a_container_foreign_pids_are_others(stage, monkeypatch):
    monkeypatch.setattr("perdure.hardware.sampling._INITIAL_PID_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
    stage.set(Scene([FakeCard(used_mb=12000, processes={4_000_000: 9000, 4_000_001: None})]))
    (card,) = watch()[1]
    assert (card.memory_own_bytes, card.memory_others_bytes) == (0, None)


def test_only_cards_that_this_process_sees_are_watched(stage, monkeypatch):
    stage.set(Scene([FakeCard(busy=1), FakeCard(busy=2)]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (card,) = watch()[1]
    assert (card.index, card.visible_as, card.busy_percent) == (1, 0, 2)


def test_of_a_cut_card_the_visible_slice_is_watched(stage, monkeypatch):
    stage.set(Scene([FakeCard("NVIDIA A100", capability=(8, 0), used_mb=700, slices=(20096, 9984))]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", fake_slice_uuid(0, 1))
    monitor, (card,) = watch()
    assert (card.uuid, card.memory_total_bytes) == (fake_slice_uuid(0, 1), 9984 << 20)
    assert (card.memory_peak_bytes, card.busy_percent) == (700 << 20, None)
    assert "does not tell how busy it is: Not Supported" in monitor.trouble


@pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(
    ("field", "words", "attribute"),
    [
        ("utilization", "how busy it is", "busy_percent"),
        ("memory", "its memory in use", "memory_peak_bytes"),
        ("temperature", "its temperature", "temperature_peak_c"),
        ("power", "its power draw", "power_mean_w"),
        ("processes", "which processes use it", "memory_own_bytes"),
    ],
)
def test_an_error_for_one_field_is_told_and_leaves_the_others(stage, field, words, attribute, error):
    stage.set(Scene([FakeCard(busy=50, used_mb=100, processes={os.getpid(): 90}, errors={field: error})]))
    monitor, (card,) = watch()
    fields = ("busy_percent", "memory_peak_bytes", "temperature_peak_c", "power_mean_w", "memory_own_bytes")
    assert [name for name in fields if getattr(card, name) is None] == [attribute]
    assert monitor.trouble.startswith(f"Tesla T4 (card 0) does not tell {words}: ")
    assert monitor.trouble.count("does not tell") == 1
    assert card.lost == ""


@pytest.mark.parametrize("field", ["uuid", "name", "capability", "index", "limit", "mig"])
def test_a_card_that_does_not_tell_what_it_is_is_watched_and_not_called_lost(stage, field):
    stage.set(Scene([FakeCard(busy=50, errors={field: UNKNOWN}), FakeCard(busy=30)]))
    monitor, cards = watch()
    assert [(card.busy_percent, card.lost) for card in cards] == [(50, ""), (30, "")]
    assert monitor.trouble == ""


def test_an_older_driver_is_asked_by_the_older_names(stage):
    new = ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3"]
    stage.set(Scene([FakeCard(throttle=0x20, used_mb=9, processes={os.getpid(): 7})], missing=new))
    monitor, (card,) = watch()
    assert (card.throttled_share, card.memory_own_bytes, monitor.trouble) == ({"thermal": 1.0}, 7 << 20, "")


def test_a_card_lost_in_mid_run_is_told_and_the_other_goes_on(stage):
    stage.set(Scene([FakeCard(busy=90, lost_after=7), FakeCard(busy=60)]))
    monitor, (lost, other) = watch(looks=25)
    assert (lost.samples, lost.busy_percent, lost.lost) == (7, 90, "GPU is lost")
    assert (other.samples >= 25, other.busy_percent, other.lost) == (True, 60, "")
    assert monitor.trouble == "Tesla T4 (card 0) is lost: GPU is lost"


def test_a_card_that_answers_nothing_any_more_counts_as_lost(stage):
    stage.set(Scene([FakeCard(busy=90)]))
    monitor = quick()
    monitor.start()
    until(lambda: monitor.use() and monitor.use()[0].samples > 5)
    fields = ("utilization", "memory", "temperature", "power", "throttle", "processes")
    stage.set(Scene([FakeCard(errors=dict.fromkeys(fields, UNKNOWN))]))
    until(lambda: monitor.use()[0].lost)
    monitor.stop()
    assert monitor.use()[0].lost == "it answers no question"


def test_one_answer_that_the_card_is_lost_is_enough(stage):
    stage.set(Scene([FakeCard(errors={"power": GPU_IS_LOST})]))
    (card,) = watch()[1]
    assert (card.lost, card.samples) == ("GPU is lost", 1)


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (Scene(init_error=9), "the NVIDIA driver is installed, but it does not run"),
        (Scene(), "there is no card"),
        (Scene(init_error=UNKNOWN), "the NVIDIA driver says: Unknown Error"),
    ],
)
def test_without_nvml_the_trouble_is_told_and_nothing_is_made_up(stage, scene, words):
    stage.set(scene)
    monitor = quick()
    monitor.start()
    until(lambda: monitor.trouble)
    monitor.stop()
    assert words in monitor.trouble
    assert monitor.use() == monitor.use(whole_session=True) == ()


def test_hidden_cards_are_not_watched_and_that_is_told(stage, monkeypatch):
    stage.set(Scene([FakeCard()]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monitor = Monitor(SystemClock())
    monitor.start()
    until(lambda: monitor.trouble)
    assert monitor.trouble == 'the card is hidden by CUDA_VISIBLE_DEVICES=""'
    assert monitor.use() == ()


def test_nvml_shut_down_by_another_part_of_the_program_is_opened_again(stage):
    import pynvml

    stage.set(Scene([FakeCard(busy=33)]))
    monitor = quick()
    monitor.start()
    until(lambda: monitor.use() and monitor.use()[0].samples > 5)
    pynvml.nvmlShutdown()
    seen = monitor.use(whole_session=True)[0].samples
    until(lambda: monitor.use(whole_session=True)[0].samples > seen + 5)
    monitor.stop()
    assert (monitor.use()[0].busy_percent, monitor.trouble) == (33, "")


def test_the_window_slides_and_the_session_keeps_all(stage):
    clock = FakeClock()
    stage.set(Scene([FakeCard(busy=100, temperature_c=90)]))
    monitor = quick(clock, window_s=60)
    monitor.start()
    until(lambda: monitor.use() and monitor.use()[0].samples > 5)
    stage.set(Scene([FakeCard(busy=0, temperature_c=40)]))
    until(lambda: monitor.use()[0].busy_now_percent == 0)
    clock.forward(61)
    until(lambda: monitor.use()[0].samples > 3)
    monitor.stop()
    assert (monitor.use()[0].busy_percent, monitor.use()[0].temperature_peak_c) == (0, 40)
    session = monitor.use(whole_session=True)[0]
    assert 0 < session.busy_percent < 100 and session.temperature_peak_c == 90


def test_what_is_kept_does_not_grow(stage):
    stage.set(Scene([FakeCard(busy=1)]))
    monitor = quick(window_s=0.02)
    monitor.start()
    until(lambda: monitor.use(whole_session=True) and monitor.use(whole_session=True)[0].samples > 100)
    monitor.stop()
    assert len(monitor._watched[0]._recent) <= 21


def test_a_driver_that_hangs_is_told_and_costs_the_caller_nothing(stage, monkeypatch):
    release, clock = threading.Event(), FakeClock()
    stage.set(Scene([FakeCard()]))

    def hang():
        release.wait()
        raise RuntimeError("never mind")

    monkeypatch.setattr("perdure.hardware.monitor.read_cards", hang)
    monitor = Monitor(clock)
    monitor.start()
    until(lambda: monitor._asking_since is not None)
    assert monitor.trouble == ""
    clock.forward(HUNG_S + 5)
    assert monitor.trouble == "the NVIDIA driver has not answered for 35 s"
    assert monitor.use() == ()
    release.set()
    monitor.stop()
    assert monitor.trouble == "the monitor stopped: RuntimeError: never mind"


def test_starting_twice_and_stopping_before_the_start_do_nothing(stage):
    stage.set(Scene([FakeCard()]))
    before = threading.active_count()
    monitor = Monitor(SystemClock())
    monitor.stop()
    assert monitor.use() == () and monitor.cost_s == 0
    monitor = quick()
    monitor.start()
    monitor.start()
    assert threading.active_count() == before + 1
    monitor.stop()
    assert threading.active_count() == before


def test_workers_that_a_loader_forks_live_and_can_read_what_was_seen(stage):
    stage.set(Scene([FakeCard(busy=40)]))
    monitor = quick(every_s=0.0001)
    monitor.start()
    until(lambda: monitor.use() and monitor.use()[0].samples > 3)
    for _ in range(20):
        child = os.fork()
        if not child:
            monitor.stop()
            os._exit(0 if monitor.use(whole_session=True)[0].busy_percent == 40 else 1)
        assert os.waitpid(child, 0)[1] == 0
    seen = monitor.use(whole_session=True)[0].samples
    until(lambda: monitor.use(whole_session=True)[0].samples > seen)
    monitor.stop()


def test_a_script_that_never_stops_its_monitor_ends_at_once(stage):
    stage.set(Scene([FakeCard()]))
    code = (
        "from perdure.core.clock import SystemClock; from perdure.hardware.monitor import Monitor\n"
        "m = Monitor(SystemClock(), every_s=3600); m.start()\n"
        "while not m.use(): pass\n"
        "print(m.use()[0].name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("Tesla T4\n", "")


def test_the_monitor_costs_less_than_a_thousandth_of_a_core(stage):
    """CPU time of its thread, two cards; a look every two seconds may cost two milliseconds."""
    stage.set(Scene([FakeCard(busy=90, processes={os.getpid(): 9}), FakeCard()]))
    monitor, cards = watch(looks=300)
    assert monitor.cost_s / cards[0].samples < EVERY_S / 1000


def test_where_a_driver_is_slow_to_answer_looks_become_rarer(stage, monkeypatch):
    """A look that costs 20 ms of CPU may come every 2 s at a hundredth of a core, and not every millisecond."""
    from perdure.hardware.sampling import Target

    look, waits = Target.look, []

    def slow(self, *args, **options):
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return look(self, *args, **options)

    monkeypatch.setattr(Target, "look", slow)
    stage.set(Scene([FakeCard()]))
    monitor = Monitor(SystemClock(), every_s=0.001, share=0.01)
    wait = monitor._end.wait
    monkeypatch.setattr(monitor._end, "wait", lambda seconds: waits.append(seconds) or wait(0.001))
    monitor.start()
    until(lambda: len(waits) >= 5)
    monitor.stop()
    assert all(1.9 < seconds < 20 for seconds in waits)


def test_the_monitor_loads_no_framework():
    code = "import perdure.hardware.monitor, sys; print(sorted({'torch', 'numpy', 'pynvml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
