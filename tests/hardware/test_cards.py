"""What is there is told as it is; what is wrong with it is told, with a code, and never raised."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perdure.hardware.cards import read_cards
from perdure.testing.nvml import (
    DRIVER_NOT_LOADED,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    VERSION_MISMATCH,
    FakeCard,
    Scene,
    fake_slice_uuid,
    fake_uuid,
)

T4 = FakeCard()
P100 = FakeCard("Tesla P100-PCIE-16GB", memory_mb=16280, capability=(6, 0), limit_w=250)
A100 = FakeCard("NVIDIA A100-SXM4-40GB", memory_mb=40960, capability=(8, 0), limit_w=400)
CUT_A100 = FakeCard("NVIDIA A100-SXM4-40GB", memory_mb=40960, capability=(8, 0), slices=(20096, 9984))


def test_one_t4_is_read_with_all_its_facts(stage):
    stage.set(Scene([T4], driver="580.159.04", cuda="12.8"))
    cards = read_cards({})
    (card,) = cards.cards
    assert (cards.driver, cards.cuda, cards.trouble, cards.notes) == ("580.159.04", "12.8", "", ())
    assert (card.index, card.name, card.uuid) == (0, "Tesla T4", fake_uuid(0))
    assert (card.memory_bytes, card.capability, card.visible_as) == (15360 << 20, (7, 5), 0)
    assert not card.mig and card.slices == () and card.lost == ""


@pytest.mark.parametrize(
    ("scene", "code", "words"),
    [
        (Scene(init_error=DRIVER_NOT_LOADED), "no-driver", "installed, but it does not run"),
        (Scene(init_error=VERSION_MISMATCH), "version-mismatch", "updated, and not restarted"),
        (Scene(init_error=NO_PERMISSION), "no-permission", "may not be asked by this user"),
        (Scene(init_error=UNKNOWN), "nvml", "Unknown Error"),
        (Scene(driver="580.159.04"), "no-cards", "runs (580.159.04), but there is no card"),
        (Scene([FakeCard(lost_after=0)]), "all-lost", "no card answers: GPU is lost"),
    ],
)
def test_each_trouble_has_its_code_and_its_words(stage, scene, code, words):
    stage.set(scene)
    cards = read_cards({})
    assert cards.trouble_code == code
    assert words in cards.trouble
    assert cards.visible == ()


def test_without_a_driver_the_missing_library_is_told():
    """In a process of its own, whose NVML is the one of this machine, or none."""
    code = "from perdure.hardware.cards import read_cards; print(read_cards({}).trouble_code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("no-library", "")  # "" where there is a real card


def test_without_nvidia_ml_py_it_is_the_package_that_is_missing():
    code = (
        "import sys; sys.modules['pynvml'] = None\n"
        "from perdure.hardware.cards import read_cards; print(read_cards({}).trouble)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "nvidia-ml-py is not installed" in done.stdout


def test_a_p100_says_that_it_is_sm_60(stage):
    stage.set(Scene([P100]))
    (card,) = read_cards({}).cards
    assert (card.name, card.capability) == ("Tesla P100-PCIE-16GB", (6, 0))


def test_one_lost_card_hides_no_other(stage):
    stage.set(Scene([FakeCard(lost_after=0), T4]))
    cards = read_cards({})
    assert [card.lost for card in cards.cards] == ["GPU is lost", ""]
    assert [card.index for card in cards.visible] == [1]
    assert cards.trouble == "" and cards.notes == ("card 0 does not answer: GPU is lost",)


@pytest.mark.parametrize(
    ("field", "gone", "words"),
    [
        ("name", "name", "the model of card 0: Not Supported"),
        ("memory", "memory_bytes", "the memory of card 0: Not Supported"),
        ("capability", "capability", "the compute capability of card 0: Not Supported"),
        ("uuid", "uuid", "the UUID of card 0: Not Supported"),
    ],
)
def test_an_error_for_one_field_leaves_the_others(stage, field, gone, words):
    stage.set(Scene([FakeCard(errors={field: NOT_SUPPORTED})]))
    cards = read_cards({})
    (card,) = cards.visible
    assert getattr(card, gone) in (None, "", "card 0")
    assert [getattr(card, name) for name in ("name", "memory_bytes", "capability", "uuid") if name != gone] == [
        value
        for name, value in (
            ("name", "Tesla T4"),
            ("memory_bytes", 15360 << 20),
            ("capability", (7, 5)),
            ("uuid", fake_uuid(0)),
        )
        if name != gone
    ]
    assert cards.trouble == "" and words in cards.notes[0]


def test_an_old_driver_without_a_version_of_cuda_is_no_trouble(stage):
    stage.set(Scene([T4], missing=["nvmlSystemGetCudaDriverVersion_v2"]))
    cards = read_cards({})
    assert (cards.cuda, cards.trouble, cards.visible[0].name) == ("", "", "Tesla T4")
    assert "CUDA version: Function Not Found" in cards.notes[0]


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        (fake_uuid(1), [1]),
        ("GPU-00000001", [1]),
        (f"{fake_uuid(1)},{fake_uuid(0)}", [1, 0]),
        ("", []),
        ("-1", []),
        ("2", []),
        ("0,2,1", [0]),
        ("0,0", []),
        ("GPU-0000000", []),
        ("GPU-00000001,GPU-0000000,GPU-00000000", [1]),
        ("GPU-ffff", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_counted_as_cuda_counts_them(stage, setting, seen):
    stage.set(Scene([T4, T4]))
    cards = read_cards({} if setting is None else {"CUDA_VISIBLE_DEVICES": setting})
    assert [card.index for card in cards.visible] == seen
    assert [card.visible_as for card in cards.visible] == list(range(len(seen)))
    assert [card.index for card in cards.cards] == [0, 1]
    assert cards.trouble_code == ("" if seen else "hidden")
    if not seen:
        assert cards.trouble == f'all 2 cards are hidden by CUDA_VISIBLE_DEVICES="{setting}"'


def test_the_setting_of_this_process_is_the_default(stage, monkeypatch):
    stage.set(Scene([T4, T4]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [card.index for card in read_cards().visible] == [1]


@pytest.mark.parametrize(
    ("environment", "known"),
    [
        ({}, False),
        ({"CUDA_VISIBLE_DEVICES": "0"}, False),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, False),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, True),
        ({"CUDA_VISIBLE_DEVICES": fake_uuid(1)}, True),
    ],
)
def test_cards_of_two_models_have_a_certain_order_only_by_bus_or_name(stage, environment, known):
    stage.set(Scene([T4, A100]))
    cards = read_cards(environment)
    assert cards.order_known is known
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in cards.notes) is not known


@pytest.mark.parametrize("field", ["name", "memory"])
def test_a_field_that_is_not_told_does_not_make_two_models_of_one(stage, field):
    stage.set(Scene([T4, FakeCard(errors={field: 999})]))
    cards = read_cards({})
    assert cards.order_known
    assert len(cards.notes) == 1 and "does not tell" in cards.notes[0]


def test_of_a_cut_card_the_first_slice_is_seen_and_no_whole_card(stage):
    stage.set(Scene([CUT_A100, T4]))
    cards = read_cards({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    (card,) = cards.visible
    assert card.mig
    assert [part.visible_as for part in card.slices] == [0, None]
    assert card.slices[0].uuid == fake_slice_uuid(0, 0)
    assert card.slices[0].memory_bytes == 20096 << 20


@pytest.mark.parametrize(
    ("setting", "number"),
    [
        (fake_slice_uuid(0, 1), 1),
        (f"{fake_slice_uuid(0, 1)},{fake_slice_uuid(0, 0)}", 1),
        (f"MIG-{fake_uuid(0)}/8/0", 1),
        ("0", 0),
        ("MIG-ffff", None),
        ("1", None),
    ],
)
def test_a_slice_is_named_by_its_uuid_old_or_new(stage, setting, number):
    stage.set(Scene([CUT_A100]))
    cards = read_cards({"CUDA_VISIBLE_DEVICES": setting})
    seen = [part.uuid for card in cards.visible for part in card.slices if part.visible_as is not None]
    assert seen == ([] if number is None else [fake_slice_uuid(0, number)])
    assert cards.trouble_code == ("hidden" if number is None else "")


def test_a_card_in_mig_mode_without_slices_is_of_no_use_and_says_so(stage):
    stage.set(Scene([FakeCard("NVIDIA A100-SXM4-40GB", capability=(8, 0), slices=())]))
    cards = read_cards({})
    assert (cards.trouble_code, cards.visible) == ("no-slices", ())
    assert cards.trouble == "NVIDIA A100-SXM4-40GB is in MIG mode and has no slices"


def test_reading_gives_nvml_back(stage):
    """Others in this process keep theirs, and none is left open."""
    import pynvml

    stage.set(Scene([T4]))
    read_cards({})
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    read_cards({})
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
