"""What the benchmarks share: the work, fresh processes, cold files, memory seen from outside, results."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("perdure", "torch", "numpy", "safetensors", "xxhash")

_WATCH = """
import os, sys, time

def anonymous(pid):
    try:
        lines = open(f"/proc/{pid}/status").read().splitlines()
        own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))
        children = open(f"/proc/{pid}/task/{pid}/children").read().split()
    except OSError:
        return 0
    return own + sum(anonymous(child) for child in children if int(child) != os.getpid())

parent, highest = int(sys.argv[1]), 0
os.set_blocking(0, False)
print(anonymous(parent), flush=True)
while sys.stdin.buffer.read(1) is None:  # and no end of file: whoever asked has gone
    highest = max(highest, anonymous(parent))
    time.sleep(0.01)
print(highest)
"""


class Work:
    """The training that everybody saves: a transformer with AdamW.

    Args:
        layers: 8 of width 768 are 0.7 GB with the optimizer's state.
        width: Of the model.
        batch, length: Samples in a batch, and tokens in a sample.
        dropout: 0 makes a step depend on nothing but the state.
        device: Where the parameters are made; ``"meta"`` for those that a file will bring.
    """

    def __init__(
        self,
        layers: int,
        width: int = 768,
        *,
        batch: int = 8,
        length: int = 64,
        dropout: float = 0.1,
        device: str = "cpu",
    ) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            layer = nn.TransformerEncoderLayer(
                width, max(1, width // 64), 4 * width, batch_first=True, dropout=dropout
            )
            self.model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.x_BTC = torch.randn(batch, length, width, generator=torch.Generator().manual_seed(1))
        self.make_optimizer()

    def make_optimizer(self) -> None:
        """Of what can be trained."""
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-4)

    def step(self) -> None:
        """Forward, backward, step, in the order of the tutorials."""
        loss = self.model(self.x_BTC).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """As one saves it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def nbytes(self) -> int:
        """Bytes of parameters and optimizer state."""
        state = sum(t.nbytes for s in self.optimizer.state.values() for t in s.values())
        return sum(p.nbytes for p in self.model.parameters()) + state


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and both ends."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def parser(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The flags that all have."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument(
        "--folder", type=Path, default=None, help="on the disk to measure; default: the temporary one"
    )
    made.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    return made


def about(folder: Path, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Date, machine and versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "processor": _processor(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "file_system": _file_system(folder),
        },
        "versions": {"python": platform.python_version()} | {p: v for p in (*PACKAGES, *packages) if (v := _of(p))},
    }


def report(name: str, figures: dict[str, Any], *, save: bool) -> None:
    """Print, and keep if asked to."""
    text = json.dumps(figures, indent=2)
    print(text)
    if save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(text + "\n")


@contextmanager
def folder_for(options: argparse.Namespace) -> Iterator[Path]:
    """A folder on the disk to measure, gone afterwards."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="perdure-benchmark-") as folder:
        yield Path(folder)


def forked(work: Callable[[], Any]) -> Any:
    """Do something in a process of its own that has imported all that this one has, and done nothing else.

    Nothing may have been computed with torch here before: its threads do not live on in a child. The child first
    touches every object, so that its pages are its own, as those of a process that imported them itself are.

    Raises:
        RuntimeError: The work failed; its error is on stderr.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        telling, code = os.dup(writing), 1
        try:
            for value in gc.get_objects():
                type(value)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(work()))
            code = 0
        except BaseException as error:  # noqa: BLE001  the parent is told
            import traceback

            traceback.print_exception(error)
            with os.fdopen(telling, "wb") as pipe:
                pipe.write(f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(data.decode(errors="replace") or f"killed, status {status}")
    return pickle.loads(data)


# ---------------------------------------------------------------- files, cold and warm


def files_below(folder: Path) -> list[Path]:
    """All files."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def make_cold(folder: Path) -> int:
    """Bring the files below a folder to disk and out of the page cache; how many of their bytes are still in it."""
    left = 0
    for path in files_below(folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        left += cached_bytes(path)
    return left


def make_warm(folder: Path) -> int:
    """Read all files below a folder; how many of their bytes are not in the page cache."""
    for path in files_below(folder):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass
    return sum(path.stat().st_size - cached_bytes(path) for path in files_below(folder))


def cached_bytes(path: Path) -> int:
    """How many bytes of a file are in the page cache, by mincore(2)."""
    size, page = path.stat().st_size, mmap.PAGESIZE
    if not size:
        return 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping:
        present = (ctypes.c_ubyte * -(-size // page))()
        begin = ctypes.c_char.from_buffer(mapping)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(size), present)
        del begin
    if failed:
        raise OSError(ctypes.get_errno(), "mincore", str(path))
    return min(size, page * sum(byte & 1 for byte in present))


# ---------------------------------------------------------------- memory


@contextmanager
def memory_watched() -> Iterator[Callable[[], int]]:
    """Gives a function that says, afterwards, the highest extra memory in bytes."""
    with subprocess.Popen(
        [sys.executable, "-c", _WATCH, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        before, found = int(watcher.stdout.readline()), 0
        yield lambda: found - before
        watcher.stdin.write("x")
        watcher.stdin.close()
        found = int(watcher.stdout.readline())


# ---------------------------------------------------------------- machine


def _of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _file_system(folder: Path) -> str:
    import psutil

    here = folder.resolve()
    mounts = [m for m in psutil.disk_partitions(all=True) if here.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else ""
