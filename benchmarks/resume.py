"""How long from the start of a process to its first step? Ours, digests checked, beside what others use.

    .venv/bin/python benchmarks/resume.py [--layers 8] [--rounds 5] [--folder DIR] [--save]

Each measurement is a process of its own that has imported everything and done nothing else. The clock runs from
there to the end of the first step: the model is built, the state brought in, one step on a small batch made, since
what is mapped is only read when it is used. ``fresh start`` does the same without a checkpoint; what a way ``adds``
to that, in the same round, is what the resume costs. Cold means that no byte of the files is in the page cache
(posix_fadvise, checked with mincore), warm that all are. Beside them the bytes are read past the page cache, once
by one thread and once by four, and dropped. All ways must arrive at the same weights.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # noqa: F401  what is imported here is imported in each measurement before its clock starts
import pynvml  # noqa: F401
import torch
import torch._dynamo
import torch.distributed.checkpoint as dcp
from common import Work, about, files_below, folder_for, forked, make_cold, make_warm, parser, report, spread

import perdure
import perdure.training.run
from perdure.hardware.disk import read_s

FRESH = "fresh start"


def work_of(options: argparse.Namespace, device: str = "cpu") -> Work:
    """A step on a batch so small that it is mostly reading and writing the state."""
    return Work(options.layers, options.width, batch=1, length=8, dropout=0.0, device=device)


# ---------------------------------------------------------------- the checkpoints


def prepare(folder: Path, options: argparse.Namespace) -> int:
    """One state, saved once by each tool; its size."""
    work = work_of(options)
    run = perdure.Run("bench", root=folder / "perdure", save_every="1000000 steps", accelerator="cpu")
    run.track(model=work.model, optimizer=work.optimizer)
    steps = run.steps(10**9)
    next(steps)
    work.step()
    work.optimizer.zero_grad()  # or the first save, which cannot know yet that they are dead, would hold gradients
    run.save()
    next(steps)
    run._engine._saver.settle()
    for name in ("torch", "dcp"):
        (folder / name).mkdir()
    torch.save(work.state(), folder / "torch/checkpoint.pt")
    dcp.save(work.state(), checkpoint_id=str(folder / "dcp"), no_dist=True)
    return work.nbytes


# ---------------------------------------------------------------- the ways back


def fresh(folder: Path, options: argparse.Namespace) -> Work:
    """No checkpoint."""
    return work_of(options)


def by_perdure(folder: Path, options: argparse.Namespace) -> Work:
    """Every digest proved."""
    work = work_of(options)
    run = perdure.Run("bench", root=folder / "perdure", save_every="1000000 steps", accelerator="cpu")
    run.track(model=work.model, optimizer=work.optimizer)
    work.stream = run.steps(10**9)  # type: ignore[attr-defined]  kept: a loop that is dropped is left
    assert next(work.stream) == 1  # type: ignore[attr-defined]
    return work


def by_torch(folder: Path, options: argparse.Namespace, *, mapped: bool) -> Work:
    """As the documentation of torch.load says, with and without mmap."""
    work = work_of(options)
    state = torch.load(folder / "torch/checkpoint.pt", map_location="cpu", mmap=mapped)
    work.model.load_state_dict(state["model"])
    work.optimizer.load_state_dict(state["optimizer"])
    return work


def by_torch_assigned(folder: Path, options: argparse.Namespace) -> Work:
    """As torch's recipe "tips for loading an nn.Module from a checkpoint" has it: mapped, meta, assigned."""
    work = work_of(options, device="meta")
    state = torch.load(folder / "torch/checkpoint.pt", map_location="cpu", mmap=True)
    work.model.load_state_dict(state["model"], assign=True)
    work.make_optimizer()
    work.optimizer.load_state_dict(state["optimizer"])
    return work


def by_dcp(folder: Path, options: argparse.Namespace) -> Work:
    """Into the live tensors, as its documentation says; the optimizer's state must be there for that."""
    work = work_of(options)
    for group in work.optimizer.param_groups:
        for p in group["params"]:
            work.optimizer.state[p] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.empty_like(p),
                "exp_avg_sq": torch.empty_like(p),
            }
    state = work.state()
    dcp.load(state, checkpoint_id=str(folder / "dcp"), no_dist=True)
    work.model.load_state_dict(state["model"])
    work.optimizer.load_state_dict(state["optimizer"])
    return work


WAYS: dict[str, tuple[str, Callable[[Path, argparse.Namespace], Work]]] = {
    FRESH: ("", fresh),
    "perdure": ("perdure", by_perdure),
    "torch.load(mmap=True) + load_state_dict": ("torch", lambda f, o: by_torch(f, o, mapped=True)),
    "torch.load(mmap=True) + load_state_dict(assign=True)": ("torch", by_torch_assigned),
    "torch.load + load_state_dict": ("torch", lambda f, o: by_torch(f, o, mapped=False)),
    "torch.distributed.checkpoint load": ("dcp", by_dcp),
}


def first_step(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own."""
    before = set(sys.modules)
    began = time.perf_counter()
    work = WAYS[name][1](folder, options)
    ready = time.perf_counter()
    work.step()
    ended = time.perf_counter()
    return {
        "ready_s": ready - began,
        "first_step_s": ended - began,
        "sum": float(sum(p.detach().double().sum() for p in work.model.parameters())),
        "imported": sorted(m for m in set(sys.modules) - before if m.count(".") == 0 or m.startswith("perdure.")),
    }


# ---------------------------------------------------------------- measuring


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All ways in turn, each round in another order, cold and warm."""
    order = random.Random(0)
    found: dict[str, dict[str, list[float]]] = {t: {name: [] for name in WAYS} for t in ("cold", "warm")}
    adds: dict[str, dict[str, list[float]]] = {t: {name: [] for name in WAYS} for t in ("cold", "warm")}
    raw: dict[int, list[float]] = {1: [], 4: []}
    sums: dict[str, set[float]] = {name: set() for name in WAYS}
    large = max(files_below(folder / "perdure"), key=lambda path: path.stat().st_size)
    for turn in range(options.rounds):
        for temperature in found:
            for name in order.sample(list(WAYS), len(WAYS)):
                make = make_cold if temperature == "cold" else make_warm
                if WAYS[name][0] and (wrong := make(folder / WAYS[name][0])):
                    raise SystemExit(f"{wrong} bytes are not {temperature}")
                result = forked(lambda name=name: first_step(name, folder, options))
                found[temperature][name].append(result["first_step_s"])
                sums[name].add(result["sum"])
                if result["imported"] and turn == 0 and temperature == "cold":
                    print(f"{name} imported meanwhile: {', '.join(result['imported'])}", file=sys.stderr)
            for name in WAYS:
                adds[temperature][name].append(found[temperature][name][-1] - found[temperature][FRESH][-1])
        for threads in order.sample(list(raw), len(raw)):
            raw[threads].append(read_s(large, threads=threads)[0])
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr)
    ends = set().union(*(sums[name] for name in WAYS if name != FRESH))
    # not ==: a step on mapped weights adds in another order, since they do not begin where torch's own memory does
    if not math.isclose(min(ends), max(ends), rel_tol=1e-8):
        raise SystemExit(f"they do not arrive at the same weights: {sums}")
    return {
        "read_bytes": large.stat().st_size,
        "raw_direct_read_s": {f"{threads} threads": spread(values) for threads, values in raw.items()},
        **{
            temperature: {
                name: {"first_step_s": spread(values), "adds_s": spread(adds[temperature][name])}
                for name, values in ways.items()
            }
            for temperature, ways in found.items()
        },
        "ratios": ratios(found, adds, raw),
    }


def ratios(
    found: dict[str, dict[str, list[float]]], adds: dict[str, dict[str, list[float]]], raw: dict[int, list[float]]
) -> dict[str, float]:
    """What is compared, medians over medians; the raw read is the faster one."""
    fastest = min(statistics.median(values) for values in raw.values())
    peer = "torch.load(mmap=True) + load_state_dict"
    return {
        "cold_adds_over_raw_read": statistics.median(adds["cold"]["perdure"]) / fastest,
        "cold_first_step_over_fresh_start_and_raw_read": statistics.median(found["cold"]["perdure"])
        / (statistics.median(found["cold"][FRESH]) + fastest),
        "cold_first_step_over_torch_mmap": statistics.median(found["cold"]["perdure"])
        / statistics.median(found["cold"][peer]),
        "warm_first_step_over_torch_mmap": statistics.median(found["warm"]["perdure"])
        / statistics.median(found["warm"][peer]),
    }


def main() -> None:
    """Measure, print, and keep if asked to."""
    made = parser(__doc__, rounds=5)
    made.add_argument("--layers", type=int, default=8, help="8 are 0.7 GB with the optimizer's state")
    made.add_argument("--width", type=int, default=768)
    options = made.parse_args()
    os.environ.pop("PERDURE_ROOT", None)
    with folder_for(options) as folder:
        state_bytes = forked(lambda: prepare(folder, options))
        figures = about(folder) | {"state_bytes": state_bytes, "rounds": options.rounds} | measure(folder, options)
    report("resume", figures, save=options.save)


if __name__ == "__main__":
    main()
