"""Each scene gives its verdict, with numbers and a remedy, and none of the others; thin evidence gives none."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.watching import around, codes, loop, watch
from perdure.hardware.use import CardUse, Circumstances, LoopTimes
from perdure.hardware.verdicts import CODES, MIN_SAMPLES, after_the_end, judge
from perdure.testing.nvml import NOT_SUPPORTED, FakeCard, Scene, fake_slice_uuid, fake_uuid

OWN = os.getpid()
FP32 = {"float32": 44_000_000}


def working(**more):
    """A T4 that does what it should."""
    return FakeCard(**{"busy": 92, "used_mb": 9000, "processes": {OWN: 8800}, "temperature_c": 70, **more})


SCENES = {
    "a healthy run": (Scene([working()]), loop(), around(), []),
    "no driver": (Scene(init_error=9), loop(), around(), []),
    "a driver without a card": (Scene(), loop(), around(), []),
    "two T4, both at work": (Scene([working(), working()]), loop(), around(), []),
    "B48: two T4, one idles": (
        Scene([working(), FakeCard(used_mb=3)]), loop(), around(), ["second-card-idle"],
    ),
    "two T4, the model was put on the other one": (
        Scene([FakeCard(), working()]), loop(), around(), ["second-card-idle"],
    ),
    "two T4, the other is another user's": (
        Scene([working(), FakeCard(used_mb=9000, processes={1: 9000})]), loop(),
        around(), [],
    ),
    "B67: the steps run on the CPU beside the card": (
        Scene([FakeCard(used_mb=3, processes={1: 1})]), loop(), around(), ["card-idle"],
    ),
    "B67: nothing of the training is on the card": (
        Scene([FakeCard(used_mb=400, processes={OWN: 0})]), loop(), around(), ["card-idle"],
    ),
    "B67: the run is on the CPU, the card idles": (
        Scene([FakeCard(used_mb=3)]), loop(), around(device="cpu"), ["card-idle"],
    ),
    "on the CPU, and the card works for another": (
        Scene([FakeCard(busy=70, used_mb=3)]), loop(), around(device="cpu"), [],
    ),
    "steps too small for the card": (
        Scene([working(busy=4)]), loop(0.02, 0.001), around(), ["card-idle"],
    ),
    "B68: a starved loader, 50 ms an item against a 5 ms step": (
        Scene([working(busy=8)]), loop(0.055, 0.05), around(workers=0, pinned=False), ["starved"],
    ),
    "a starved loader, and a second card": (
        Scene([working(busy=8), FakeCard()]), loop(0.055, 0.05), around(), ["starved"],
    ),
    "a loader that is slow, but the card has work": (
        Scene([working(busy=95)]), loop(0.05, 0.03), around(), [],
    ),
    "batches take long to copy": (
        Scene([working(busy=30)]), loop(0.05, 0.001, copy_s=25.0), around(pinned=False), ["starved"],
    ),
    "saving takes most of the time": (
        Scene([working(busy=5)]), loop(0.05, 0.001, save_s=30.0), around(), [],
    ),
    "throttled by heat": (
        Scene([working(throttle=[0x20, 0], temperature_c=93)]), loop(), around(), [],  # in one look of twenty
    ),
    "throttled by heat, lastingly": (
        Scene([working(throttle=0x20, temperature_c=93)]), loop(), around(), ["throttled"],
    ),
    "a T4 at its power limit": (Scene([working(throttle=0x04)]), loop(), around(), []),
    "another process holds the memory": (
        Scene([working(used_mb=14000, processes={OWN: 1000, 1: 12000})]), loop(), around(), ["memory-nearly-full"],
    ),
    "memory nearly full of one's own": (
        Scene([working(used_mb=15100, processes={OWN: 15000})]), loop(), around(), ["memory-nearly-full"],
    ),
    "memory barely used": (
        Scene([working(busy=45, used_mb=1100, processes={OWN: 1000})]), loop(), around(), ["memory-unused"],
    ),
    "memory barely used, and the card is busy all the same": (
        Scene([working(used_mb=1100, processes={OWN: 1000})]), loop(), around(), [],
    ),
    "float32 on a T4": (
        Scene([working()]), loop(), around(parameter_dtypes=FP32), ["slow-precision"],
    ),
    "float32 under autocast": (
        Scene([working()]), loop(), around(parameter_dtypes=FP32, autocast=True), [],
    ),
    "a small model in float32": (
        Scene([working()]), loop(), around(parameter_dtypes={"float32": 40_000}), [],
    ),
    "bfloat16 on a T4": (
        Scene([working()]), loop(), around(parameter_dtypes={"bfloat16": 44_000_000}, autocast=True),
        ["slow-precision"],
    ),
    "bfloat16 on an A100": (
        Scene([working(name="NVIDIA A100", capability=(8, 0))]), loop(),
        around(parameter_dtypes={"bfloat16": 44_000_000}, autocast=True), [],
    ),
    "float32 on a P100, which has nothing faster": (
        Scene([working(name="Tesla P100", capability=(6, 0), memory_mb=16280)]), loop(),
        around(parameter_dtypes=FP32), [],
    ),
    "the card is lost in mid-run": (Scene([working(lost_after=12)]), loop(), around(), ["card-lost"]),
    "the other card is lost in mid-run": (
        Scene([working(), working(lost_after=12)]), loop(), around(), ["card-lost"],
    ),
    "the card is lost, and the loop stood still": (
        Scene([working(lost_after=12)]), loop(0.055, 0.05), around(), ["card-lost"],
    ),
    "on the CPU, and of one card nothing is known": (
        Scene([FakeCard(), FakeCard(errors={"utilization": NOT_SUPPORTED})]), loop(), around(device="cpu"), [],
    ),
    "the card is lost, the second has nothing to do": (
        Scene([working(lost_after=12), FakeCard()]), loop(), around(), ["card-lost"],
    ),
    "NVML does not tell the power": (
        Scene([working(errors={"power": NOT_SUPPORTED})]), loop(), around(), [],
    ),
    "NVML does not tell how busy the card is": (
        Scene([working(busy=0, errors={"utilization": NOT_SUPPORTED})]), loop(), around(), [],
    ),
    "NVML does not tell the memory": (
        Scene([working(errors={"memory": NOT_SUPPORTED})]), loop(), around(), [],
    ),
}  # fmt: skip


@pytest.fixture
def seen(stage):
    def see(scene):
        stage.set(scene)
        return watch(looks=20)[1] if scene.cards else ()

    return see


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_gives_its_verdict_and_none_of_the_others(seen, monkeypatch, name):
    monkeypatch.setattr("perdure.hardware.sampling._INITIAL_PID_NAMESPACE", -1)  # as in a hosted session
    scene, times, known, expected = SCENES[name]
    assert codes(seen(scene), times, known) == expected


def test_what_is_hidden_is_not_called_idle(stage, monkeypatch):
    stage.set(Scene([working(), FakeCard()]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert codes(watch()[1]) == []


def test_a_slice_of_a_card_is_judged_by_its_own_memory(stage, monkeypatch):
    cut = working(name="NVIDIA A100", capability=(8, 0), used_mb=9700, slices=(20096, 9984))
    stage.set(Scene([cut]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", fake_slice_uuid(0, 1))
    assert codes(watch()[1]) == ["memory-nearly-full"]


def test_the_card_of_the_run_is_found_by_the_number_that_the_framework_gives_it(stage, monkeypatch):
    stage.set(Scene([FakeCard(), working()]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    (verdict,) = judge(watch()[1], loop(), around())
    assert verdict.code == "second-card-idle"
    assert "Tesla T4 (cuda:1) was 0 % busy" in verdict.sentence and verdict.evidence["card"] == 0


# ------------------------------------------------------------------------------------------------ words and numbers


def only(cards, times=None, known=None):
    (verdict,) = judge(cards, times or loop(), known or around())
    return verdict


def test_a_starved_loader_is_told_with_numbers_and_the_workers_to_take(seen):
    verdict = only(seen(SCENES["B68: a starved loader, 50 ms an item against a 5 ms step"][0]), loop(0.055, 0.05),
                   around(workers=0, pinned=False))  # fmt: skip
    assert verdict.sentence == (
        "the loop waits for its next batch 91 % of the time (50 ms of 55 ms a step, over 1000 steps); "
        "Tesla T4 (cuda:0) is 8 % busy"
    )
    assert verdict.remedy == (
        "give the DataLoader num_workers=4 and pin_memory=True (it has none; 4 cores here); that is still not enough, "
        "so then make an item cheaper: decode once, smaller images"
    )
    assert verdict.evidence["waiting_share"] == pytest.approx(0.909, abs=0.001)
    assert verdict.evidence["steps"] == 1000


@pytest.mark.parametrize(
    ("workers", "pinned", "cores", "wait_s", "step_s", "remedy"),
    [
        (0, True, 4, 0.02, 0.03, "give the DataLoader num_workers=2 (it has none; 4 cores here)"),
        (1, True, 4, 0.02, 0.03, "give the DataLoader num_workers=3 (it has 1; 4 cores here)"),
        (0, True, 1, 0.02, 0.03, "give the DataLoader num_workers=1 (it has none; 1 core here)"),
        (None, None, 4, 0.02, 0.03, "load in the background: torch.utils.data.DataLoader with num_workers=4"),
        (4, True, 4, 0.02, 0.03, "make an item cheaper, its 4 workers have all 4 cores: decode and resize once"),
        (16, True, 2, 0.02, 0.03, "num_workers=2 is enough for 2 cores; make an item cheaper"),
    ],
)
def test_workers_are_advised_by_what_loading_takes_and_by_the_cores(workers, pinned, cores, wait_s, step_s, remedy):
    known = around(workers=workers, pinned=pinned, cores=cores)
    assert only([], loop(step_s, wait_s), known).remedy.startswith(remedy)


def test_slow_copies_are_told_apart_from_slow_loading(seen):
    slow = loop(0.05, 0.001, copy_s=25.0)
    verdict = only(seen(Scene([working(busy=30)])), slow, around(pinned=False))
    assert verdict.sentence.startswith("the loop waits for batches to be copied to the card 50 % of the time")
    assert verdict.remedy == "pin_memory=True in the DataLoader, and x.to(run.device, non_blocking=True)"
    assert "uint8" in only(seen(Scene([working(busy=30)])), slow, around(pinned=True)).remedy


def test_a_second_card_that_idles_is_told_with_how_to_use_both(seen):
    verdict = only(seen(Scene([working(), FakeCard()])))
    assert verdict.sentence == (
        "2 cards are there and 1 of them works: Tesla T4 (cuda:1) was 0 % busy over 50 s and 1000 steps"
    )
    assert "torch.nn.DataParallel(model)" in verdict.remedy and "CUDA_VISIBLE_DEVICES=1" in verdict.remedy


def test_an_idle_card_is_named_so_that_another_process_finds_it(seen, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,3")
    verdict = only(seen(Scene([FakeCard(), working(), FakeCard(), FakeCard()])))
    assert "Tesla T4 (cuda:1), Tesla T4 (cuda:2) were 0 % busy" in verdict.sentence
    assert verdict.remedy.startswith("use them all from one process")
    assert f"CUDA_VISIBLE_DEVICES={fake_uuid(2)} " in verdict.remedy


@pytest.mark.parametrize(("platform", "words"), [("kaggle", "power button"), ("local", "reload the driver")])
def test_a_lost_card_is_left_in_the_way_of_the_platform(seen, platform, words):
    lost = Scene([working(lost_after=3)])
    assert words in only(seen(lost), known=around(platform=platform)).remedy


def test_an_idle_card_is_told_with_where_the_steps_run(seen):
    nothing = only(seen(Scene([FakeCard(used_mb=400, processes={OWN: 0})])))
    assert nothing.sentence == (
        "Tesla T4 (cuda:0) was 0 % busy over 50 s and 1000 steps, and this process has nothing on it: the steps run "
        "on the CPU"
    )
    assert nothing.remedy == "put the model and each batch there: model.to(run.device), x.to(run.device)"
    small = only(seen(Scene([working(busy=4)])))
    assert small.sentence.endswith("a step takes 49 ms, and nearly all of that is spent on the CPU")
    assert "larger batch" in small.remedy


def test_memory_of_others_is_told_with_how_much(seen):
    verdict = only(seen(Scene([working(used_mb=14000, processes={OWN: 1000, 1: 12000})])))
    assert verdict.sentence == (
        "14.7 GB of 16.1 GB on Tesla T4 (cuda:0) are in use, 12.6 GB of them by other processes"
    )
    assert verdict.remedy.startswith("end the other processes")


def test_precision_is_told_with_the_reason_and_the_way_of_this_card(seen):
    on_t4 = only(seen(Scene([working()])), known=around(parameter_dtypes=FP32))
    assert "trains in float32 on Tesla T4 (cuda:0), 92 % busy; Tesla T4 has tensor cores for float16 only" in (
        on_t4.sentence
    )
    assert "torch.float16" in on_t4.remedy and "GradScaler" in on_t4.remedy
    a100 = working(name="NVIDIA A100", capability=(8, 0))
    on_a100 = only(seen(Scene([a100])), known=around(parameter_dtypes=FP32))
    assert "torch.bfloat16" in on_a100.remedy and "no GradScaler" in on_a100.remedy
    emulated = only(seen(Scene([working()])), known=around(parameter_dtypes={"bfloat16": 44_000_000}))
    assert "trains in bfloat16" in emulated.sentence and "torch.float16" in emulated.remedy


@pytest.mark.parametrize(
    ("name", "capability", "told"), [("NVIDIA A100", (8, 0), []), ("Tesla T4", (7, 5), ["slow-precision"])]
)
def test_float32_as_tf32_is_fast_where_the_card_has_it(seen, name, capability, told):
    cards = seen(Scene([working(name=name, capability=capability)]))
    assert codes(cards, known=around(parameter_dtypes=FP32, tf32=True)) == told


@pytest.mark.parametrize(("used_mb", "times"), [(2900, 2), (1500, 4), (300, 8)])
def test_a_larger_batch_is_advised_by_the_memory_that_is_there(seen, used_mb, times):
    verdict = only(seen(Scene([working(busy=45, used_mb=used_mb)])))
    assert verdict.code == "memory-unused"
    assert f"a batch {times} times as large" in verdict.remedy


def test_throttling_is_told_with_its_share_and_the_heat(seen):
    verdict = only(seen(Scene([working(throttle=0x20, temperature_c=93)])))
    assert "was slowed down in 100 % of" in verdict.sentence and "(thermal, up to 93 °C)" in verdict.sentence


def test_a_lost_card_is_told_with_what_nvml_said(seen):
    verdict = only(seen(SCENES["the card is lost in mid-run"][0]))
    assert verdict.sentence == "Tesla T4 (cuda:0) has stopped answering: GPU is lost"
    assert "last checkpoint in a new session" in verdict.remedy


# --------------------------------------------------------------------------------------------------- thin evidence

THIN = [
    LoopTimes(),
    LoopTimes(steps=1000, wait_s=15, total_s=19),
    LoopTimes(steps=4, wait_s=100, total_s=120),
    LoopTimes(steps=0, wait_s=300, total_s=400),
]


@pytest.mark.parametrize("times", THIN)
@pytest.mark.parametrize("name", [name for name, scene in SCENES.items() if scene[3] and scene[3] != ["card-lost"]])
def test_too_short_a_loop_gives_no_verdict(name, times):
    scene, _, known, _ = SCENES[name]
    card = scene.cards[0]
    total = card.memory_mb << 20
    use = CardUse(0, 0, "GPU-0", card.name, card.capability, 50, 3.0, 3.0, total, total, 0, total, 90, 60, 70)
    assert codes([use], times, known) == []


def test_few_looks_at_the_card_give_no_verdict(stage):
    stage.set(Scene([FakeCard(used_mb=15300, processes={OWN: 0}, throttle=0x20)]))
    few = watch(looks=1, every_s=3600)[1]
    assert few[0].samples < MIN_SAMPLES
    assert codes(few, known=around(parameter_dtypes=FP32)) == []
    assert codes(few, known=around(device="cpu")) == []


def test_long_steps_are_judged_after_minutes():
    idle = CardUse(0, 0, "GPU-0", "Tesla T4", samples=150, busy_percent=0.0, memory_own_bytes=0)
    assert codes([idle], LoopTimes(steps=2, total_s=310)) == ["card-idle"]
    assert codes([idle], LoopTimes(steps=2, total_s=290)) == []


def test_a_first_step_that_compiled_does_not_make_the_card_idle():
    """The mean is low because of minutes in the compiler; now it works."""
    use = CardUse(0, 0, "GPU-0", "Tesla T4", samples=30, busy_percent=6.0, busy_now_percent=88.0)
    assert codes([use], loop()) == []


def test_a_second_card_that_has_just_begun_is_not_called_idle():
    main = CardUse(0, 0, "GPU-0", "Tesla T4", samples=30, busy_percent=90.0, memory_total_bytes=16 * 10**9)
    second = CardUse(1, 1, "GPU-1", "Tesla T4", samples=30, busy_percent=2.0, memory_total_bytes=16 * 10**9)
    assert codes([main, second]) == ["second-card-idle"]
    assert codes([main, replace(second, busy_now_percent=60.0)]) == []


# ----------------------------------------------------------------------------------------------------- after the end

HELD = CardUse(0, 0, "GPU-0", "Tesla T4", memory_own_bytes=3_000_000_000)
SECOND = CardUse(1, 1, "GPU-1", "Tesla T4")


def test_an_interactive_session_that_holds_its_cards_is_told_what_it_costs():
    (now,) = after_the_end([HELD, SECOND], 0.0, around(mode="interactive"), platform="kaggle")
    assert now.code == "holding-the-card"
    assert now.sentence == (
        "the run has ended, but this session still holds Tesla T4 (cuda:0), Tesla T4 (cuda:1) (3.0 GB of its memory) "
        "and uses up your weekly GPU quota"
    )
    assert "power button" in now.remedy
    (later,) = after_the_end([HELD], 1800.0, around(mode="interactive", device="cpu"), platform="colab")
    assert later.sentence.endswith("and uses up your compute units, 30 min so far")
    assert "Disconnect and delete runtime" in later.remedy
    assert later.evidence == {"idle_s": 1800.0, "cards": 1.0, "memory_own_bytes": 3e9}


@pytest.mark.parametrize(
    ("cards", "mode", "platform"),
    [
        ([HELD], "batch", "kaggle"),
        ([HELD], "process", "local"),
        ([], "interactive", "kaggle"),
        ([CardUse(0, None, "GPU-0", "Tesla T4")], "interactive", "kaggle"),
        ([SECOND], "interactive", "local"),
    ],
)
def test_a_session_that_ends_by_itself_or_holds_nothing_is_told_nothing(cards, mode, platform):
    assert after_the_end(cards, 600.0, around(mode=mode), platform=platform) == []


def test_on_a_machine_of_ones_own_the_memory_is_the_point():
    (verdict,) = after_the_end([HELD], 600.0, around(mode="interactive"))
    assert verdict.sentence == (
        "the run has ended, but this session still holds Tesla T4 (cuda:0) (3.0 GB of its memory), 10 min so far"
    )
    assert "empty_cache" in verdict.remedy


# -------------------------------------------------------------------------------------------------------- anything

share = st.one_of(st.none(), st.floats(0, 100))
size = st.one_of(st.none(), st.integers(0, 20_000_000_000))
any_card = st.builds(
    CardUse,
    index=st.integers(0, 3),
    visible_as=st.one_of(st.none(), st.integers(0, 3)),
    uuid=st.just("GPU-0"),
    name=st.just("Tesla T4"),
    capability=st.one_of(st.none(), st.sampled_from([(6, 0), (7, 5), (8, 0)])),
    samples=st.integers(0, 100),
    busy_percent=share,
    busy_now_percent=share,
    memory_total_bytes=size,
    memory_peak_bytes=size,
    memory_own_bytes=size,
    memory_others_bytes=size,
    temperature_peak_c=share,
    throttled_share=st.dictionaries(
        st.sampled_from(["thermal", "power cap", "hardware slowdown"]), st.floats(0, 1)
    ),
    lost=st.sampled_from(["", "", "", "GPU is lost"]),
)
seconds = st.floats(0, 1000)
any_loop = st.builds(
    LoopTimes, st.integers(0, 2000), seconds, st.one_of(st.none(), seconds), seconds, st.floats(0, 4000)
)
any_around = st.builds(
    Circumstances,
    device=st.sampled_from(["cpu", "cuda", "cuda:0", "cuda:1"]),
    workers=st.one_of(st.none(), st.integers(0, 32)),
    pinned=st.sampled_from([None, True, False]),
    cores=st.integers(1, 96),
    parameter_dtypes=st.dictionaries(st.sampled_from(["float32", "bfloat16", "int8"]), st.integers(0, 10**9)),
    autocast=st.booleans(),
)


@given(cards=st.lists(any_card, max_size=4), times=any_loop, known=any_around)
def test_whatever_is_measured_verdicts_are_sound(cards, times, known):
    verdicts = judge(cards, times, known)
    given_codes = {verdict.code for verdict in verdicts}
    assert given_codes <= set(CODES)
    assert not {"starved", "card-idle"} <= given_codes
    assert not ("starved" in given_codes or "card-idle" in given_codes) or "second-card-idle" not in given_codes
    for verdict in verdicts:
        assert verdict.sentence and verdict.remedy
        assert "nan" not in verdict.sentence and "None" not in verdict.sentence
        assert all(isinstance(value, int | float) for value in verdict.evidence.values())
        assert verdict.code in ("card-lost", "starved") or verdict.evidence["samples"] >= MIN_SAMPLES
