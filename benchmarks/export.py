"""What does a proved model file cost beside a bare one? Makes the export part of docs/performance.md.

    .venv/bin/python benchmarks/export.py [--megabytes 700] [--rounds 5] [--folder DIR] [--save]

Each way of writing takes its turn in every round, in this one process, each round in another order; a first round
on a small model loads what is loaded once. Time is wall time until the call returns. Memory is the highest sum of
anonymous memory of this process and its children, as a process of its own sees it every 10 ms, less what was there
before the call: the model itself does not count, and pages of files, which the system can drop, do not either.
``--save`` keeps the figures in benchmarks/results and puts the table into the page.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import memory_watched
from safetensors.torch import save_file
from torch import nn

import perdure
from perdure.models.from_checkpoint import read_weights
from perdure.models.offline import Request, export_read

WIDTH = 2048
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs/performance.md"
BEGIN, END = "<!-- export: begin -->", "<!-- export: end -->"


class Block(nn.Module):
    """A layer of the size of a transformer's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step."""
        return x + nn.functional.gelu(self.linear(self.norm(x)))


def model_of(megabytes: float) -> nn.Module:
    """A model of about that size."""
    layer = sum(p.nbytes for p in Block().parameters())
    return nn.Sequential(*(Block() for _ in range(max(1, round(megabytes * 1e6 / layer)))))


def bytes_of(model: nn.Module) -> int:
    """Bytes of its parameters."""
    return sum(p.nbytes for p in model.parameters())


Way = Callable[[nn.Module, torch.Tensor, Path], object]


def torch_save(model: nn.Module, _: torch.Tensor, folder: Path) -> None:
    """As the tutorials do it."""
    torch.save(model.state_dict(), folder / "model.pth")


def torch_save_durable(model: nn.Module, _: torch.Tensor, folder: Path) -> None:
    """The same, on the disk when it returns."""
    with open(folder / "model.pth", "wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())


def safetensors_save(model: nn.Module, _: torch.Tensor, folder: Path) -> None:
    """As its documentation does it."""
    save_file(model.state_dict(), folder / "model.safetensors")


def pt2_save(model: nn.Module, example: torch.Tensor, folder: Path) -> None:
    """torch.export, bare."""
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: batch},)), folder / "model.pt2")


def onnx_save(model: nn.Module, example: torch.Tensor, folder: Path) -> None:
    """torch.onnx, bare."""
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(model, (example,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    assert program is not None
    program.save(str(folder / "model.onnx"))


def proved(*formats: str, example: bool = False) -> Way:
    """``perdure.export``."""
    return lambda model, inputs, folder: perdure.export(
        model, folder, example=inputs if example else None, formats=formats
    )


def from_checkpoint(model: nn.Module, _: torch.Tensor, folder: Path) -> None:
    """What ``perdure export`` does, without the start of its process; the checkpoint is there already."""
    read = read_weights(folder / "saved")
    export_read(read, Request(folder / "out", ("pth",)))


WAYS: dict[str, Way] = {
    "torch.save": torch_save,
    "torch.save and fsync": torch_save_durable,
    "perdure pth": proved("pth"),
    "perdure pth, with a forward pass": proved("pth", example=True),
    "perdure pth, from a checkpoint": from_checkpoint,
    "safetensors save_file": safetensors_save,
    "perdure safetensors": proved("safetensors"),
    "torch.export.save": pt2_save,
    "perdure pt2": proved("pt2", example=True),
    "torch.onnx.export": onnx_save,
    "perdure onnx": proved("onnx", example=True),
}


def measure(name: str, model: nn.Module, example: torch.Tensor, root: Path) -> tuple[float, int]:
    """Seconds and extra bytes of one way, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        if name.endswith("from a checkpoint"):
            perdure.save(folder / "saved", model=model)
        os.sync()
        with memory_watched() as highest:
            began = time.perf_counter()
            WAYS[name](model, example, folder)
            seconds = time.perf_counter() - began
        return seconds, highest()
    finally:
        shutil.rmtree(folder)


def spread(values: list[float]) -> dict[str, float]:
    """Median and both ends."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def run(megabytes: float, rounds: int, root: Path) -> dict[str, Any]:
    """All ways, round by round."""
    names = list(WAYS)
    small, example = model_of(1).eval(), torch.randn(2, WIDTH)
    for name in names:
        measure(name, small, example, root)
    del small
    model = model_of(megabytes).eval()
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn * 4 % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(measure(name, model, example, root))
            print(f"round {turn + 1}: {name}: {found[name][-1][0]:.2f} s", file=sys.stderr, flush=True)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "model_bytes": bytes_of(model),
        "rounds": rounds,
        "machine": {"cores": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads()},
        "versions": {
            "perdure": perdure.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "ways": {
            name: {"seconds": spread([s for s, _ in each]), "extra_bytes": spread([float(b) for _, b in each])}
            for name, each in found.items()
        },
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as the page has them."""
    lines = ["| way | seconds: median (lowest-highest) | extra memory |", "|---|---|---|"]
    for name, each in figures["ways"].items():
        seconds, extra = each["seconds"], each["extra_bytes"]["median"]
        spread = f"{seconds['median']:.2f} ({seconds['lowest']:.2f}-{seconds['highest']:.2f})"
        lines.append(f"| {name} | {spread} | {max(extra, 0) / 1e6:.0f} MB |")
    return "\n".join(lines)


def keep(figures: dict[str, Any]) -> None:
    """Write the figures down, and the table into the page."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "export.json").write_text(json.dumps(figures, indent=2) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(figures)}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    """Measure, print, and keep the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=float, default=700)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("perdure").addHandler(logging.NullHandler())  # or each export says what it made
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        figures = run(options.megabytes, options.rounds, Path(root))
    print(table(figures))
    if options.save:
        keep(figures)


if __name__ == "__main__":
    main()
