"""How many bytes a second reach the disk, digests and fsync included? Ours beside a raw direct write and others.

    .venv/bin/python benchmarks/bytes.py [--layers 8] [--rounds 5] [--folder DIR] [--save]

The state of a transformer with AdamW, changed before each write, so that nothing can be shared with the one before.
Nothing trains meanwhile. ``raw`` writes as many bytes from memory that lies as the disk wants it, past the page
cache, in one file, with fsync. ``perdure, training waits`` is the road of a stop: digests, files, fsync, manifest,
fsync. ``perdure, beside the training`` is the road of an interval, from its beginning to the commit: the copy is in
it too. What was written before is removed outside the clock, for everybody. All ways take turns, each round in
another order; ratios are medians of those of the rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import Work, about, folder_for, forked, parser, report, spread

import perdure
from perdure.hardware.disk import block_of_memory, write_s

RAW = "raw direct write"
Way = Callable[[], float]
"""Seconds of one write."""


class Saves:
    """A run that is saved both ways."""

    def __init__(self, work: Work, folder: Path) -> None:
        keep = perdure.Keep(last=1)
        self.run = perdure.Run("bench", root=folder, save_every="1000000 steps", keep=keep, accelerator="cpu")
        self.run.track(model=work.model, optimizer=work.optimizer)
        self.stream = self.run.steps(10**9)
        next(self.stream)
        store = self.run._engine._saver._store  # there is no public word for these: a user does not choose the road
        self._what_follows, store._bring_home = store._bring_home, self._committed
        self._committed_s = 0.0
        self.removing_s: list[float] = []

    def _committed(self) -> None:
        """Called right behind the commit, before older checkpoints are removed."""
        self._committed_s = time.perf_counter()
        self._what_follows()

    def waiting(self) -> float:
        """As at a stop."""
        engine = self.run._engine
        began = time.perf_counter()
        assert engine._saver.save(engine.position, engine._plan_values(), "asked")
        self.removing_s.append(time.perf_counter() - self._committed_s)
        return self._committed_s - began

    def beside(self) -> float:
        """As at an interval, and then nothing else is done."""
        saver = self.run._engine._saver
        before = saver.checkpoint
        next(self.stream)  # a step without one
        self.run.save()
        began = time.perf_counter()
        next(self.stream)
        saver.settle()
        assert saver.checkpoint != before
        return self._committed_s - began


def torch_save(work: Work, path: Path) -> float:
    """With fsync."""
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    with open(path, "wb") as file:
        torch.save(work.state(), file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began


def safetensors_save(work: Work, path: Path) -> float:
    """With fsync; it digests nothing."""
    from safetensors.torch import save_file

    tensors = {f"model.{k}": v for k, v in work.model.state_dict().items()}
    for number, state in work.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    save_file(tensors, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - began


def change(work: Work) -> None:
    """Every tensor becomes another."""
    with torch.no_grad():
        for p in work.model.parameters():
            p.mul_(1.001)
            for value in work.optimizer.state[p].values():
                value.add_(1e-3)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All ways in turn; in a process of its own, which ends without finishing its run."""
    work, rounds = Work(options.layers, options.width, batch=1, length=8), options.rounds
    work.step()
    work.optimizer.zero_grad()
    saves, memory = Saves(work, folder), block_of_memory(work.nbytes)
    direct = write_s(folder / "raw", memory)[1]
    ways: dict[str, Way] = {
        RAW: lambda: write_s(folder / "raw", memory)[0],
        "perdure, training waits": saves.waiting,
        "perdure, beside the training": saves.beside,
        "torch.save and fsync": lambda: torch_save(work, folder / "torch.pt"),
        "safetensors save_file and fsync": lambda: safetensors_save(work, folder / "model.safetensors"),
    }
    for way in ways.values():  # everything that is only done once: memory, threads
        change(work)
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    order = random.Random(0)
    for turn in range(rounds):
        for name in order.sample(list(ways), len(ways)):
            change(work)
            os.sync()
            seconds[name].append(ways[name]())
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
    return {
        "state_bytes": work.nbytes,
        "raw_is_direct": direct,
        "removing_s": spread(saves.removing_s),
        "ways": {
            name: {
                "seconds": spread(values),
                "bytes_per_s": spread([work.nbytes / value for value in values]),
                "of_raw": statistics.median(r / v for r, v in zip(seconds[RAW], values, strict=True)),
            }
            for name, values in seconds.items()
        },
    }


def main() -> None:
    """Measure, print, and keep if asked to."""
    made = parser(__doc__, rounds=7)
    made.add_argument("--layers", type=int, default=8, help="8 are 0.7 GB with the optimizer's state")
    made.add_argument("--width", type=int, default=768)
    options: argparse.Namespace = made.parse_args()
    with folder_for(options) as folder:
        figures = about(folder) | {"rounds": options.rounds} | forked(lambda: measure(folder, options))
    report("bytes", figures, save=options.save)


if __name__ == "__main__":
    main()
