"""How long until a run that stopped in the middle of an epoch has its next batch? Ours beside the roads of others.

    .venv/bin/python -m pip install torchdata     # a peer that is missing is left out, and named
    .venv/bin/python benchmarks/fast_forward.py [--samples 1000000] [--batch 8] [--at 100000] [--workers 0] [--save]

A shuffled DataLoader is taken up behind batch ``--at``. Reading a sample costs nothing here, which is the best case
of whoever reads those that are skipped. Each measurement is a process of its own that has imported everything; the
clock runs from the empty script to the batch in hand: the loader is made and brought to its place, and for Perdure
the run is opened too, its checkpoint proved and everything in it put back. Each batch is checked to be the one that
an uninterrupted pass deals there. ``perdure, at the head`` is the same run at its second batch: what does not
depend on the place.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # noqa: F401
import pynvml  # noqa: F401
import torch
import torch._dynamo
from common import about, folder_for, forked, parser, report, spread
from torch import nn
from torch.utils.data import DataLoader, Dataset

import perdure
import perdure.training.run

try:
    from accelerate import skip_first_batches
except ImportError:
    skip_first_batches = None
try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None

SEED = 7
HEAD = 1


class Numbers(Dataset[int]):
    """Samples that cost nothing to read."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def loader_of(options: argparse.Namespace, kind: type = DataLoader) -> Any:
    """As a user makes it, with its own generator."""
    return kind(
        Numbers(options.samples),
        batch_size=options.batch,
        shuffle=True,
        num_workers=options.workers,
        generator=torch.Generator().manual_seed(SEED),
    )


# ---------------------------------------------------------------- perdure


def run_of(folder: Path, options: argparse.Namespace) -> tuple[perdure.Run, Iterator[Any]]:
    """The whole script; the batches of its loop."""
    run = perdure.Run("bench", root=folder, save_every="1000000 steps", accelerator="cpu", seed=0)
    model = nn.Linear(1, 1)
    run.track(model=model)
    loader = loader_of(options)
    return run, (batch for _ in run.epochs(1) for batch in run.batches(loader))


def stopped(folder: Path, options: argparse.Namespace, at: int) -> list[int]:
    """Go there once, save, and die; the batch that would have come next."""
    run, batches = run_of(folder, options)
    next(itertools.islice(batches, at - 1, None))
    run.save()
    upcoming = next(batches).tolist()
    run._engine._saver.settle()
    return upcoming


def by_perdure(folder: Path, options: argparse.Namespace, at: int) -> Any:
    """Start the same script again."""
    return next(run_of(folder, options)[1])


# ---------------------------------------------------------------- others


def by_reading(folder: Path, options: argparse.Namespace, at: int) -> Any:
    """``if index < start: continue``."""
    return next(itertools.islice(iter(loader_of(options)), at, None))


def by_accelerate(folder: Path, options: argparse.Namespace, at: int) -> Any:
    """As its documentation says; the Trainer of transformers does the same."""
    return next(iter(skip_first_batches(loader_of(options), at)))


def left_by_torchdata(folder: Path, options: argparse.Namespace, at: int) -> None:
    """Its state behind that batch."""
    loader = loader_of(options, StatefulDataLoader)
    next(itertools.islice(iter(loader), at - 1, None))
    torch.save(loader.state_dict(), folder / "loader.pt")


def by_torchdata(folder: Path, options: argparse.Namespace, at: int) -> Any:
    """As its documentation says."""
    loader = loader_of(options, StatefulDataLoader)
    loader.load_state_dict(torch.load(folder / "loader.pt", weights_only=False))
    return next(iter(loader))


Way = Callable[[Path, argparse.Namespace, int], Any]


def ways() -> tuple[dict[str, Way], dict[str, str]]:
    """Those that are installed, and those that are not."""
    found: dict[str, Way] = {"perdure": by_perdure, "perdure, at the head": by_perdure}
    found["read and drop"] = by_reading
    missing = {}
    for name, module, way in (
        ("accelerate skip_first_batches", skip_first_batches, by_accelerate),
        ("torchdata StatefulDataLoader", StatefulDataLoader, by_torchdata),
    ):
        if module is None:
            missing[name] = "not installed"
        else:
            found[name] = way
    return found, missing


def timed(way: Way, folder: Path, options: argparse.Namespace, at: int) -> tuple[float, list[int]]:
    """In a process of its own."""
    began = time.perf_counter()
    batch = way(folder, options, at)
    return time.perf_counter() - began, batch.tolist()


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All ways in turn, each round in another order."""
    found, missing = ways()
    places = dict.fromkeys(found, options.at) | {"perdure, at the head": HEAD}
    folders = {name: folder / str(number) for number, name in enumerate(found)}
    expected: dict[str, list[int]] = {}
    for name, place in places.items():
        folders[name].mkdir()
        if name.startswith("perdure"):
            expected[name] = forked(lambda name=name, place=place: stopped(folders[name], options, place))
        elif name.startswith("torchdata"):
            forked(lambda name=name, place=place: left_by_torchdata(folders[name], options, place))
    seconds: dict[str, list[float]] = {name: [] for name in found}
    order = random.Random(0)
    reference = forked(lambda: by_reading(folder, options, options.at).tolist())
    for turn in range(options.rounds):
        for name in order.sample(list(found), len(found)):
            took, batch = forked(lambda name=name: timed(found[name], folders[name], options, places[name]))
            if batch != expected.get(name, reference):
                missing[name] = "it does not go on with the batch that an uninterrupted pass deals there"
            seconds[name].append(took)
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr)
    return {"missing": missing, "next_batch_s": {name: spread(values) for name, values in seconds.items()}}


def main() -> None:
    """Measure, print, and keep if asked to."""
    made = parser(__doc__, rounds=5)
    made.add_argument("--samples", type=int, default=1_000_000)
    made.add_argument("--batch", type=int, default=8)
    made.add_argument("--at", type=int, default=100_000, help="batches that were dealt before")
    made.add_argument("--workers", type=int, default=0)
    options = made.parse_args()
    if options.at * options.batch >= options.samples:
        raise SystemExit("the pass is over before that batch")
    with folder_for(options) as folder:
        figures = about(folder, ("accelerate", "torchdata")) | {
            "samples": options.samples,
            "batch_size": options.batch,
            "at_batch": options.at,
            "workers": options.workers,
            "rounds": options.rounds,
        }
        figures |= measure(folder, options)
    report("fast_forward", figures, save=options.save)


if __name__ == "__main__":
    main()
