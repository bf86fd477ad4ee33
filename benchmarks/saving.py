"""What does a checkpoint cost a training? Ours beside what others use, on the same work, in one process.

    .venv/bin/python -m pip install torchsnapshot moonclip     # peers that are missing are left out, and named
    .venv/bin/python benchmarks/saving.py [--layers 8] [--rounds 5] [--folder DIR] [--save]

The work is a transformer with AdamW. In every round each contender takes its turn, each round in another order: a
block of eight steps with one checkpoint at its first boundary. ``stood still`` is the time in which the loop did
nothing else: in the call, or at the boundary, and in a hook that waits before the optimizer's step. ``added`` is
how much longer the whole block took than the block of the same round without any checkpoint, so it holds slower
steps too, and the noise of eight steps. What is still being written at the end of a block is waited for, outside
the clock, and the disk is synced, so that nobody pays for another. ``end to end`` is
time of its own: four blocks in a row, with all waiting inside the clock, over the same without checkpoints.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import Work, about, folder_for, parser, report, spread

import perdure

STEPS = 8


class Contender:
    """One way of making checkpoints.

    Attributes:
        durable: What it calls saved is on disk (fsync), not in the page cache.
    """

    name = "no checkpoint"
    durable = True

    def __init__(self, work: Work, folder: Path) -> None:
        self.work, self.folder = work, folder
        folder.mkdir(parents=True)

    def boundary(self, save: bool) -> None:
        """Between two steps."""
        if save:
            self.save()

    def save(self) -> None:
        """Make a checkpoint; returns when training may go on."""

    def drain(self) -> None:
        """Wait until what was begun is written."""

    def waited_s(self) -> float:
        """How long steps of the last block waited in a hook."""
        return 0.0


class Perdure(Contender):
    name = "perdure"

    def __init__(self, work: Work, folder: Path) -> None:
        super().__init__(work, folder)
        self.run = perdure.Run("bench", root=folder, save_every="1000000 steps", keep=perdure.Keep(last=1))
        self.run.track(model=work.model, optimizer=work.optimizer)
        self.steps = self.run.steps(10**9)

    def boundary(self, save: bool) -> None:
        if save:
            self.run.save()
        next(self.steps)

    def drain(self) -> None:
        saver = self.run._engine._saver  # there is no public word for it: nobody but a benchmark needs to wait
        if saver.busy:
            saver.settle()

    def waited_s(self) -> float:
        return float(self.run._engine._saver._overlap.stall_s)


class TorchSave(Contender):
    name = "torch.save"
    durable = False

    def save(self) -> None:
        torch.save(self.work.state(), self.folder / "checkpoint.pt")


class TorchSaveSync(Contender):
    name = "torch.save + fsync"

    def save(self) -> None:
        with open(self.folder / "checkpoint.tmp", "wb") as file:
            torch.save(self.work.state(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.folder / "checkpoint.tmp", self.folder / "checkpoint.pt")


class Dcp(Contender):
    name = "torch.distributed.checkpoint save"

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.work.state(), checkpoint_id=str(self.folder / "dcp"), no_dist=True)


class DcpAsync(Contender):
    name = "torch.distributed.checkpoint async_save"

    def __init__(self, work: Work, folder: Path) -> None:
        import torch.distributed as dist

        super().__init__(work, folder)
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)
        self.pending: Any = None

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        self.drain()
        self.pending = dcp.async_save(self.work.state(), checkpoint_id=str(self.folder / "dcp"))

    def drain(self) -> None:
        if self.pending is not None:
            self.pending.result()
            self.pending = None


class TorchSnapshot(Contender):
    name = "torchsnapshot async_take"
    durable = False

    def __init__(self, work: Work, folder: Path) -> None:
        import torchsnapshot

        super().__init__(work, folder)
        self.module, self.pending, self.count = torchsnapshot, None, 0

    def save(self) -> None:
        self.drain()
        self.count += 1
        state = {"model": self.work.model, "optimizer": self.work.optimizer}
        self.pending = self.module.Snapshot.async_take(str(self.folder / f"{self.count % 2}"), state)

    def drain(self) -> None:
        if self.pending is not None:
            self.pending.wait()
            self.pending = None


class Moonclip(Contender):
    name = "moonclip"

    def __init__(self, work: Work, folder: Path) -> None:
        from moonclip import CheckpointManager

        super().__init__(work, folder)
        self.manager, self.count = CheckpointManager(str(folder / "moonclip")), 0

    def save(self) -> None:
        self.count += 1
        self.manager.save(step=self.count, model=self.work.model, optimizer=self.work.optimizer)

    def drain(self) -> None:
        self.manager.flush()


class LightningAsync(Contender):
    name = "Lightning AsyncCheckpointIO"
    durable = False

    def __init__(self, work: Work, folder: Path) -> None:
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        super().__init__(work, folder)
        self.io = AsyncCheckpointIO(TorchCheckpointIO())

    def save(self) -> None:
        self.io.save_checkpoint(self.work.state(), str(self.folder / "checkpoint.ckpt"))

    def drain(self) -> None:
        self.io.teardown()  # waits; the next save sets it up again


class Safetensors(Contender):
    name = "safetensors save_file"
    durable = False

    def save(self) -> None:
        from safetensors.torch import save_file

        tensors = {f"model.{k}": v for k, v in self.work.model.state_dict().items()}
        for number, state in self.work.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
        save_file(tensors, self.folder / "checkpoint.safetensors")


ALL = (Perdure, TorchSave, TorchSaveSync, Dcp, DcpAsync, TorchSnapshot, Moonclip, LightningAsync, Safetensors)


def block(contender: Contender, *, save: bool) -> tuple[float, float]:
    """Eight steps, with a checkpoint at the first boundary or without; time that they stood still, and in all."""
    began = time.perf_counter()
    contender.boundary(save)
    still_s = time.perf_counter() - began
    contender.work.step()
    for _ in range(STEPS - 1):
        contender.boundary(False)
        contender.work.step()
    whole_s = time.perf_counter() - began
    return still_s + (contender.waited_s() if save else 0.0), whole_s


def settle(contender: Contender) -> None:
    contender.drain()
    os.sync()


def measure(contenders: list[Contender], rounds: int, order: random.Random) -> dict[str, Any]:
    """Blocks in turn; then runs of four blocks in turn."""
    none = contenders[0]
    still: dict[str, list[float]] = {c.name: [] for c in contenders}
    added: dict[str, list[float]] = {c.name: [] for c in contenders}
    whole: dict[str, list[float]] = {c.name: [] for c in contenders}
    for contender in contenders:  # everything that is only done once
        block(contender, save=True)
        settle(contender)
    for turn in range(rounds):
        totals = {}
        for contender in order.sample(contenders, len(contenders)):
            still_s, totals[contender.name] = block(contender, save=contender is not none)
            still[contender.name].append(still_s)
            settle(contender)
        for contender in contenders:
            added[contender.name].append(totals[contender.name] - totals[none.name])
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
    for _ in range(max(2, rounds // 2)):
        for contender in order.sample(contenders, len(contenders)):
            began = time.perf_counter()
            for _ in range(4):
                block(contender, save=contender is not none)
            contender.drain()
            whole[contender.name].append(time.perf_counter() - began)
            os.sync()
    return {
        c.name: {
            "still_s": spread(still[c.name]),
            "added_s": spread(added[c.name]),
            "end_to_end_s": spread(whole[c.name]),
            "durable": c.durable,
        }
        for c in contenders
    }


def made(work: Work, root: Path) -> tuple[list[Contender], dict[str, str]]:
    contenders: list[Contender] = [Contender(work, root / "none")]
    missing = {}
    for number, kind in enumerate(ALL):
        try:
            contenders.append(kind(work, root / str(number)))
        except Exception as error:  # noqa: BLE001  a peer that is not installed, or does not work with this torch
            missing[kind.name] = f"{type(error).__name__}: {error}"
    return contenders, missing


def main() -> None:
    """Measure, print, and keep if asked to."""
    options_of = parser(__doc__, rounds=9)
    options_of.add_argument("--layers", type=int, default=8, help="8 are 0.7 GB with the optimizer's state")
    options_of.add_argument("--width", type=int, default=768)
    options = options_of.parse_args()
    work = Work(options.layers, options.width, batch=4, length=32)
    work.step()
    with folder_for(options) as folder:
        contenders, missing = made(work, folder)
        figures = measure(contenders, options.rounds, random.Random(0))
        packages = ("torchsnapshot", "moonclip", "lightning")
        result = about(folder, packages) | {"state_bytes": work.nbytes, "rounds": options.rounds}
        report("saving", result | {"missing": missing, "figures": figures}, save=options.save)
    sys.stdout.flush()
    os._exit(0)  # or the run, which is not over, would look for its folder


if __name__ == "__main__":
    main()
