"""Machines with one thing wrong: just that is said, with the way out. The names of the traps are those of reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.doctoring import (
    A100,
    MODERN,
    NO_IMAGE,
    P100,
    T4,
    cards,
    examine,
    healthy,
    keras_on,
    on_card,
    tensorflow_on,
    torch_begins,
    torch_on,
    troubles,
)  # fmt: skip
from perdure.checkup.accelerator import check_required
from perdure.core.errors import ConfigError
from perdure.testing.nvml import (
    DRIVER_NOT_LOADED,
    NO_LIBRARY,
    VERSION_MISMATCH,
    FakeCard,
    Scene,
    fake_slice_uuid,
    fake_uuid,
)  # fmt: skip

CPU_TORCH = [*torch_begins(build="", version="2.13.0+cpu"), {"done": True}]
NO_FRAMEWORK: dict[str, list[object]] = {}


@pytest.fixture
def fake(fake_folder: Path) -> Path:
    return fake_folder


def test_one_t4_that_works(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, cards(T4), healthy(T4), kaggle="Batch", required="gpu")
    assert troubles(checkup) == {}
    assert checkup["driver"].fact == "580.159.04, serves CUDA up to 13.0"
    assert checkup["card 0"].fact == "Tesla T4, 16.1 GB, compute capability 7.5, cuda:0"
    assert checkup["torch"].fact == (
        "2.10.0+cu128, built for CUDA 12.8: computes on Tesla T4 what the CPU computes (first kernels 400 ms)"
    )
    assert checkup["gpu"].fact == "works in torch, tensorflow, keras"
    assert "float16" in checkup["precision"].fact
    assert "bfloat16 runs, but slowly" in checkup["precision"].fact


def test_no_driver_and_nothing_promised_is_no_failure(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, Scene(init_error=NO_LIBRARY), {"torch": CPU_TORCH}, smi=False)
    assert troubles(checkup) == {}
    assert checkup.ok
    assert checkup["driver"].state == "note"
    assert checkup["gpu"].fact == "none: training runs on the CPU"


def test_no_driver_where_a_gpu_is_required(fake, tmp_path) -> None:
    scene = Scene(init_error=DRIVER_NOT_LOADED)
    checkup = examine(fake, tmp_path, scene, {"torch": CPU_TORCH}, smi=False, required="gpu")
    assert troubles(checkup) == {"driver": "failed", "gpu": "failed"}
    assert "sudo modprobe nvidia" in checkup["gpu"].fix


def test_the_accelerator_switch_that_was_forgotten_on_kaggle(fake, tmp_path) -> None:
    scene = Scene(init_error=NO_LIBRARY)
    checkup = examine(fake, tmp_path, scene, {"torch": torch_on()}, kaggle="Interactive", smi=False)
    assert troubles(checkup) == {"driver": "warning"}
    assert checkup["driver"].fix.startswith("switch the accelerator on: Settings > Accelerator > GPU T4 x2")
    assert checkup["accelerator"].fact == "the CPU, with no accelerator at all"
    required = examine(
        fake, tmp_path, scene, {"torch": torch_on()}, kaggle="Interactive", smi=False, required="gpu"
    )
    assert troubles(required) == {"driver": "failed", "gpu": "failed"}


def test_a_driver_without_a_card(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, Scene(), {"torch": torch_on()}, required="gpu", smi=False)
    assert troubles(checkup) == {"driver": "failed", "gpu": "failed"}
    assert checkup["driver"].fact == "the NVIDIA driver runs (580.159.04), but there is no card"


def test_a_driver_that_was_updated_while_it_ran(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, Scene(init_error=VERSION_MISMATCH), {"torch": torch_on()}, smi=False)
    assert troubles(checkup) == {"driver": "failed"}
    assert "restart the machine" in checkup["driver"].fix


def test_b18_p100_with_a_torch_that_has_no_code_for_it(fake, tmp_path) -> None:
    """``is_available()`` is true, the first kernel dies (kaggle-cli 1151)."""
    played = {"torch": torch_on(P100, error=NO_IMAGE)}
    checkup = examine(fake, tmp_path, cards(P100), played, kaggle="Batch", required="gpu")
    assert troubles(checkup) == {"torch": "failed", "gpu": "failed"}
    assert "this build has no code for Tesla P100-PCIE-16GB (sm_60) (it has sm_70, sm_75," in checkup["torch"].fact
    assert checkup["torch"].fix.startswith("choose a card that the image has code for")
    assert "GPU T4 x2" in checkup["gpu"].fix


def test_b18_p100_whose_kernel_kills_the_process(fake, tmp_path) -> None:
    played = {"torch": [*torch_begins(), {"architectures": MODERN}, *on_card(0, P100), "segv"]}
    checkup = examine(fake, tmp_path, cards(P100), played, kaggle="Batch")
    assert troubles(checkup) == {"torch": "failed", "gpu": "failed"}
    assert "died of SIGSEGV while running a kernel on cuda:0 (Tesla P100-PCIE-16GB)" in checkup["torch"].fact
    assert "no code for Tesla P100-PCIE-16GB (sm_60)" in checkup["torch"].fact


def test_a_kernel_that_hangs_is_a_line(fake, tmp_path) -> None:
    played = {**healthy(T4), "torch": [*torch_begins(), {"architectures": MODERN}, *on_card(0, T4), "hang"]}
    checkup = examine(fake, tmp_path, cards(T4), played, kaggle="Batch", limit_s=2.0)
    assert troubles(checkup) == {"torch": "failed"}
    assert "hung while running a kernel on cuda:0 (Tesla T4): nothing came back for 2" in checkup["torch"].fact
    assert checkup["torch"].fix.startswith("stop the session")


def test_a_card_that_computes_wrong_results(fake, tmp_path) -> None:
    played = {"torch": torch_on(T4, seconds=0.1, right=False, off=0.7)}
    checkup = examine(fake, tmp_path, cards(T4), played)
    assert troubles(checkup) == {"torch": "failed", "gpu": "failed"}
    assert "cuda:0 (Tesla T4) computes wrong results, 0.7 off" in checkup["torch"].fact


def test_a_card_without_memory_left(fake, tmp_path) -> None:
    played = {"torch": torch_on(T4, error="OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.")}
    checkup = examine(fake, tmp_path, cards(T4, used_mb=15000, processes={4242: 15000}), played)
    assert troubles(checkup) == {"card 0": "warning", "torch": "failed", "gpu": "failed"}
    assert "15.7 GB of its memory are in use" in checkup["card 0"].fact
    assert "nvidia-smi lists it" in checkup["torch"].fix


def test_b67_a_cpu_wheel_over_the_torch_of_the_image(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, cards(T4, T4), {"torch": CPU_TORCH}, kaggle="Interactive")
    assert troubles(checkup) == {"torch": "failed", "gpu": "failed"}
    assert checkup["torch"].fact == "2.13.0+cpu, built for the CPU only: cannot use 2 x Tesla T4"
    assert "take the cell out that installs torch" in checkup["gpu"].fix
    assert checkup["gpu"].fact == (
        "no framework computes on a card (nvidia-smi is installed): training would run on the CPU"
    )


def test_b67_torch_sees_the_card_and_tensorflow_does_not(fake, tmp_path) -> None:
    played = {"torch": torch_on(T4), "tensorflow": tensorflow_on(), "keras": keras_on("CPU:0")}
    checkup = examine(fake, tmp_path, cards(T4), played)
    assert troubles(checkup) == {"tensorflow": "warning", "keras": "warning"}
    assert checkup["tensorflow"].fact == "2.20.0, built for CUDA 12.5: does not see Tesla T4"
    assert checkup["keras"].fact == "3.13.2 on tensorflow: computes on CPU:0 although there is Tesla T4"
    assert checkup["keras"].fix.startswith("KERAS_BACKEND=torch before the first import of keras")
    assert checkup.ok


def test_a_broken_tensorflow_beside_a_torch_that_is_fine_fails_nobody(fake, tmp_path) -> None:
    broken = [{"installed": True, "stage": "importing tensorflow"}, "exit 1"]
    none = Scene(init_error=NO_LIBRARY)
    checkup = examine(fake, tmp_path, none, {"torch": CPU_TORCH, "tensorflow": broken}, smi=False)
    assert troubles(checkup) == {"tensorflow": "warning"}
    assert checkup["tensorflow"].fact == "ended with exit code 1 while importing tensorflow: the reason"
    alone = examine(fake, tmp_path, none, {"tensorflow": broken}, smi=False)
    assert troubles(alone) == {"tensorflow": "failed"}


def test_b67_tensorflow_alone_that_sees_no_card_is_a_failure(fake, tmp_path) -> None:
    played = {"tensorflow": tensorflow_on(build=""), "keras": keras_on("CPU:0")}
    checkup = examine(fake, tmp_path, cards(T4), played)
    assert troubles(checkup) == {"tensorflow": "failed", "keras": "failed", "gpu": "failed"}
    assert checkup["tensorflow"].fix == "install TensorFlow with its CUDA libraries: tensorflow[and-cuda]"


def test_b67_a_shell_that_does_not_find_the_driver(fake, tmp_path, monkeypatch) -> None:
    """An SSH shell of a GPU session lacks ``LD_LIBRARY_PATH`` (kagglelink 7)."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libnvidia-ml.so.1").touch()
    monkeypatch.setattr("perdure.checkup.cards.LIBRARY_FOLDERS", (str(tmp_path / "lib"),))
    checkup = examine(fake, tmp_path, Scene(init_error=NO_LIBRARY), {"torch": torch_on()}, kaggle="Batch")
    assert troubles(checkup) == {"driver": "failed", "gpu": "failed"}
    assert checkup["driver"].fix.startswith(f"export LD_LIBRARY_PATH={tmp_path / 'lib'} ")


def test_a_container_with_cuda_and_without_nvml_can_train(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, Scene(init_error=NO_LIBRARY), {"torch": torch_on(T4)}, required="gpu")
    assert troubles(checkup) == {"driver": "warning"}
    assert checkup["driver"].fact.endswith("a framework computes on a card all the same, but nothing can watch it")
    assert checkup.ok


def test_a_card_of_amd_is_a_card(fake, tmp_path) -> None:
    lines = [*torch_begins(build="ROCm 6.4", version="2.10.0+rocm6.4"), {"architectures": ["gfx90a"]}]
    lines += [
        {"device": "cuda:0", "name": "AMD Instinct MI210", "capability": [9, 0]},
        {"device": "cuda:0", "seconds": 0.4, "right": True, "off": 1e-6},
        {"done": True},
    ]
    none = Scene(init_error=NO_LIBRARY)
    checkup = examine(fake, tmp_path, none, {"torch": lines}, required="gpu", smi=False)
    assert troubles(checkup) == {}
    assert (checkup["driver"].state, checkup["gpu"].state) == ("note", "ok")


def test_b19_a_t4_pair_was_asked_for_and_a_p100_came(fake, tmp_path) -> None:
    played = {"torch": torch_on(P100, error=NO_IMAGE)}
    checkup = examine(fake, tmp_path, cards(P100), played, kaggle="Batch", required="NvidiaTeslaT4")
    assert troubles(checkup) == {"accelerator": "failed", "torch": "failed", "gpu": "failed"}
    assert checkup["accelerator"].fact == "asked for GPU T4 x2 (NvidiaTeslaT4), got Tesla P100-PCIE-16GB"


def test_b19_the_t4_pair_that_was_asked_for(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, cards(T4, T4), healthy(T4, T4), kaggle="Batch", required="NvidiaTeslaT4")
    assert troubles(checkup) == {}
    assert checkup["accelerator"].fact == "2 x Tesla T4: GPU T4 x2, as asked"
    assert [c.fact.rpartition(", ")[2] for c in checkup.checks if c.name.startswith("card ")] == [
        "cuda:0",
        "cuda:1",
    ]
    assert len([check for check in checkup.checks if check.name == "precision"]) == 1


@pytest.mark.parametrize(
    ("metadata", "given", "state", "said"),
    [
        ({"machine_shape": "NvidiaTeslaT4"}, (T4, T4), "ok", "2 x Tesla T4: GPU T4 x2, as asked"),
        ({"machine_shape": "NvidiaTeslaP100"}, (T4, T4), "warning", "this is what comes instead"),
        ({"machine_shape": "NvidiaTeslaA100"}, (T4, T4), "failed", "asked for GPU A100 (NvidiaTeslaA100), got 2 x Tesla T4"),
        ({"machine_shape": "NvidiaTeslaT4"}, (), "failed", "got the CPU, with no accelerator at all"),
        ({"machine_shape": "TpuV232"}, (), "failed", "got the CPU, with no accelerator at all: it cannot be had any more"),
        ({"machine_shape": "TpuV5E8"}, (), "failed", "asked for TPU v5e-8 (TpuV5E8), got the CPU"),
        ({"enable_gpu": "true"}, (P100,), "warning", "it names no machine_shape, so that the platform chose the card"),
        ({"enable_gpu": True}, (), "failed", "a GPU was asked for, got the CPU"),
        ({"machine_shape": "NvidiaTeslaT5"}, (T4, T4), "warning", "no accelerator is known as 'NvidiaTeslaT5'"),
        ({}, (T4, T4), "ok", "2 x Tesla T4: GPU T4 x2 in the menu"),
    ],
)  # fmt: skip
def test_b19_what_the_metadata_asks_for_against_what_came(fake, tmp_path, metadata, given, state, said) -> None:
    (tmp_path / "kernel-metadata.json").write_text(json.dumps(metadata))
    played = {"torch": torch_on(*given)}
    checkup = examine(fake, tmp_path, cards(*given), played, kaggle="Batch", smi=False)
    assert checkup["accelerator"].state == state
    assert said in checkup["accelerator"].fact
    assert bool(checkup["accelerator"].fix) == (state in ("warning", "failed"))


def test_b19_what_is_required_must_be_here_itself_and_whole(fake, tmp_path) -> None:
    one = examine(fake, tmp_path, cards(T4), healthy(T4), kaggle="Batch", required="NvidiaTeslaT4")
    assert one["accelerator"].fact == "asked for GPU T4 x2 (NvidiaTeslaT4), got Tesla T4"
    instead = examine(fake, tmp_path, cards(T4, T4), healthy(T4, T4), kaggle="Batch", required="NvidiaTeslaP100")
    assert troubles(instead) == {"accelerator": "failed"}
    assert 'write "machine_shape": "NvidiaTeslaT4"' in instead["accelerator"].fix
    like = Scene([FakeCard("NVIDIA L40S", capability=(8, 9))] * 4)
    other = examine(fake, tmp_path, like, healthy(A100), kaggle="Batch", required="NvidiaL4")
    assert other["accelerator"].fact == "asked for GPU L4 x4 (NvidiaL4), got 4 x NVIDIA L40S"


def test_what_the_metadata_asks_for_is_expected(fake, tmp_path) -> None:
    (tmp_path / "kernel-metadata.json").write_text('{"machine_shape": "NvidiaTeslaT4"}')
    none = Scene(init_error=NO_LIBRARY)
    checkup = examine(fake, tmp_path, none, {"torch": torch_on()}, kaggle="Batch", smi=False)
    assert troubles(checkup) == {"driver": "failed", "accelerator": "failed", "gpu": "failed"}
    assert f"(asked for in {tmp_path / 'kernel-metadata.json'})" in checkup["gpu"].fact


def test_metadata_beside_a_local_machine_says_nothing_about_it(fake, tmp_path) -> None:
    (tmp_path / "kernel-metadata.json").write_text('{"machine_shape": "NvidiaTeslaT4"}')
    checkup = examine(fake, tmp_path, cards(A100), healthy(A100))
    assert "accelerator" not in checkup
    assert troubles(checkup) == {}


def test_a_tpu_session_is_not_missing_a_card(fake, tmp_path) -> None:
    (tmp_path / "kernel-metadata.json").write_text('{"machine_shape": "TpuV5E8"}')
    checkup = examine(
        fake, tmp_path, Scene(init_error=NO_LIBRARY), {"torch": CPU_TORCH}, kaggle="Batch", smi=False,
        PWD=str(tmp_path), TPU_ACCELERATOR_TYPE="v5litepod-8",
    )  # fmt: skip
    assert checkup["accelerator"].fact == "TPU v5litepod-8: TPU v5e-8, as asked"
    assert troubles(checkup) == {}


@pytest.mark.parametrize(("asked", "name"), [("gpu", "gpu"), ("GPU", "gpu"), ("nvidiateslat4", "NvidiaTeslaT4")])
def test_require_takes_names_as_users_write_them(asked: str, name: str) -> None:
    assert check_required(asked) == name


def test_require_of_nonsense_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match="no accelerator is called 'NvidiaTesla4'") as raised:
        check_required("NvidiaTesla4")
    assert "NvidiaTeslaT4" in raised.value.hint


@pytest.mark.parametrize("setting", ["1", fake_uuid(1), "GPU-00000001"])
def test_cards_are_counted_as_cuda_visible_devices_says(fake, tmp_path, setting: str) -> None:
    checkup = examine(fake, tmp_path, cards(T4, A100), healthy(A100), CUDA_VISIBLE_DEVICES=setting)
    assert troubles(checkup) == {}
    assert checkup["card 0"].fact.endswith("hidden by CUDA_VISIBLE_DEVICES")
    assert checkup["card 1"].fact.endswith("cuda:0")


def test_an_empty_cuda_visible_devices_hides_all(fake, tmp_path) -> None:
    played = {"torch": torch_on()}
    checkup = examine(fake, tmp_path, cards(T4), played, CUDA_VISIBLE_DEVICES="", required="gpu")
    assert troubles(checkup) == {"driver": "failed", "gpu": "failed"}
    assert checkup["driver"].fact == 'the card is hidden by CUDA_VISIBLE_DEVICES=""'
    assert "take CUDA_VISIBLE_DEVICES away" in checkup["gpu"].fix
    assert troubles(examine(fake, tmp_path, cards(T4), played, CUDA_VISIBLE_DEVICES="")) == {}


def test_a_slice_of_a_card_is_a_card(fake, tmp_path) -> None:
    scene = Scene([FakeCard(A100, memory_mb=40960, capability=(8, 0), slices=(4864, 9856))])
    checkup = examine(fake, tmp_path, scene, healthy(A100), CUDA_VISIBLE_DEVICES=fake_slice_uuid(0, 1))
    assert troubles(checkup) == {}
    assert "in slices: " in checkup["card 0"].fact
    assert checkup["card 0"].details["slices"][1]["visible_as"] == 0


def test_a_lost_card_beside_one_that_works(fake, tmp_path) -> None:
    scene = cards(T4, T4)
    scene = replace(scene, cards=[scene.cards[0], replace(scene.cards[1], lost_after=0)])
    checkup = examine(fake, tmp_path, scene, healthy(T4))
    assert troubles(checkup) == {"card 1": "failed"}
    assert "does not answer" in checkup["card 1"].fact


def test_b48_a_framework_that_sees_one_card_of_two(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, cards(T4, T4), {"torch": torch_on(T4)})
    assert troubles(checkup) == {"torch": "warning"}
    assert checkup["torch"].fact.endswith("but sees 1 of 2 cards")


def test_a_field_that_nvml_does_not_tell_is_said_and_hurts_nothing(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, cards(T4, errors={"memory": 3, "capability": 3}), healthy(T4))
    assert troubles(checkup) == {}
    assert checkup["card 0"].fact == "Tesla T4, cuda:0"
    assert "the memory of card 0" in checkup["driver"].fact


def test_a_card_and_no_framework(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, cards(T4), NO_FRAMEWORK, smi=False)
    assert troubles(checkup) == {"gpu": "warning"}
    assert checkup["torch"].fact == "not installed"
    assert "PyTorch" in checkup["gpu"].fix


def test_measured_speeds_stand_beside_the_advice(fake, tmp_path) -> None:
    speeds = {"float32": 4.13, "float16": 24.9, "bfloat16": 2.21}
    played = {"torch": torch_on(T4, seconds=0.4, right=True, off=1e-6, speeds=speeds)}
    fact = examine(fake, tmp_path, cards(T4), played)["precision"].fact
    assert fact.endswith("measured here: float32 4.13 TFLOP/s, float16 24.9 TFLOP/s, bfloat16 2.21 TFLOP/s")


def test_b69_what_survives_is_said_at_once(fake, tmp_path) -> None:
    none = Scene(init_error=NO_LIBRARY)
    batch = examine(fake, tmp_path, none, NO_FRAMEWORK, kaggle="Batch", smi=False)["platform"]
    open_ = examine(fake, tmp_path, none, NO_FRAMEWORK, kaggle="Interactive", smi=False)["platform"]
    assert (batch.state, open_.state) == ("ok", "note")
    assert batch.fact == "kaggle, batch: /kaggle/working is kept as this version's output when the session ends"
    assert "is lost when this session ends" in open_.fact
    assert "Save & Run All" in open_.fix


def test_b67_a_shell_of_a_kaggle_session_that_knows_nothing_of_it(fake, tmp_path, monkeypatch) -> None:
    """It lacks the session's variables, so that limits and window are unknown (kagglelink 7)."""
    monkeypatch.setattr("perdure.checkup.session.KAGGLE_WORKING", tmp_path)
    checkup = examine(fake, tmp_path, Scene(init_error=NO_LIBRARY), NO_FRAMEWORK, smi=False)
    assert checkup["platform"].state == "warning"
    assert "this shell lacks Kaggle's variables" in checkup["platform"].fact
    assert "PERDURE_PLATFORM=kaggle" in checkup["platform"].fix


def test_the_quota_is_said_not_to_be_looked_at(fake, tmp_path) -> None:
    checkup = examine(fake, tmp_path, Scene(init_error=NO_LIBRARY), NO_FRAMEWORK, kaggle="Batch", smi=False)
    assert checkup["quota"].fact.startswith("not looked at")
    assert "quota" not in examine(fake, tmp_path, Scene(init_error=NO_LIBRARY), NO_FRAMEWORK, smi=False)
