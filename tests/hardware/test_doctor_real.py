"""Real frameworks in the child, and the real thing where there is a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from hardware.doctoring import T4, cards, troubles
from perdure.checkup.doctor import Look, look
from perdure.hardware.probe import CHILD, probe
from perdure.testing.nvml import playing

COMPUTE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("child", sys.argv[1])
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
import torch
answers = [child._compute_torch(torch, "cpu"), child._outcome("meta", lambda: child._compute_torch(torch, "meta"))]
import tensorflow as tf
answers += [child._compute_tensorflow(tf, "CPU:0")]
print(json.dumps(answers))
"""


def test_what_is_computed_on_cards_computes_right_on_the_cpu() -> None:
    """The very functions of the child, on the only device that is everywhere."""
    done = subprocess.run([sys.executable, "-c", COMPUTE, str(CHILD)], capture_output=True, check=True)
    on_torch, on_nothing, on_tensorflow = json.loads(done.stdout.splitlines()[-1])
    assert (on_torch["right"], on_torch["off"]) == (True, 0.0)
    assert on_tensorflow["right"] is True
    assert on_tensorflow["seconds"] > 0
    assert on_nothing["error"].startswith("NotImplementedError: Cannot copy out of meta tensor")


def test_keras_is_asked_on_the_backend_that_is_chosen() -> None:
    answer = probe("keras", environment={**os.environ, "KERAS_BACKEND": "torch"})
    assert (answer.backend, answer.trouble) == ("torch", "")
    assert [(device.place, device.right) for device in answer.devices] == [("cpu", True)]
    assert answer.works is False  # the CPU is no card


def test_b67_the_cpu_wheel_that_is_installed_here_beside_a_card(fake_folder: Path, tmp_path: Path) -> None:
    with playing(fake_folder, cards(T4)):
        told = {**os.environ, "PERDURE_REACH": "off", "PERDURE_ROOT": str(tmp_path)}
        checkup = look(Look("gpu", told, frameworks=("torch",)))
    assert troubles(checkup) == {"torch": "failed", "gpu": "failed"}
    assert "built for the CPU only: cannot use Tesla T4" in checkup["torch"].fact
    assert "CUDA build of torch" in checkup["gpu"].fix


@pytest.mark.gpu
def test_a_real_card_passes_and_its_speeds_are_measured() -> None:
    checkup = perdure.doctor(require="gpu")
    assert checkup.ok, str(checkup)
    (device, *_) = probe("torch").devices
    assert device.works
    assert device.speeds["float16"] > device.speeds["float32"] > 0
