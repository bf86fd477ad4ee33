"""What does a run with a frozen backbone write? Bytes of its second and later checkpoints beside what changed.

    .venv/bin/python benchmarks/frozen.py [--layers 8] [--trained 1] [--saves 6] [--folder DIR] [--save]

A transformer of which only the last layers are trained, with AdamW. What changed is what the optimizer moves: those
parameters and its state. Bytes are those of the files that were new after each save, manifest included, as the file
system lists them; torch.save writes everything every time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from common import Work, about, files_below, folder_for, forked, parser, report, spread

import perdure


def frozen_work(options: argparse.Namespace) -> Work:
    """All layers but the last ones are frozen."""
    work = Work(options.layers, options.width, batch=2, length=16)
    for layer in list(work.model.layers)[: -options.trained]:
        layer.requires_grad_(False)
    work.make_optimizer()
    return work


def changed_bytes(work: Work) -> int:
    """What a step changes."""
    trained = [p for p in work.model.parameters() if p.requires_grad]
    return sum(p.nbytes for p in trained) + sum(v.nbytes for p in trained for v in work.optimizer.state[p].values())


def listed(folder: Path) -> dict[tuple[str, int], int]:
    """Files of checkpoints, by name and inode, with their sizes."""
    kept = [p for p in files_below(folder) if p.suffix == ".safetensors" or p.name == "manifest.json"]
    return {(str(p), p.stat().st_ino): p.stat().st_size for p in kept}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Several saves, one after the other; in a process of its own, which ends without finishing its run."""
    work, written = frozen_work(options), []
    every = perdure.Keep(last=options.saves + 2)
    run = perdure.Run("bench", root=folder, save_every="1000000 steps", keep=every, accelerator="cpu")
    run.track(model=work.model, optimizer=work.optimizer)
    stream = run.steps(10**9)
    for _ in range(5):  # by then it is known that gradients are dropped
        next(stream)
        work.step()
    before = listed(folder)
    for _ in range(options.saves):
        run.save()
        next(stream)
        work.step()
        next(stream)
        run._engine._saver.settle()
        work.step()
        after = listed(folder)
        written.append(sum(size for key, size in after.items() if key not in before))
        before = after
    torch.save(work.state(), folder / "torch.pt")
    changed = changed_bytes(work)
    return {
        "state_bytes": work.nbytes,
        "changed_bytes": changed,
        "first_bytes": written[0],
        "each_bytes": written,
        "later_bytes": spread([float(count) for count in written[1:]]),
        "later_of_changed": spread([count / changed for count in written[1:]]),
        "torch_save_bytes": (folder / "torch.pt").stat().st_size,
    }


def main() -> None:
    """Measure, print, and keep if asked to."""
    made = parser(__doc__, rounds=1)
    made.add_argument("--layers", type=int, default=8)
    made.add_argument("--width", type=int, default=768)
    made.add_argument("--trained", type=int, default=1, help="layers that are trained")
    made.add_argument("--saves", type=int, default=6)
    options = made.parse_args()
    with folder_for(options) as folder:
        figures = about(folder) | {"saves": options.saves} | forked(lambda: measure(folder, options))
    report("frozen", figures, save=options.save)


if __name__ == "__main__":
    main()
