"""Cores, memory, shared memory and disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from perdure.checkpoint.budget import used_bytes
from perdure.checkup.checks import Check, State
from perdure.checkup.gather import Unknown
from perdure.core.intervals import format_bytes
from perdure.core.limits import Limits
from perdure.hardware.host import SHARED_MEMORY, Cores, Memory

LITTLE_MEMORY_BYTES = 1_000_000_000
LITTLE_SHARED_BYTES = 512_000_000
LITTLE_DISK_BYTES = 2_000_000_000


def cores_check(cores: Cores) -> Check:
    """How many cores, and how many workers a loader may usefully have."""
    noun = "core" if cores.usable == 1 else "cores"
    held = f" of {cores.present} ({cores.why})" if cores.why else ""
    return Check(
        "cores",
        "ok",
        f"{cores.usable}{held or ' ' + noun}: up to {cores.usable} loader workers",
        details={"usable": cores.usable, "present": cores.present},
    )


def memory_check(memory: Memory) -> Check:
    """Main memory."""
    held = f" ({memory.why})" if memory.why else ""
    fact = f"{format_bytes(memory.available_bytes)} of {format_bytes(memory.total_bytes)} free{held}"
    details = {"total_bytes": memory.total_bytes, "available_bytes": memory.available_bytes}
    if memory.available_bytes < LITTLE_MEMORY_BYTES:
        return Check(
            "memory", "warning", fact, "end other processes, or restart the kernel of the notebook", details
        )
    return Check("memory", "ok", fact, details=details)


def shared_memory_check(room: tuple[int, int] | None) -> Check:
    """The memory through which loader workers hand over batches; a container has 64 MB unless told otherwise."""
    name = "shared memory"
    if room is None:
        return Check(name, "note", f"there is no {SHARED_MEMORY}: use num_workers=0 if workers fail")
    total, free = room
    fact = f"{format_bytes(free)} of {format_bytes(total)} free in {SHARED_MEMORY}"
    details = {"total_bytes": total, "free_bytes": free}
    if free < LITTLE_SHARED_BYTES:
        fix = "docker run --shm-size=8g (or --ipc=host); until then num_workers=0, or workers die of a bus error"
        return Check(name, "warning", fact, fix, details)
    return Check(name, "ok", fact, details=details)


def look_at_disk(root: Path, output: Path | None, limits: Limits) -> Check:
    """Where runs go: whether it can be written to, and how much fits."""
    folder = _existing(root)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check("disk", "failed", f"{folder} cannot be written to", "set PERDURE_ROOT to a folder of your own")
    usage = shutil.disk_usage(folder)
    free, limit = usage.free, limits.disk_bytes
    details = {"folder": str(root), "free_bytes": usage.free, "total_bytes": usage.total, "limit_bytes": limit}
    fact = f"{format_bytes(free)} of {format_bytes(usage.total)} free for {root}"
    if limit is not None:
        budget = output if output is not None and root.is_relative_to(output) else root
        used = used_bytes(budget)
        details["used_bytes"] = used
        free = min(free, limit - used)
        holds = f"{budget} holds {format_bytes(used)} of {format_bytes(limit)}"
        fact = f"{format_bytes(max(free, 0))} free for {root}: {holds}"
    if free < LITTLE_DISK_BYTES:
        state: State = "failed" if free <= 0 else "warning"
        return Check("disk", state, fact, "delete what is not needed, or set PERDURE_ROOT to another disk", details)
    return Check("disk", "ok", fact, details=details)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def unknown_check(name: str, answer: Unknown) -> Check:
    """The line of something that could not be looked at."""
    return Check(name, "warning", f"could not be looked at: {answer.why}")
