"""Does a model of very many tiny tensors cost more than in proportion? Saves and resumes of 600 to 100,000 of them.

    .venv/bin/python benchmarks/tiny.py [--counts 600,6000,100000] [--rounds 3] [--folder DIR] [--save]

Parameters of 16 numbers each, trained by plain SGD. ``stall`` is the time that the boundary takes to begin a save,
``save`` that until it is committed with nothing else to do, ``resume`` that from the making of the run to its first
step, digests checked. Each round is a process of its own, and the first two saves of it, which prove more than
most, do not count. torch.save and torch.load(mmap=True) + load_state_dict stand beside them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import psutil  # noqa: F401
import pynvml  # noqa: F401
import torch
import torch._dynamo
from common import about, folder_for, forked, parser, report, spread
from torch import nn

import perdure
import perdure.training.run

WIDTH = 16


class Tiny:
    """A model that is nothing but tensors."""

    def __init__(self, count: int) -> None:
        torch.manual_seed(0)
        self.model = nn.ParameterList(nn.Parameter(torch.randn(WIDTH)) for _ in range(count))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def change(self) -> None:
        """As a step does, without its gradients."""
        with torch.no_grad():
            torch._foreach_mul_(list(self.model), 1.001)


def saved(folder: Path, count: int) -> dict[str, float]:
    """Some saves by each; the last counts."""
    work = Tiny(count)
    run = perdure.Run("bench", root=folder, save_every="1000000 steps", accelerator="cpu")
    run.track(model=work.model, optimizer=work.optimizer)
    stream = run.steps(10**9)
    saver = run._engine._saver
    found = {}
    for number in range(1, 4):  # the first two are proved by digests at the boundary; the third is as most are
        next(stream)
        work.change()
        run.save()
        began = time.perf_counter()
        next(stream)
        stalled = time.perf_counter()
        saver.settle()
        ended = time.perf_counter()
        if number == 3:
            found = {"stall_s": stalled - began, "save_s": ended - began}
        work.change()
    for _ in range(2):
        began = time.perf_counter()
        torch.save({"model": work.model.state_dict()}, folder / "torch.pt")
        found["torch_save_s"] = time.perf_counter() - began
    return found


def resumed(folder: Path, count: int) -> dict[str, float]:
    """In another process."""
    work = Tiny(count)
    began = time.perf_counter()
    run = perdure.Run("bench", root=folder, save_every="1000000 steps", accelerator="cpu")
    run.track(model=work.model, optimizer=work.optimizer)
    stream = run.steps(10**9)
    assert next(stream) > 0
    return {"resume_s": time.perf_counter() - began}


def loaded(folder: Path, count: int) -> dict[str, float]:
    """In another process."""
    work = Tiny(count)
    began = time.perf_counter()
    work.model.load_state_dict(torch.load(folder / "torch.pt", mmap=True)["model"])
    return {"torch_load_s": time.perf_counter() - began}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All sizes, round by round."""
    counts = [int(count) for count in options.counts.split(",")]
    found: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    for turn in range(options.rounds):
        for count in counts:
            place = folder / f"{turn}-{count}"
            for part in (saved, resumed, loaded):
                place.mkdir(exist_ok=True)
                for key, seconds in forked(lambda part=part, p=place, n=count: part(p, n)).items():
                    found[count].setdefault(key, []).append(seconds)
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr)
    return {
        "counts": {
            str(count): {
                key: spread(values) | {"us_a_tensor": spread(values)["median"] / count * 1e6}
                for key, values in each.items()
            }
            for count, each in found.items()
        }
    }


def main() -> None:
    """Measure, print, and keep if asked to."""
    made = parser(__doc__, rounds=3)
    made.add_argument("--counts", default="600,6000,100000")
    options = made.parse_args()
    with folder_for(options) as folder:
        figures = about(folder) | {"numbers_a_tensor": WIDTH, "rounds": options.rounds} | measure(folder, options)
    report("tiny", figures, save=options.save)


if __name__ == "__main__":
    main()
