"""The fake NVML is met by the real nvidia-ml-py, in this process and in children, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perdure.hardware.cards import read_cards
from perdure.testing.nvml import (
    DRIVER_NOT_LOADED,
    FIELDS,
    UNKNOWN,
    FakeCard,
    Scene,
    fake_slice_uuid,
    fake_uuid,
    playing,
)


def names_in_a_child(environment=None):
    code = "from perdure.hardware.cards import read_cards; print([card.name for card in read_cards({}).cards])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_children_meet_the_same_scene_by_their_environment(stage):
    stage.set(Scene([FakeCard("NVIDIA L4", capability=(8, 9))]))
    assert names_in_a_child() == "['NVIDIA L4']"
    bare = {name: value for name, value in os.environ.items() if name not in stage.environment}
    assert names_in_a_child(bare) != "['NVIDIA L4']"
    assert names_in_a_child({**bare, **stage.environment}) == "['NVIDIA L4']"


def test_a_scene_can_change_while_it_is_used(stage):
    import pynvml

    stage.set(Scene([FakeCard(busy=10)]))
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 10
    stage.set(Scene([FakeCard(busy=70)]))
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 70
    pynvml.nvmlShutdown()


def test_curves_go_on_by_sample_and_stay_at_their_end(stage):
    import pynvml

    stage.set(Scene([FakeCard(busy=[10, 20, 30], temperature_c=[40, 50])]))
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    seen = [
        (pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, pynvml.nvmlDeviceGetTemperature(handle, 0))
        for _ in range(4)
    ]
    assert seen == [(10, 40), (20, 50), (30, 50), (30, 50)]
    pynvml.nvmlShutdown()


def test_curves_go_on_by_time_where_a_tick_is_given(stage):
    import pynvml

    stage.set(Scene([FakeCard(busy=[10, 20])], tick_s=1e-9))
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0)).gpu == 20
    stage.set(Scene([FakeCard(busy=[10, 20])], tick_s=1e9))
    assert pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0)).gpu == 10
    pynvml.nvmlShutdown()


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_can_be_made_to_fail(stage, field):
    import pynvml

    asked = {
        "handle": lambda card: pynvml.nvmlDeviceGetHandleByIndex(0),
        "index": pynvml.nvmlDeviceGetIndex,
        "name": pynvml.nvmlDeviceGetName,
        "uuid": pynvml.nvmlDeviceGetUUID,
        "memory": pynvml.nvmlDeviceGetMemoryInfo,
        "utilization": pynvml.nvmlDeviceGetUtilizationRates,
        "capability": pynvml.nvmlDeviceGetCudaComputeCapability,
        "temperature": lambda card: pynvml.nvmlDeviceGetTemperature(card, 0),
        "power": pynvml.nvmlDeviceGetPowerUsage,
        "limit": pynvml.nvmlDeviceGetEnforcedPowerLimit,
        "throttle": pynvml.nvmlDeviceGetCurrentClocksEventReasons,
        "processes": pynvml.nvmlDeviceGetComputeRunningProcesses,
        "mig": pynvml.nvmlDeviceGetMigMode,
    }
    stage.set(Scene([FakeCard(capability=(8, 0))]))
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    asked[field](handle)
    stage.set(Scene([FakeCard(capability=(8, 0), errors={field: UNKNOWN})]))
    with pytest.raises(pynvml.NVMLError_Unknown):
        asked[field](handle)
    pynvml.nvmlShutdown()


def test_afterwards_all_is_as_before(fake_folder):
    import pynvml

    library, environment = pynvml.nvmlLib, dict(os.environ)
    with playing(fake_folder, Scene([FakeCard()])):
        assert read_cards({}).cards
        assert os.environ != environment
    assert pynvml.nvmlLib is library and dict(os.environ) == environment


def test_the_names_of_cards_and_slices_are_those_that_the_fake_gives(stage):
    stage.set(Scene([FakeCard(), FakeCard(capability=(8, 0), slices=(1024, 2048))]))
    cards = read_cards({}).cards
    assert [card.uuid for card in cards] == [fake_uuid(0), fake_uuid(1)]
    assert [part.uuid for part in cards[1].slices] == [fake_slice_uuid(1, 0), fake_slice_uuid(1, 1)]


def smi(*arguments):
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60)


def test_nvidia_smi_shows_the_scene(stage):
    stage.set(Scene([FakeCard(), FakeCard("NVIDIA L4", memory_mb=23034, capability=(8, 9))], driver="580.1"))
    assert smi("-L").stdout == (
        f"GPU 0: Tesla T4 (UUID: {fake_uuid(0)})\nGPU 1: NVIDIA L4 (UUID: {fake_uuid(1)})\n"
    )
    queried = smi("--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader")
    assert queried.stdout == "Tesla T4, 15360 MiB, 7.5, 580.1\nNVIDIA L4, 23034 MiB, 8.9, 580.1\n"
    assert "Driver Version: 580.1" in smi().stdout
    stage.set(Scene())
    assert (smi().stdout, smi().returncode) == ("No devices were found\n", 6)
    stage.set(Scene(init_error=DRIVER_NOT_LOADED))
    assert smi().returncode == 9 and "couldn't communicate with the NVIDIA driver" in smi().stdout


def test_torch_counts_the_scripted_cards_by_nvml_as_we_do(stage, monkeypatch):
    """Torch's own count by NVML, in a child that loads the same library."""
    stage.set(Scene([FakeCard(), FakeCard(), FakeCard()]))
    code = (
        "import os, torch\nfrom perdure.hardware.cards import read_cards\n"
        "for setting in ('0', '1,2', '2,0,7,1', '0,0', '-1', 'GPU-00000002,GPU-00000000', 'GPU-0', ''):\n"
        "    os.environ['CUDA_VISIBLE_DEVICES'] = setting\n"
        "    print(torch.cuda._device_count_nvml() - len(read_cards().visible), end=' ')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["0"] * 8
