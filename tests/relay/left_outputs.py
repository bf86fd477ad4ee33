"""Outputs of sessions as they are left, and a platform that serves them from a folder, with faults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint.snapshots import snapshot
from perdure.checkpoint.store import Keep, Store
from perdure.core.errors import NotThereError, PlatformError
from perdure.core.paths import RunPaths
from perdure.platforms.protocol import Accelerator, Handle, Log, Observation, OutputFile, Pace, Progress
from perdure.relay.inside.marker import Marker

RELAY = "1a2b3c4d"
BEGAN_S = 1_790_000_000.0
ENDED_S = BEGAN_S + 3600.0
COMPLETE = Observation("complete", "COMPLETE")
PACE = Pace(poll_s=1.0, lag_s=900.0)


def leave_run(
    working: Path, steps: list[int], *, name: str = "digits", status: str = "paused", frozen: int = 3000, **told
) -> Path:
    """A run folder as a session leaves it, with real checkpoints at these steps."""
    folder = working / "perdure" / name
    store = Store(RunPaths(folder), name, keep=Keep(last=len(steps) or 1))
    store.open({})
    for step in steps:
        store.save(snapshot(step, epoch=step // 100, frozen=frozen, moving=500))
    store.close()
    facts = {
        "format_version": 1,
        "run": name,
        "status": status,
        "reason": "the window closes" if status == "paused" else "",
        "step": steps[-1] if steps else 0,
        "checkpoint": f"step-{steps[-1]:09d}" if steps else None,
        "plan": {"unit": "steps", "count": 1000},
        "speeds": {"steps_per_s": 12.5},
        "resumed_from": None,
        **told,
    }
    (folder / "session.json").write_text(json.dumps(facts))
    (folder / "events.jsonl").write_text('{"id": "a-1", "kind": "metrics", "values": {"loss": 0.5}}\n')
    return folder


def leave_marker(working: Path, status: str, *, number: int = 1, relay: str = RELAY, **more) -> None:
    over = status in ("finished", "paused", "failed", "refused")
    marker = Marker(
        relay,
        number,
        f"perdure-digits-{relay}-{number}",
        status=status,
        started_s=BEGAN_S,
        ended_s=ENDED_S if over else None,
        accelerator={"asked": {"name": "t4x2"}, "found": ["Tesla T4", "Tesla T4"]},
        accelerator_s=3500.0 if over else 1200.0,
        **more,
    )
    working.mkdir(parents=True, exist_ok=True)
    marker.write(working)


@dataclass
class FolderPlatform:
    """Serves the output of one session out of a folder.

    Attributes:
        output: The folder.
        seen: How the session stands.
        alter: Changes what is listed.
        fails: Errors that ``fetch`` raises for names.
        lines: The log.
        fetched: Names that were asked for, in order.
    """

    output: Path
    seen: Observation = COMPLETE
    alter: Callable[[list[OutputFile]], list[OutputFile]] = lambda files: files
    fails: dict[str, PlatformError] = field(default_factory=dict)
    lines: tuple[str, ...] = ("step 100", "step 200")
    log_error: PlatformError | None = None
    fetched: list[str] = field(default_factory=list)
    pace: Pace = PACE
    name: str = "local"
    accelerators: tuple[Accelerator, ...] = ()
    outputs: dict[str, Path] = field(default_factory=dict)

    def files(self, handle: Handle) -> tuple[OutputFile, ...]:
        folder = self._folder(handle)
        found = [p for p in sorted(folder.rglob("*")) if p.is_file()] if folder.is_dir() else []
        listed = [OutputFile(p.relative_to(folder).as_posix(), p.stat().st_size) for p in found]
        return tuple(self.alter(listed))

    def fetch(self, handle: Handle, names, folder: Path, progress: Progress | None = None) -> tuple[Path, ...]:
        source = self._folder(handle)
        sizes = {file.name: file.size_bytes for file in self.files(handle)}
        for name in names:
            self.fetched.append(name)
            if name in self.fails:
                raise self.fails[name]
            if not (source / name).is_file():
                raise NotThereError(f"no {name}")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target)
            if progress:
                progress(target.stat().st_size, sizes[name] or 0)
        return tuple(folder / name for name in names)

    def observe(self, handle: Handle) -> Observation:
        return self.seen

    def logs(self, handle: Handle) -> Log:
        if self.log_error:
            raise self.log_error
        return Log(self.lines, complete=self.seen.ended)

    def _folder(self, handle: Handle) -> Path:
        return self.outputs.get(handle.ref, self.output)
