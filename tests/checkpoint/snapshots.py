"""Snapshots for the tests of the checkpoint room: bytes that follow from step and name."""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
from pathlib import Path

from perdure.checkpoint.opened import Checkpoint
from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Keep, Store
from perdure.core.paths import RunPaths
from perdure.core.progress import Position


@functools.lru_cache(maxsize=1000)
def data_of(name: str, version: int, nbytes: int) -> bytes:
    return random.Random(f"{name} {version}").randbytes(nbytes)


def u8(name: str, data: bytes) -> Buffer:
    return Buffer(name, "tensor", "U8", (len(data),), memoryview(data))


def snapshot(step: int, *, epoch: int = 0, frozen: int = 60_000, moving: int = 5_000, **more) -> Snapshot:
    """A frozen backbone and a head that moves with every step."""
    buffers = [
        u8("model/backbone", data_of("backbone", 0, frozen)),
        u8("model/head", data_of("head", step, moving)),
        u8("model/nothing", b""),
    ]
    position = Position(step=step, epoch=epoch, batch=step)
    return Snapshot(position, {"history": list(range(step)), "rate": 0.1}, buffers, **more)


def make_store(folder: Path, **options) -> Store:
    return Store(RunPaths(folder), "digits", **options)


def open_store(folder: Path, **options) -> Store:
    store = make_store(folder, **options)
    store.open({})
    return store


def saved_run(folder: Path, steps: list[int], **options) -> None:
    """A run folder with these checkpoints."""
    store = open_store(folder, keep=Keep(last=options.pop("last", 2)), **options)
    for step in steps:
        store.save(snapshot(step))
    store.close()


def assert_holds(checkpoint: Checkpoint | None, expected: Snapshot) -> None:
    assert checkpoint is not None
    assert checkpoint.manifest.position == expected.position
    assert checkpoint.values == expected.values
    assert {e.name: bytes(checkpoint.buffer(e.name)) for e in checkpoint.manifest.entries} == {
        b.name: bytes(b.data) for b in expected.buffers
    }


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_no_debris(folder: Path) -> None:
    """A run folder holds whole checkpoints, the files that they name, and nothing else."""
    found = make_store(folder).list()
    assert found
    assert not [item.problem for item in found if item.problem]
    named = {file for item in found for file in item.manifest.files}
    manifests = {f"checkpoints/{item.folder.name}/manifest.json" for item in found}
    assert set(tree(folder)) == named | manifests | {"run.json", "lock"}
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {item.folder.name for item in found}


def flip(path: Path, place: int, bits: int = 0x01) -> None:
    """One flipped byte. A single bit often leaves text that still parses."""
    data = bytearray(path.read_bytes())
    data[place] ^= bits
    path.write_bytes(data)


def can_unshare() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "-Urm" if os.geteuid() else "-m", "true"], capture_output=True
        ).returncode
    )


def steps(folder: Path, **options) -> list[int]:
    return [item.manifest.step for item in make_store(folder, **options).list()]
