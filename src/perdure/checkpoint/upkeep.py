"""What the store removes from a run folder, when, and in which order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perdure.checkpoint import debris
from perdure.checkpoint.budget import Room
from perdure.checkpoint.retention import Committed, Keep, expendable, to_drop
from perdure.checkpoint.search import Found, list_run
from perdure.core.errors import CorruptError
from perdure.core.paths import RunPaths

MAX_RUN_FILES = 50
"""A run folder holds fewer files than this after a save; hosts zip or refuse more."""


def committed(found: Iterable[Found]) -> list[Committed]:
    """Those of them that look whole."""
    return [Committed(item.folder, item.manifest) for item in found if item.manifest and not item.error]


@dataclass(frozen=True)
class Upkeep:
    """Removes, in a run folder that this process holds.

    Args:
        paths: The run folder.
        keep: Which checkpoints stay.
        room: What may be written there.
        report: Takes a sentence for the user.
    """

    paths: RunPaths
    keep: Keep
    room: Room
    report: Callable[[str], None]

    def committed(self) -> list[Committed]:
        """The whole checkpoints of the run folder, newest first."""
        return committed(list_run(self.paths))

    def sweep(self) -> None:
        """Remove what no committed checkpoint needs."""
        debris.sweep(self.paths, list_run(self.paths))

    def tidy(self) -> None:
        """``sweep`` after a failed save; what cannot be removed now goes at the next save."""
        with contextlib.suppress(OSError):
            self.sweep()

    def prune(self, saved: Committed) -> None:
        """Retention. ``saved`` is committed: what goes wrong here is reported, no more."""
        try:
            for item in to_drop(self.committed(), self.keep, saved):
                debris.drop_checkpoint(item.folder)
            self.sweep()
            while debris.count_files(self.paths.folder) >= MAX_RUN_FILES and self._drop_for_count(saved):
                self.sweep()
        except OSError as error:
            self.report(f"older checkpoints could not be removed: {error}")

    def make_room(self, needed_bytes: int) -> bool:
        """Remove one thing that can be spared, if that is of use: what was set aside, else a checkpoint."""
        if debris.empty_quarantine(self.paths):
            return True
        own = self.committed()
        spare = expendable(own, self.keep)
        kept = {file for item in own if item not in spare for file in item.manifest.files}
        gain = {f: n for item in spare for f, n in item.manifest.files.items() if f not in kept}
        if not spare or self.room.free_bytes() + sum(gain.values()) < needed_bytes:
            return False
        try:
            debris.drop_checkpoint(spare[0].folder)
            self.sweep()
        except OSError:
            return False
        return True

    def set_aside(self, bad: Found) -> str:
        """Move a damaged checkpoint to the quarantine; returns in words what became of it."""
        if bad.folder.parent != self.paths.checkpoints or not isinstance(bad.error, CorruptError):
            return "skipped"
        others = [item for item in list_run(self.paths) if item.folder != bad.folder]
        try:
            return f"moved to {debris.set_aside(self.paths, bad, others)}"
        except OSError as error:
            return f"skipped, since it could not be moved away: {error}"

    def _drop_for_count(self, saved: Committed) -> bool:
        if debris.empty_quarantine(self.paths):
            return True
        spare = [item for item in expendable(self.committed(), self.keep) if item.folder != saved.folder]
        if not spare:
            return False
        self.report(f"fewer checkpoints than keep.last stay: a run folder holds fewer than {MAX_RUN_FILES} files")
        debris.drop_checkpoint(spare[0].folder)
        return True
