"""Small trainings for tests of loops and loaders, and what it means that one was resumed exactly."""

from __future__ import annotations

import random
import shutil
import zlib
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # seconds to import; otherwise every forked session would pay for it with its first optimizer
from torch import nn

import perdure
import perdure.training.run
from perdure.checkpoint.store import Store
from perdure.core.paths import RunPaths
from training.processes import in_new_process, kill_me

torch.set_num_threads(1)


class Job:
    """A training whose every step depends on weights, generators and data; it keeps account of what it saw.

    ``seen`` is a checksum over every batch of the whole job in order, and part of the state: after a resume it can
    only be right if each batch was the same.
    """

    def __init__(self, width: int = 4) -> None:
        self.model = nn.Sequential(nn.Linear(width, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.book = {"seen": 0, "steps": 0}

    def step(self, x: torch.Tensor) -> None:
        x = x.float()
        noise = torch.randn_like(x) * 0.01 + float(np.random.rand()) * 0.01 + random.random() * 0.01
        self.optimizer.zero_grad()
        loss = self.model(x + noise).square().mean()
        loss.backward()
        self.optimizer.step()
        self.see(x)

    def see(self, x: torch.Tensor) -> None:
        """The step on this batch is done. Here it may be the last of the session."""
        self.book["seen"] = zlib.crc32(x.detach().numpy().tobytes(), self.book["seen"])
        self.book["steps"] += 1

    def tracked(self) -> dict:
        return {"model": self.model, "optimizer": self.optimizer, "book": self.book}

    def result(self) -> tuple:
        weights = b"".join(p.detach().numpy().tobytes() for p in self.model.parameters())
        return self.book["seen"], self.book["steps"], zlib.crc32(weights), float(torch.rand(1)), random.random()


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def session(script, root: Path, seed: int, kill_after: int | None = None, save_every="1 step") -> tuple:
    """One session of a script: ``script(run)`` trains a Job and returns it. Every checkpoint is kept.

    Killed in the body of the step behind ``kill_after``, so that a resume begins at that boundary.
    """
    seed_all(seed)
    plain = Job.see

    def see(job, x):
        plain(job, x)
        if kill_after is not None and job.book["steps"] == kill_after + 1:
            kill_me()

    Job.see = see  # in this process only
    with perdure.Run("job", root=root, save_every=save_every, keep=perdure.Keep(last=40)) as run:
        job = script(run)
    assert run.finished
    return job.result()


def check_exact(script, tmp_path: Path, cuts) -> None:
    """Resumed in a new process under another seed from the checkpoint of each cut, it ends as the straight run."""
    straight = tmp_path / "straight"
    want = in_new_process(session, script, straight, 0)
    for cut in cuts:
        root = tmp_path / f"cut-{cut}"
        shutil.copytree(straight, root)
        for found in Store(RunPaths(root / "job"), "job").list():
            if found.manifest.step > cut or found.manifest.finished:
                shutil.rmtree(found.folder)
        assert in_new_process(session, script, root, 77 + cut) == want, f"resumed at step {cut}"


def check_killed(script, tmp_path: Path, cuts, save_every="1 step") -> None:
    """The same with a real SIGKILL in the step behind each cut."""
    want = in_new_process(session, script, tmp_path / "straight", 0)
    for cut in cuts:
        root = tmp_path / f"cut-{cut}"
        in_new_process(session, script, root, 0, cut, save_every, expect_kill=True)
        assert in_new_process(session, script, root, 77 + cut) == want, f"killed after step {cut}"
