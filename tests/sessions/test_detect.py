"""Where a session runs, what it may use there, and when it began."""

import os
import subprocess
import sys
import time

import pytest

from perdure.core.clock import SystemClock
from perdure.core.errors import ConfigError
from perdure.core.settings import Settings
from perdure.platforms.detect import detect, process_started_s, session_started_s

TWELVE_HOURS = 12 * 3600


def test_a_kaggle_batch_run_is_recognised_and_ends_with_code_0_when_paused():
    place = detect({"KAGGLE_KERNEL_RUN_TYPE": "Batch"})
    assert (place.platform, place.mode, place.paused_exit_code) == ("kaggle", "batch", 0)
    assert str(place.root) == "/kaggle/working/perdure"
    assert [str(p) for p in place.inputs] == ["/kaggle/input"]
    assert (place.limits.window_s, place.limits.disk_bytes) == (TWELVE_HOURS, 20 * 10**9)


def test_an_open_kaggle_notebook_says_that_its_folder_does_not_survive():
    place = detect({"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release"})
    assert (place.platform, place.mode, place.paused_exit_code) == ("kaggle", "interactive", 75)
    assert "lost" in place.survives


def test_a_tpu_session_on_kaggle_is_three_hours_shorter():
    place = detect({"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_ACCELERATOR_TYPE": "v5e-8"})
    assert place.limits.window_s == 9 * 3600


def test_colab_is_recognised():
    place = detect({"COLAB_RELEASE_TAG": "release-colab"})
    assert (place.platform, place.limits.window_s) == ("colab", TWELVE_HOURS)


def test_anything_else_is_a_local_machine_without_limits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = detect({})
    assert (place.platform, place.mode, place.root) == ("local", "process", tmp_path / "runs")
    assert place.limits.window_s is None
    assert place.limits.disk_bytes is None


def test_the_environment_overrides_the_detection():
    assert detect({"KAGGLE_KERNEL_RUN_TYPE": "Batch", "PERDURE_PLATFORM": "local"}).platform == "local"


def test_an_unknown_platform_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigError, match="kaggle"):
        detect({"PERDURE_PLATFORM": "kagle"})


def test_nvidia_smi_promises_a_gpu_on_a_hosted_platform_unless_the_cards_are_hidden(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    hosted = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "PATH": str(tmp_path)}
    assert detect(hosted).gpu_promised
    assert not detect(hosted | {"CUDA_VISIBLE_DEVICES": ""}).gpu_promised


def test_a_hosted_session_began_with_its_container_and_a_local_one_with_this_process():
    kaggle, local = detect({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}), detect({})
    assert session_started_s(kaggle, Settings()) == process_started_s(1)
    assert session_started_s(local, Settings()) == process_started_s(os.getpid())
    assert session_started_s(kaggle, Settings(started_s=12.5)) == 12.5


def test_the_start_of_a_process_is_on_the_scale_of_the_session_clock():
    before = SystemClock().monotonic()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        time.sleep(0.02)
        started = process_started_s(child.pid)
    finally:
        child.communicate(b"\n")
    assert before - 0.02 <= started <= SystemClock().monotonic()
