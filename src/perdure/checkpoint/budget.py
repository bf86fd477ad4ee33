"""How much room there is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when there is no room: disk full, quota used up, file larger than the limit."""

_BLOCK_BYTES = 4096


def rounded(nbytes: int) -> int:
    """What a file of this size takes on disk."""
    return -(-nbytes // _BLOCK_BYTES) * _BLOCK_BYTES


def used_bytes(folder: Path) -> int:
    """What a folder and everything below it takes on disk. What vanishes meanwhile does not count."""
    total = 0
    queue = [os.fspath(folder)]
    while queue:
        try:
            with os.scandir(queue.pop()) as entries:
                for entry in entries:
                    total += _taken(entry)
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(entry.path)
        except OSError:  # gone, or not ours to see: what is in it cannot be counted
            continue
    return total


def _taken(entry: os.DirEntry[str]) -> int:
    try:
        state = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    return state.st_blocks * 512 or rounded(state.st_size)  # some mounts do not tell blocks


def free_bytes(folder: Path, budget_bytes: int | None, budget_folder: Path) -> int:
    """What may still be written to ``folder``.

    Args:
        folder: An existing folder.
        budget_bytes: What ``budget_folder`` may hold in all; None for as much as the disk takes.
        budget_folder: What the budget is for.
    """
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if budget_bytes is None:
        return free
    return min(free, max(0, budget_bytes - used_bytes(budget_folder)))
