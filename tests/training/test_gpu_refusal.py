"""A run that is to train on a GPU does not train on the CPU: it stops, and says what to do."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

import perdure
from perdure.core.errors import AcceleratorError
from perdure.testing.nvml import FakeCard, Scene
from perdure.training import device
from perdure.training.device import choose_device
from training.test_bad_input import train


@pytest.fixture
def cuda_build(monkeypatch):
    """Let this torch pass for a CUDA build; it still sees no card."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")


def refused(accelerator="gpu", promised="", platform="local", **more):
    with pytest.raises(AcceleratorError) as caught:
        choose_device(accelerator, promised, platform, **more)
    return caught.value


def test_b67_a_torch_that_is_built_for_the_cpu_is_refused_with_the_way_back():
    error = refused(platform="kaggle")
    assert f"a GPU was asked for, but this torch ({torch.__version__}) is built for the CPU only" in error.what
    assert "take the cell out that installs torch over the image's" in error.hint
    assert 'accelerator="cpu"' in error.hint


def test_a_gpu_that_the_platform_promised_is_refused_too_and_the_promise_is_named(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    with pytest.raises(
        AcceleratorError, match=r"a GPU is expected here \(nvidia-smi is installed\), but this torch"
    ):
        perdure.Run("job", root=tmp_path)


def test_the_switch_that_was_forgotten_is_named_down_to_the_menu_entry(cuda_build, stage):
    stage.set(Scene(init_error=9))
    assert "Settings > Accelerator > GPU T4 x2" in refused(platform="kaggle").hint
    assert "Runtime > Change runtime type > T4 GPU" in refused(platform="colab").hint


def test_a_driver_without_a_card_is_told_from_no_driver(cuda_build, stage):
    stage.set(Scene(init_error=9))
    none = refused().what
    stage.set(Scene())
    assert refused().what != none
    assert all("sees none: " in what for what in (none, refused().what))


def test_b67_a_card_that_the_driver_shows_and_torch_does_not_see_is_named(cuda_build, stage):
    stage.set(Scene([FakeCard(), FakeCard()]))
    assert "does not see Tesla T4, Tesla T4, which the driver shows" in refused().what


def test_b18_a_card_that_this_torch_has_no_code_for_is_named_with_the_build(cuda_build, monkeypatch):
    def no_image(*_):
        raise RuntimeError(
            "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors"
        )

    monkeypatch.setattr(torch.cuda, "is_available", no_image)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla P100-PCIE-16GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70", "sm_75", "sm_80"])
    error = refused(platform="kaggle")
    assert "Tesla P100-PCIE-16GB (sm_60) cannot run a kernel of this torch, built for ['sm_70'" in error.what
    assert "GPU T4 x2" in error.hint


def test_a_kernel_that_never_comes_back_is_refused_and_nothing_waits_for_it():
    text = textwrap.dedent("""
        import ctypes, sys, threading, torch
        import perdure
        from perdure.training import device, run
        torch.version.cuda = "12.8"
        device._try = lambda index: threading.Event().wait()           # a driver that never answers
        run.choose_device = lambda *a: device.choose_device(*a, timeout_s=0.3)
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(libc.pause, None, None)                      # and its hook at the end neither
        perdure.Run("job", accelerator="auto")
    """)
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "the first kernel on card 0 has not come back after 300 ms" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: ")


def test_a_cpu_run_and_a_finished_run_ask_no_card(tmp_path, monkeypatch):
    def asked(*_):
        raise AssertionError("a card was asked")

    train(tmp_path)
    monkeypatch.setattr(device, "_trouble", asked)
    assert perdure.Run("job", root=tmp_path).finished
    assert train(tmp_path).step == 12
    assert train(tmp_path / "other", accelerator="cpu").device == torch.device("cpu")


def test_on_a_machine_of_ones_own_without_a_card_auto_is_the_cpu(monkeypatch, cuda_build, stage):
    assert choose_device("auto", "") == torch.device("cpu")
