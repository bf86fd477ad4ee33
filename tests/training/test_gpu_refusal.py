"""A run that is to train on a GPU does not train on the CPU: it stops, and says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

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


def test_b67_a_torch_that_is_built_for_the_cpu_is_refused_with_the_way_back(stage):
    stage.set(Scene([FakeCard(), FakeCard()]))
    error = refused(platform="kaggle")
    assert f"a GPU was asked for, but this torch ({torch.__version__}) is built for the CPU only" in error.what
    assert "take the cell out that installs torch over the image's" in error.hint
    assert 'accelerator="cpu"' in error.hint


def test_the_switch_that_was_forgotten_is_named_where_the_image_without_a_card_has_a_torch_for_the_cpu(stage):
    stage.set(Scene(init_error=9))
    error = refused(platform="kaggle")
    assert f"this torch ({torch.__version__}) is built for the CPU only" in error.what
    assert "the NVIDIA driver is installed, but it does not run" in error.what
    assert "Settings > Accelerator > GPU T4 x2" in error.hint and "installs torch" not in error.hint


def test_a_driver_that_hangs_holds_no_refusal_up(monkeypatch):
    monkeypatch.setattr(device, "CARDS_S", 0.05)
    monkeypatch.setattr(device, "read_cards", threading.Event().wait)
    assert "take the cell out" in refused(platform="kaggle").hint


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


DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int said(const char *what) { fprintf(stderr, "driver: %s\\n", what); return 0; }
int cuInit(unsigned flags) { said("init"); while (getenv("HANG")) pause(); return 0; }
int cuDeviceGet(int *device, int index) { *device = 7; return said("get"); }
int cuDevicePrimaryCtxRetain(void **context, int device) { return said(device == 7 ? "retain" : "other"); }
int cuDevicePrimaryCtxRelease(int device) { return said("old release"); }
int cuDevicePrimaryCtxRelease_v2(int device) { return said(device == 7 ? "release" : "other"); }
"""

SCRIPT = """
import ctypes, torch
import perdure
from perdure.training import device, run
torch.version.cuda = "12.8"                                     # it still sees no card
run.choose_device = lambda *a: device.choose_device(*a, timeout_s=1.0)
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.pause, None, None)                      # a hook at the end of a process that hangs
perdure.Run("job", accelerator="auto")
libc._exit(0)
"""


def with_driver(folder, **environment):
    """The script, beside a driver of CUDA that is compiled here."""
    (folder / "driver.c").write_text(DRIVER)
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "driver.c"], check=True)
    told = {**os.environ, "LD_LIBRARY_PATH": str(folder), **environment}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, env=told, capture_output=True, text=True, timeout=120, check=False)


def test_a_driver_that_never_answers_is_refused_and_nothing_waits_for_it(tmp_path):
    done = with_driver(tmp_path, HANG="1")
    assert done.returncode == 1
    assert "driver: init" in done.stderr
    assert "the first kernel on card 0 has not come back after 1 s" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: ")


def test_the_context_of_the_card_is_held_until_torch_has_it_and_then_let_go(tmp_path):
    done = with_driver(tmp_path)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if line.startswith("driver")] == [
        "driver: init", "driver: get", "driver: retain", "driver: release",
    ]  # fmt: skip


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
