"""Run folders as the store leaves them, without a training."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint.retention import Keep
from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Store
from perdure.core.files import write_json
from perdure.core.paths import RunPaths
from perdure.core.progress import Position

MakeRun = Callable[..., RunPaths]


@pytest.fixture(autouse=True)
def _default_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def make_run(root: Path) -> MakeRun:
    def make(name: str, steps: tuple[int, ...] = (10, 20), session: dict[str, Any] | None = None) -> RunPaths:
        run = RunPaths(root / name)
        store = Store(run, name, keep=Keep(last=10))
        store.open({})
        for step in steps:
            data = memoryview(bytes([step % 256]) * 4000)
            snapshot = Snapshot(
                Position(step=step, epoch=step // 10),
                {"note": "hello"},
                [Buffer("model/weight", "tensor", "F32", (1000,), data)],
                metrics={"loss": 1 / step},
            )
            store.save(snapshot)
        store.close()
        if session is not None:
            write_json(run.session_json, session_facts(name, **session))
        return run

    return make


def session_facts(name: str, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "format_version": 1, "run": name, "run_id": "r1", "session": 2, "status": "paused",
        "reason": "the window closes", "step": 20, "epoch": 2, "plan": {"unit": "epochs", "count": 5},
        "checkpoint": "step-000000020", "pid": 1, "host": socket.gethostname(), "platform": "local",
        "mode": "process", "started": "2026-01-01T00:00:00+00:00", "updated": "2026-01-01T01:00:00+00:00",
        "window_s": 60.0, "left_s": 12.0,
        "speeds": {"steps_per_s": 8.25, "save_s": 0.02, "save_bytes": 4000, "save_every": "every 10 steps"},
        "metrics": {"loss": 0.05}, "gpu": None,
    }  # fmt: skip
    return {**facts, **changes}
