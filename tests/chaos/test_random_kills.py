"""200 seeded random SIGKILLs over the demo job, and 200 ends that are bit for bit the end of a run never killed."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from perdure.checkpoint.compare import compare
from perdure.checkpoint.store import Store
from perdure.core.paths import RunPaths
from training.processes import in_new_process

pytest.importorskip("sklearn")
import torch
import torch._dynamo

import perdure.training.run  # noqa: F401  before the forks, so that none pays for it
from perdure.demo import digits

pytestmark = pytest.mark.slow

KILLS = 200


def job(root):
    """The demo's training, two epochs of it."""
    torch.set_num_threads(1)
    os.environ["PERDURE_ROOT"] = str(root)
    digits.EPOCHS = 2
    digits.main()


def killed_after(root, seconds):
    """Run the job in a process of its own and kill it; False if it was at its end before."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            job(root)
        finally:
            os._exit(0)
    time.sleep(seconds)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def final(root):
    return Store(RunPaths(root / "digits"), "digits").newest()


def test_two_hundred_random_kills_end_identically(tmp_path, capfd):
    began = time.monotonic()
    in_new_process(job, tmp_path / "straight")
    full_s = time.monotonic() - began
    want, kills, sessions = final(tmp_path / "straight"), 0, 0
    assert want.manifest.finished
    dice = random.Random(20261201)
    while kills < KILLS:
        root = tmp_path / f"killed-{sessions}"
        sessions += 1
        if not killed_after(root, dice.uniform(0.02, 0.95) * full_s):
            continue
        kills += 1
        in_new_process(job, root)
        assert compare(final(root), want) == [], f"kill {kills}"
        with capfd.disabled():
            if kills % 20 == 0:
                print(f"\n{kills} kills, {kills} identical ends", end="", flush=True)
