"""How much room there is."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Room:
    """Where a run may write, and how much.

    Attributes:
        folder: An existing folder on the disk that is written to.
        budget_bytes: What ``budget_folder`` may hold in all; None for as much as the disk takes.
        budget_folder: What the budget is for.
    """

    folder: Path
    budget_bytes: int | None
    budget_folder: Path

    def free_bytes(self) -> int:
        """What may still be written."""
        state = os.statvfs(self.folder)
        free = state.f_bavail * state.f_frsize
        return free if self.budget_bytes is None else min(free, self._left_bytes(self.budget_bytes))

    def check(self, needed_bytes: int) -> None:
        """Hold to the budget. Whether the disk has room shows, exactly, when a file is reserved.

        Raises:
            OSError: ENOSPC, as from a full disk.
        """
        if self.budget_bytes is not None and needed_bytes > self._left_bytes(self.budget_bytes):
            raise OSError(errno.ENOSPC, "over the disk budget", str(self.budget_folder))

    def _left_bytes(self, budget_bytes: int) -> int:
        return max(0, budget_bytes - used_bytes(self.budget_folder))
