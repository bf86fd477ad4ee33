"""What do checkpoints cost on this machine? Measured on the parts that a run is made of; nothing is modelled."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from perdure.checkpoint.manifest import digest_of
from perdure.checkpoint.opened import keep_none
from perdure.checkpoint.retention import Keep
from perdure.checkpoint.snapshot import Arrival, Snapshot
from perdure.checkpoint.store import Saved, Store
from perdure.core.clock import SystemClock
from perdure.core.errors import ConfigError, DiskFullError, PerdureError
from perdure.core.intervals import Interval, format_bytes
from perdure.core.paths import RunPaths
from perdure.core.progress import Position
from perdure.hardware.disk import block_of_memory, read_s, write_s
from perdure.hardware.host import memory, usable_cores
from perdure.tensors.copying import address_of, copy_bytes
from perdure.training.adopting import to_keep
from perdure.training.benchwork import BenchWork
from perdure.training.journal import Journal
from perdure.training.pace import Pace
from perdure.training.saving import Saver
from perdure.training.schedule import SaveSchedule
from perdure.training.state import RunState

ROUNDS = 3
_PROBE_BYTES = 512 * 1024 * 1024  # enough to see a disk behind its own cache
_BLOCK_STEPS = (3, 24)
_SPARE_BYTES = 1024**3
_COPIES = 3.5  # the state, its gradients, one copy, and what a step takes


@dataclass(frozen=True)
class Bench:
    """What was measured. Times are medians over the rounds.

    Attributes:
        state_bytes: Parameters and optimizer state of the model that was trained.
        device: What it was trained on.
        cores: That this process may use.
        direct: Whether the file system takes writes past the page cache.
        write_bytes_per_s, read_bytes_per_s: Of the disk, one plain file, fsync included.
        copy_bytes_per_s: Memory to memory, with a digest of what arrived, one thread.
        step_s: A step without a checkpoint.
        steps: In a block, between two checkpoints.
        boundary_s: How long the boundary held training up to begin a save.
        added_s: How much longer a block of steps took for one checkpoint, all of its cost in it.
        added_low_s, added_high_s: The same, least and most over the rounds.
        save_s: From the boundary to the commit.
        written_bytes: On disk, per checkpoint.
        resume_s: From a new process' built model to its first step, files not in memory, every digest proved.
        interval_s: How often ``save_every="auto"`` would save.
        interval_text: The same in words, with its reason.
        slow_down: Share of the time that saving so often costs.
    """

    state_bytes: int
    device: str
    cores: int
    direct: bool
    write_bytes_per_s: float
    read_bytes_per_s: float
    copy_bytes_per_s: float
    step_s: float
    steps: int
    boundary_s: float
    added_s: float
    added_low_s: float
    added_high_s: float
    save_s: float
    written_bytes: int
    resume_s: float
    interval_s: float
    interval_text: str
    slow_down: float

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bench(folder: Path, state_bytes: int, *, rounds: int = ROUNDS) -> Bench:
    """Measure. What is written goes into a hidden folder in ``folder``, which is gone afterwards.

    Args:
        folder: On the disk that checkpoints will go to; must be there.
        state_bytes: How large parameters and optimizer state shall be, about.
        rounds: Blocks of steps with and without a checkpoint.

    Raises:
        ConfigError: There is no such folder, or not enough memory.
        DiskFullError: There is not enough room.
        OSError: The disk refuses.
    """
    _check_room(folder, state_bytes)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".perdure-bench-") as place:
        probe = Path(place) / "probe"
        write_per_s, read_per_s, copy_per_s, direct = _bandwidths(probe, min(state_bytes, _PROBE_BYTES))
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
        work = BenchWork(state_bytes, device or torch.device("cpu"))
        with _saving(work, Path(place) / "run") as trial:
            found = trial.measure(rounds)
        resume_s = _resume(work, Path(place) / "run")
        return Bench(
            state_bytes=work.nbytes,
            device=torch.cuda.get_device_name(device) if device else "cpu",
            cores=usable_cores().usable,
            direct=direct,
            write_bytes_per_s=write_per_s,
            read_bytes_per_s=read_per_s,
            copy_bytes_per_s=copy_per_s,
            resume_s=resume_s,
            **found,
        )


def _check_room(folder: Path, state_bytes: int) -> None:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint="give one on the disk that checkpoints will go to")
    available = memory().available_bytes
    if not torch.cuda.is_available() and _COPIES * state_bytes > available:
        raise ConfigError(
            f"training with a state of {format_bytes(state_bytes)} takes {format_bytes(_COPIES * state_bytes)} of "
            f"memory, {format_bytes(available)} are available",
            hint="give a smaller --size",
        )
    state = os.statvfs(folder)
    free, needed = state.f_bavail * state.f_frsize, int(2.5 * state_bytes) + _SPARE_BYTES
    if free < needed:
        raise DiskFullError(
            f"{folder} has {format_bytes(free)} free, the measurement needs {format_bytes(needed)}",
            path=folder,
            needed_bytes=needed,
            free_bytes=free,
            hint="give a smaller --size, or another --folder",
        )


def _bandwidths(probe: Path, nbytes: int) -> tuple[float, float, float, bool]:
    """Bytes a second: writing, reading, copying with a digest; and whether writing was direct. Best of three."""
    data = block_of_memory(nbytes)
    writes = [write_s(probe, data) for _ in range(3)]
    reads = [read_s(probe, threads=threads)[0] for threads in (1, 2, 4)]
    probe.unlink()
    source, target = torch.frombuffer(data, dtype=torch.uint8), block_of_memory(nbytes)
    copies = []
    for _ in range(3):
        began = time.perf_counter()
        copy_bytes(address_of(source), target)
        digest_of(target)
        copies.append(time.perf_counter() - began)
    size = len(data)
    return size / min(s for s, _ in writes), size / min(reads), size / min(copies), writes[0][1]


class _NotingStore(Store):
    """Notes its newest save, and when it was committed."""

    noted: Saved | None = None
    committed_s = 0.0

    def save(self, snapshot: Snapshot, arrival: Arrival | None = None) -> Saved:
        """Also noted."""
        self.noted = super().save(snapshot, arrival)
        self.committed_s = time.perf_counter()
        return self.noted


class _Trial:
    """Training with and without checkpoints, driven as the loop of a run drives it."""

    def __init__(self, work: BenchWork, store: _NotingStore, paths: RunPaths) -> None:
        clock = SystemClock()
        self._work, self._state = work, RunState()
        self._state.track({"model": work.model, "optimizer": work.optimizer})
        self._schedule = SaveSchedule(Interval("auto"), clock)
        self._pace = Pace(clock)
        self._saver = Saver(self._state, store, self._schedule, self._pace, Journal(paths, clock))
        self._store = store
        self._step = 0

    def measure(self, rounds: int) -> dict[str, Any]:
        """Blocks in turn, one with a checkpoint at its first boundary, one without."""
        self._block(5, save=False)  # by then it is known that gradients are dropped
        step_s = self._block(3, save=False)[1] / 3
        for _ in range(2):  # buffers are made, and the first saves are proved more than others
            _, _, save_s, _ = self._saved(3, 0.0)
        steps = min(max(math.ceil(save_s / step_s) + 2, _BLOCK_STEPS[0]), _BLOCK_STEPS[1])
        boundary, added, saves, plain, written = [], [], [], [], 0
        for _ in range(rounds):
            without_s = self._block(steps, save=False)[1]
            at_boundary_s, added_s, save_s, written = self._saved(steps, without_s)
            boundary.append(at_boundary_s)
            added.append(added_s)
            saves.append(save_s)
            plain.append(without_s)
        added_s = max(0.0, statistics.median(added))
        self._schedule.saved(max(added_s, statistics.median(boundary)), statistics.median(saves), written)
        interval_s = self._schedule.auto_s
        return {
            "step_s": statistics.median(plain) / steps,
            "steps": steps,
            "boundary_s": statistics.median(boundary),
            "added_s": added_s,
            "added_low_s": min(added),
            "added_high_s": max(added),
            "save_s": statistics.median(saves),
            "written_bytes": written,
            "interval_s": interval_s,
            "interval_text": str(self._schedule),
            "slow_down": added_s / (interval_s + added_s),
        }

    def end(self) -> None:
        """Give the memory for copies back."""
        self._saver.end()

    def _saved(self, steps: int, without_s: float) -> tuple[float, float, float, int]:
        """A block with a checkpoint: time of its first boundary, what it added, time to the commit, bytes."""
        self._store.noted, began = None, time.perf_counter()
        boundary_s, block_s = self._block(steps, save=True)
        self._saver.settle()
        if self._store.noted is None:
            raise PerdureError("a checkpoint of the measurement was not written", hint="the line above says why")
        seconds = self._store.committed_s - began
        return boundary_s, block_s - without_s, seconds, self._store.noted.bytes_written

    def _block(self, steps: int, *, save: bool) -> tuple[float, float]:
        """Time of the first boundary and of all."""
        self._work.wait()
        began = time.perf_counter()
        boundary_s = 0.0
        for number in range(steps):
            self._pace.boundary()
            self._saver.boundary()
            if save and not number:
                self._saver.begin(Position(self._step), None, "asked")
                boundary_s = time.perf_counter() - began
            self._pace.leave("step")
            self._work.step()
            self._step += 1
        self._work.wait()
        return boundary_s, time.perf_counter() - began


@contextmanager
def _saving(work: BenchWork, folder: Path) -> Iterator[_Trial]:
    paths = RunPaths(folder)
    store = _NotingStore(paths, "bench", keep=Keep(last=1))
    store.open({})
    try:
        trial = _Trial(work, store, paths)
        yield trial
        trial.end()
    finally:
        store.close()


def _resume(work: BenchWork, folder: Path) -> float:
    """Seconds until a model that was just built has the state of the newest checkpoint and has made a step."""
    for path in folder.rglob("*.safetensors"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    work.renew()
    began = time.perf_counter()
    wanted = to_keep if next(work.model.parameters()).device.type == "cpu" else keep_none
    checkpoint, state = Store(RunPaths(folder), "bench").newest(wanted), RunState()
    assert checkpoint is not None
    state.take_up(checkpoint, checkpoint.manifest.position)
    state.track({"model": work.model, "optimizer": work.optimizer})
    state.restore_boundary()
    work.step()
    work.wait()
    return time.perf_counter() - began
