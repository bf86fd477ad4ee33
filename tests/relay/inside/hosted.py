"""A hosted session in small: the source that is pushed, run as a script in a working folder of its own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from checkpoint.snapshots import snapshot
from perdure.checkpoint.store import Keep, Store
from perdure.core.paths import RunPaths
from perdure.platforms.source import CARGO_NAME, build_source
from perdure.relay.inside.marker import Marker

RELAY = "1a2b3c4d"


def order(target="train.py", **more):
    """An order of a CPU session with a minute's window."""
    return {
        "format": 1,
        "relay": RELAY,
        "session": 2,
        "slug": f"perdure-digits-{RELAY}-2",
        "target": target,
        "arguments": [],
        "environment": {},
        "accelerator": {"name": "none", "cards": 0, "card": "", "resource": ""},
        "window_s": 60.0,
        "margin_s": 4.0,
        "mirror": {"to": "", "every_s": 0.2},
        "expects": [],
        "mount_wait_s": 0.3,
        **more,
    }


def pack(files):
    """A bundle without Perdure in it: the installed one is used."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=0) as archive:
        for name, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(f"project/{name}")
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Done:
    """What came of it."""

    code: int
    out: str
    working: Path

    @property
    def marker(self):
        return Marker.read(self.working)

    @property
    def output(self):
        return sorted(p.relative_to(self.working).as_posix() for p in self.working.rglob("*") if p.is_file())

    @property
    def beats(self):
        lines = [line for line in self.out.splitlines() if line.startswith("@perdure ")]
        return [json.loads(line.removeprefix("@perdure ")) for line in lines]


def start(folder, files, what=None, *, inputs=(), cargo=None, in_source=True, **environment):
    """Start a session; the process and its working folder."""
    working = folder / "working"
    working.mkdir()
    data = pack(files) if cargo is None else cargo
    source = build_source(what or order(), data if in_source else None, CARGO_NAME, digest(data))
    (folder / "kernel.py").write_text(source, encoding="ascii")
    told = {"PERDURE_INPUTS": os.pathsep.join(map(str, inputs)) or str(folder / "no-input"), "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, str(folder / "kernel.py")],
        cwd=working,
        env={**os.environ, **told, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process, working


def run(folder, files, what=None, **more):
    """Run a session to its end."""
    process, working = start(folder, files, what, **more)
    out, _ = process.communicate(timeout=120)
    return Done(process.returncode, out, working)


def leave_run(folder, *steps, name="digits"):
    """A run folder with real checkpoints at these steps."""
    store = Store(RunPaths(folder / name), name, keep=Keep(last=len(steps)))
    store.open({})
    for step in steps:
        store.save(snapshot(step, frozen=3000, moving=500))
    store.close()
    return folder / name


def expected(step, name="digits"):
    return {"run": name, "step": step, "checkpoint": f"step-{step:09d}"}
