"""How much memory do checkpoints take at most? Ours beside what others use, each in a process of its own.

    .venv/bin/python benchmarks/memory.py [--layers 8] [--saves 3] [--folder DIR] [--save]

Anonymous and shared memory of the process and its children, as another process sees it every 10 ms: its highest
while some blocks of steps are trained with a checkpoint each, less the highest of the same training without any.
Pages of files do not count: the system takes them back. ``of the state`` divides by what is saved.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any

import saving
from common import Work, about, folder_for, forked, memory_watched, parser, report

for _module in (
    "lightning.pytorch.plugins.io",
    "moonclip",
    "safetensors.torch",
    "torchsnapshot",
    "perdure.training.run",
):
    with contextlib.suppress(Exception):  # what is imported here is in the memory of all
        importlib.import_module(_module)


def highest(kind: type[saving.Contender], folder: Path, options: argparse.Namespace) -> dict[str, int]:
    """In a process of its own: the highest memory of training with checkpoints."""
    with memory_watched() as peak:
        work = Work(options.layers, options.width, batch=2, length=16)
        work.step()
        contender = kind(work, folder)
        saving.block(contender, save=False)  # what ours learns about gradients before a first save
        for _ in range(options.saves):
            saving.block(contender, save=kind is not saving.Contender)
        contender.drain()
    return {"peak_bytes": peak(), "state_bytes": work.nbytes}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All ways, some rounds."""
    kinds = (saving.Contender, *saving.ALL)
    peaks: dict[str, list[int]] = {}
    missing: dict[str, str] = {}
    state = 0
    for turn in range(options.rounds):
        for number, kind in enumerate(kinds):
            if kind.name in missing:
                continue
            place = folder / f"{turn}-{number}"
            try:
                found = forked(lambda kind=kind, place=place: highest(kind, place, options))
            except RuntimeError as error:
                missing[kind.name] = str(error)
                continue
            state = found["state_bytes"]
            peaks.setdefault(kind.name, []).append(found["peak_bytes"])
            print(f"round {turn + 1}: {kind.name}", file=sys.stderr)
    none = max(peaks[saving.Contender.name])
    return {
        "state_bytes": state,
        "without_bytes": none,
        "missing": missing,
        "extra_bytes": {name: max(values) - none for name, values in peaks.items()},
        "extra_of_state": {name: (max(values) - none) / state for name, values in peaks.items()},
    }


def main() -> None:
    """Measure, print, and keep if asked to."""
    made = parser(__doc__, rounds=1)
    made.add_argument("--layers", type=int, default=8, help="8 are 0.7 GB with the optimizer's state")
    made.add_argument("--width", type=int, default=768)
    made.add_argument("--saves", type=int, default=3)
    options = made.parse_args()
    with folder_for(options) as folder:
        figures = about(folder, ("torchsnapshot", "moonclip", "lightning")) | {"saves": options.saves}
        figures |= measure(folder, options)
    report("memory", figures, save=options.save)


if __name__ == "__main__":
    main()
