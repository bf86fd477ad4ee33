"""Writing one checkpoint: while it arrives, if there is room for all of it; else planned when all is there."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from perdure.checkpoint.budget import FULL, Room
from perdure.checkpoint.commit import Draft, Label, commit, draft
from perdure.checkpoint.lock import RunLock
from perdure.checkpoint.manifest import Manifest
from perdure.checkpoint.sharing import OnDisk
from perdure.checkpoint.snapshot import Arrival, Buffer, Hashed, Snapshot
from perdure.checkpoint.stream import Stream
from perdure.checkpoint.upkeep import Upkeep
from perdure.core.errors import CheckpointError, DiskFullError, UnreadableError
from perdure.core.intervals import format_bytes
from perdure.core.paths import RunPaths

STREAM_FROM_BYTES = 32 * 1024 * 1024
"""Smaller saves are written when all is there: nothing is gained, and they are laid out exactly."""

Base = Callable[[], Manifest | None]
"""The checkpoint whose files may be shared now."""


@dataclass(frozen=True)
class Saves:
    """Writes checkpoints into a run folder that this process holds.

    Args:
        paths: The run folder.
        lock: That it is held is checked before each commit.
        room: What may be written there.
        upkeep: Makes room, and tidies up after a failure.
    """

    paths: RunPaths
    lock: RunLock
    room: Room
    upkeep: Upkeep

    def write(self, snapshot: Snapshot, arrival: Arrival, label: Label, base: Base) -> Draft:
        """Write a checkpoint, and commit it.

        Args:
            snapshot: What to save, its buffers and its health still to come.
            arrival: They.
            label: What the store adds.
            base: Asked before each try.

        Raises:
            DiskFullError: There is no room, even without the older checkpoints; the last good one is untouched.
            UnreadableError: The system refuses otherwise; the last good one is untouched.
            RunLockedError: The folder was given away meanwhile.
        """
        on_disk = OnDisk(base())
        stream = self._stream(arrival)
        try:
            hashed = [_received(item, stream, on_disk) for item in arrival.arrive()]
            hashed = _as_given(hashed, snapshot.buffers)
            snapshot = replace(snapshot, healthy=arrival.approve(hashed))
            if stream and (ahead := stream.ahead):
                made = draft(self.paths, snapshot, hashed, label, on_disk, ahead)
                if self._commit(made, stream) is None:
                    return made
        finally:
            if stream:
                stream.give_up()
        return self._write_planned(snapshot, hashed, label, base)

    def _stream(self, arrival: Arrival) -> Stream | None:
        """A file for what is expected to have changed; None if that is little, or if it cannot be begun."""
        moving = [buffer for buffer in arrival.buffers if not buffer.still]
        if sum(buffer.data.nbytes for buffer in moving) < STREAM_FROM_BYTES:
            return None
        try:
            return Stream(self.paths, self.room, moving)
        except OSError:  # the other road makes room, or says what is wrong
            return None

    def _write_planned(self, snapshot: Snapshot, hashed: Sequence[Hashed], label: Label, base: Base) -> Draft:
        while True:
            made = draft(self.paths, snapshot, hashed, label, OnDisk(base()))
            error = self._commit(made)
            if error is None:
                return made
            if error.errno == errno.EFBIG or not self.upkeep.make_room(made.bytes_needed):
                raise self._full(made) from error

    def _commit(self, made: Draft, stream: Stream | None = None) -> OSError | None:
        """Commit it; the error if there was no room."""
        self.lock.check()  # it may have been closed while the buffers arrived: the folder is another's then
        try:
            self.room.check(made.bytes_needed)
            commit(self.paths, made, stream)
        except OSError as error:
            self.upkeep.tidy()
            if error.errno not in FULL:
                raise typed(self.paths, error, "cannot be written") from error
            return error
        except BaseException:
            self.upkeep.tidy()
            raise
        return None

    def _full(self, made: Draft) -> DiskFullError:
        free = self.room.free_bytes()
        return DiskFullError(
            f"no room for the checkpoint at {made.manifest.position}: it needs {format_bytes(made.bytes_needed)},"
            f" {format_bytes(free)} are free in {self.room.budget_folder}",
            path=self.paths.folder,
            needed_bytes=made.bytes_needed,
            free_bytes=free,
            hint="remove files that the run does not need, or lower keep.last; the last checkpoint is untouched",
        )


def typed(paths: RunPaths, error: OSError, what: str) -> CheckpointError:
    """What the system said of a run folder, as an error of ours."""
    if isinstance(error, CheckpointError):
        return error
    hint = "the last checkpoint is untouched; check the disk, or choose another folder with root="
    return UnreadableError(f"{paths.folder} {what}: {error.strerror or error}", path=paths.folder, hint=hint)


def _received(item: Hashed, stream: Stream | None, on_disk: OnDisk) -> Hashed:
    """It has arrived: written now, if it is new."""
    if stream and not item.buffer.still and not on_disk.entry_for(item):
        stream.add(item)
    return item


def _as_given(hashed: list[Hashed], buffers: Sequence[Buffer]) -> list[Hashed]:
    """In the order of the snapshot, if it has one of its own."""
    rank = {buffer.name: number for number, buffer in enumerate(buffers)}
    return sorted(hashed, key=lambda item: rank.get(item.buffer.name, 0))
