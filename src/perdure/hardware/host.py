"""What this process may use of the machine: cores, memory, shared memory. A container's limits count."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
SHARED_MEMORY = Path("/dev/shm")

_UNLIMITED = 1 << 60
"""Version 1 says "no limit" by a number of about 2**63."""


@dataclass(frozen=True)
class Cores:
    """Cores.

    Attributes:
        usable: How many this process may use: by its affinity and by the share of its container, rounded up.
        present: How many the machine has.
        why: What holds it back; empty if nothing does.
    """

    usable: int
    present: int
    why: str = ""


@dataclass(frozen=True)
class Memory:
    """Main memory.

    Attributes:
        total_bytes: What this process may use.
        available_bytes: What is left of it.
        why: What holds it back; empty if nothing does.
    """

    total_bytes: int
    available_bytes: int
    why: str = ""


def usable_cores() -> Cores:
    """The cores that this process may use; workers beyond them only wait for each other."""
    present = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    share = _core_share()
    if share is not None and math.ceil(share) < allowed:
        return Cores(max(1, math.ceil(share)), present, f"the container may use {share:.3g}")
    return Cores(allowed, present, "by this process' affinity" if allowed < present else "")


def memory() -> Memory:
    """Main memory, as far as this process may use it."""
    import psutil

    machine = psutil.virtual_memory()
    total, available, why = int(machine.total), int(machine.available), ""
    for limit, used in _memory_limits():
        if limit < total:
            total, why = limit, "the limit of the container"
        available = min(available, max(0, limit - used))
    return Memory(total, available, why)


def shared_memory() -> tuple[int, int] | None:
    """Size and free bytes of the memory through which workers hand over batches; None if there is no such place."""
    try:
        usage = shutil.disk_usage(SHARED_MEMORY)
    except OSError:
        return None
    return usage.total, usage.free


def _core_share() -> float | None:
    """How many cores the container may use on average; None for no limit. Source: cgroups(7), cpu.max."""
    shares = []
    for folder in _folders("cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def _memory_limits() -> list[tuple[int, int]]:
    """Limit and use of each group that this process is in. Files that can be given back do not count as used."""
    found = []
    for folder in _folders("memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if limit.isdigit() and int(limit) < _UNLIMITED:
            found.append((int(limit), max(0, int(used or 0) - _inactive_files(folder))))
    return found


def _inactive_files(folder: Path) -> int:
    """Bytes of files in memory that are not in use; the kernel's own measure of what it gives up first."""
    facts = dict(line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    return int(facts.get("total_inactive_file") or facts.get("inactive_file") or 0)


def _folders(controller: str) -> list[Path]:
    """The group of this process and those above it, in either version of cgroups (cgroups(7))."""
    found: list[Path] = []
    for line in _read(OWN_CGROUP).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        root = CGROUPS if number == "0" and not controllers else CGROUPS / controllers
        if root != CGROUPS and controller not in controllers.split(","):
            continue
        own = root / path.strip("/")
        found += [each for each in (own, *own.parents) if each == root or root in each.parents]
    # in a container the path is that of the host, and what counts is at the root
    return found or [CGROUPS, CGROUPS / controller]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
