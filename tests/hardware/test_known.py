"""Facts about cards, and one remedy for every trouble on every platform."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure.hardware import cards, fixes
from perdure.hardware.fixes import fix
from perdure.hardware.known import ACCELERATORS, precision

PLATFORMS = ("local", "kaggle", "colab")
TROUBLES = re.findall(r'``"([a-z-]+)"``', (cards.Cards.__doc__ or "").split("trouble_code:")[1].split("notes:")[0])
ASKED = re.findall(r'``"([a-z-]+)"``', (fix.__doc__ or "").split("platform:")[0])


def test_every_trouble_of_cards_and_every_word_of_the_docstring_has_a_remedy():
    assert {"no-library", "no-cards", "hidden", "nvml"} <= set(TROUBLES)
    assert {"cpu-torch", "no-kernels", "hung-kernel"} <= set(ASKED)
    assert set(TROUBLES) | set(ASKED) == set(fixes._FIXES)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("code", sorted(fixes._FIXES))
def test_a_remedy_can_stand_in_a_sentence(code, platform):
    text = fix(code, platform)
    assert (text and not text.endswith(".") and text[0] == text[0].lower()) or text.startswith("Runtime >")


@pytest.mark.parametrize("code", ["no-library", "no-driver", "no-cards"])
def test_a_forgotten_switch_is_named_down_to_the_menu_entry(code):
    assert "Settings > Accelerator > GPU T4 x2" in fix(code, "kaggle")
    assert '"machine_shape": "NvidiaTeslaT4"' in fix(code, "kaggle")
    assert "Runtime > Change runtime type > T4 GPU" in fix(code, "colab")
    assert "Settings" not in fix(code, "local")


def test_the_p100_without_code_leads_to_the_t4_pair():
    assert "GPU T4 x2" in fix("no-kernels", "kaggle")


def test_a_wheel_over_the_images_is_taken_out():
    assert "installs torch over the image's" in fix("cpu-torch", "kaggle")
    assert "installs TensorFlow over the image's" in fix("cpu-tensorflow", "colab")
    assert "CUDA build of torch" in fix("cpu-torch", "local")


def test_what_is_not_known_still_says_where_to_look():
    assert fix("something-new", "mars") == "run perdure doctor, it checks this machine line by line"
    assert fix("hidden", "mars") == fix("hidden", "local")


@pytest.mark.parametrize(
    ("name", "capability", "fp16", "bf16", "tf32", "advice"),
    [
        ("Tesla K80", (3, 7), False, False, False, "float32"),
        ("Tesla P100-PCIE-16GB", (6, 0), False, False, False, "float32"),
        ("NVIDIA GeForce GTX 1080", (6, 1), False, False, False, "float32"),
        ("Tesla V100-SXM2-16GB", (7, 0), True, False, False, "float16 autocast with a GradScaler"),
        ("Tesla T4", (7, 5), True, False, False, "float16 autocast with a GradScaler"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), True, True, True, "bfloat16 autocast"),
        ("NVIDIA L4", (8, 9), True, True, True, "bfloat16 autocast"),
        ("NVIDIA H100 80GB HBM3", (9, 0), True, True, True, "bfloat16 autocast"),
        ("NVIDIA B200", (10, 0), True, True, True, "bfloat16 autocast"),
    ],
)
def test_a_card_is_known_by_what_it_computes_fast_with(name, capability, fp16, bf16, tf32, advice):
    known = precision(capability, name)
    assert (known.fp16, known.bf16, known.tf32, known.advice) == (fp16, bf16, tf32, advice)
    assert known.reason.startswith(name)


def test_a_t4_is_said_to_run_bfloat16_slowly_although_frameworks_say_that_it_can():
    assert "bfloat16 runs, but slowly" in precision((7, 5), "Tesla T4").reason


def test_what_kaggle_lends_is_known_by_its_names():
    pair = ACCELERATORS["NvidiaTeslaT4"]
    assert (pair.shown, pair.card, pair.count, pair.retired) == ("GPU T4 x2", "T4", 2, "")
    assert ACCELERATORS["NvidiaTeslaP100"].instead == "NvidiaTeslaT4"
    assert "sm_60" in ACCELERATORS["NvidiaTeslaP100"].retired
    assert ACCELERATORS["TpuV38"].instead == "TpuV5E8"
    assert ACCELERATORS["TpuV232"].instead == "CPU"
    for name, accelerator in ACCELERATORS.items():
        assert name == accelerator.name
        assert bool(accelerator.retired) == bool(accelerator.instead)
        assert accelerator.instead in ("", "CPU") or not ACCELERATORS[accelerator.instead].retired


def test_the_reference_page_has_every_verdict_with_the_thresholds_that_count():
    from perdure.hardware import rules, verdicts

    page = (Path(__file__).parent.parent.parent / "docs" / "reference" / "verdicts.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(verdicts.CODES)
    for module in (rules, verdicts):
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, int | float):
                row = re.search(rf"^\| `{name}` \| ([\d.,]+) \|", page, re.MULTILINE)
                assert row and float(row.group(1).replace(",", "")) == value, name
