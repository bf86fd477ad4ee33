"""The store: the checkpoints of one run, written, found, kept and proven."""

from __future__ import annotations

import builtins
import contextlib
import errno
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.checkpoint import debris
from perdure.checkpoint.budget import FULL, free_bytes
from perdure.checkpoint.catalog import Catalog
from perdure.checkpoint.commit import Draft, Label, commit, draft, hash_buffers
from perdure.checkpoint.lock import RunLock
from perdure.checkpoint.manifest import FORMAT_VERSION, MANIFEST, Manifest
from perdure.checkpoint.reader import Checkpoint, check_sizes, is_gone
from perdure.checkpoint.retention import Committed, Keep, expendable, to_drop
from perdure.checkpoint.search import Found
from perdure.checkpoint.snapshot import Snapshot
from perdure.core.clock import Clock, SystemClock
from perdure.core.errors import CheckpointError, CorruptError, DiskFullError, UnreadableError
from perdure.core.files import fsync_dir, write_json
from perdure.core.intervals import format_bytes
from perdure.core.paths import RunPaths

MAX_RUN_FILES = 50
"""A run folder holds fewer files than this after a save; hosts zip or refuse more."""


@dataclass(frozen=True)
class Saved:
    """A save that was committed.

    Attributes:
        folder: Where it is.
        manifest: What it is.
        bytes_written: Bytes that went to disk; shared ones were there before.
        seconds: How long it took, by the clock of the store.
    """

    folder: Path
    manifest: Manifest
    bytes_written: int
    seconds: float


class Store:
    """The checkpoints of one run.

    Reading (``peek``, ``list``, ``newest``) needs no ``open`` and then writes nothing. Not for use from several
    threads at once.

    Args:
        paths: The folder of the run.
        name: Name of the run.
        keep: Which checkpoints stay.
        inputs: Folders below which earlier sessions may have left checkpoints; only read.
        disk_bytes: What ``disk_folder`` may hold in all, the checkpoint being written included.
        disk_folder: What that budget is for; default: the folder that the run folder is in.
        clock: For labels and durations.

    Attributes:
        run_id: Identity of the run, the same over all its sessions; empty before ``open``.
        reports: Plain sentences for the user: what was damaged and skipped, what could not be removed.
    """

    def __init__(
        self,
        paths: RunPaths,
        name: str,
        *,
        keep: Keep = Keep(),  # noqa: B008  frozen
        inputs: Sequence[Path] = (),
        disk_bytes: int | None = None,
        disk_folder: Path | None = None,
        clock: Clock = SystemClock(),  # noqa: B008  without state
    ) -> None:
        self.paths = paths
        self.name = name
        self.keep = keep
        self.run_id = ""
        self.reports: list[str] = []
        self._disk_bytes = disk_bytes
        self._disk_folder = disk_folder or paths.folder.parent
        self._clock = clock
        self._catalog = Catalog(paths, name, inputs)
        self._lock = RunLock(paths.lock)
        self._is_open = False
        self._seq = 0
        self._proven: Committed | None = None

    def open(self, settings: Mapping[str, Any]) -> None:
        """Take the run folder for writing: lock it, make it, clean it of what a killed save left.

        Args:
            settings: What to write into ``run.json``, JSON-able; an existing ``run.json`` of this run stays.

        Raises:
            RunLockedError: Another process is writing to it.
            UnreadableError: The folder cannot be made, listed or written.
        """
        if self._is_open:
            return
        try:
            self.paths.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._identify(settings)
            debris.sweep_small_files(self.paths.folder)
            debris.sweep(self.paths, self._catalog.own())
        except OSError as error:
            self._lock.release()
            raise self._typed(error, "cannot be opened for writing") from error
        except BaseException:
            self._lock.release()
            raise
        self._is_open = True
        if not self._lock.supported:
            self._report(f"{self.paths.folder} cannot be locked here: see to it that only one process writes to it")

    def close(self) -> None:
        """Give the run folder back; harmless if it is not open."""
        self._lock.release()
        self._is_open = False

    def peek(self) -> Manifest | None:
        """The newest manifest that parses and whose files have the right sizes; cheap, no digests.

        Raises:
            UnreadableError: A folder cannot be listed.
        """
        return next((item.manifest for item in self._catalog.all() if not item.error), None)

    def list(self) -> builtins.list[Found]:
        """The checkpoints of the run, own ones and those in the inputs, newest first.

        Raises:
            UnreadableError: A folder cannot be listed.
        """
        return self._catalog.all()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; None only if there is none at all.

        Damaged newer ones are reported; in the run folder they are moved to the quarantine, if the store is open
        and an older one is whole.

        Raises:
            CorruptError: There are some, and none is whole.
            UnreadableError: It could not be looked; or some could not be read, and none is whole.
            FormatVersionError: One is of a newer format, and no older one is whole.
        """
        chosen = self._catalog.choose()
        for item in self._catalog.strangers():
            self._report(f"{item.folder} is of another run of the same name: ignored")
        for item in chosen.bad:
            self._set_aside(item)
        checkpoint = chosen.checkpoint
        if checkpoint and checkpoint.folder.parent == self.paths.checkpoints:
            self._proven = Committed(checkpoint.folder, checkpoint.manifest)
        return checkpoint

    def save(self, snapshot: Snapshot) -> Saved:
        """Commit a checkpoint, then remove what retention does not keep.

        Raises:
            DiskFullError: There is no room, even without the older checkpoints; the last good one is untouched.
            UnreadableError: The system refuses otherwise; the last good one is untouched.
            RunLockedError: This store is not open (any more).
            ValueError: The buffers are not what they say.
        """
        self._lock.check()
        started = self._clock.monotonic()
        hashed = hash_buffers(snapshot)
        while True:
            made = draft(self.paths, snapshot, hashed, self._label(), self._base())
            try:
                self._check_budget(made)
                commit(self.paths, made)
                break
            except OSError as error:
                self._tidy()
                self._make_room(made, error)
            except BaseException:
                self._tidy()
                raise
        self._seq = made.manifest.seq
        self._proven = Committed(made.folder, made.manifest)
        self._prune(self._proven)
        return Saved(made.folder, made.manifest, made.bytes_written, self._clock.monotonic() - started)

    def _identify(self, settings: Mapping[str, Any]) -> None:
        """Find out who this run is, and write it down."""
        found = [item.manifest for item in self._catalog.all() if item.manifest]
        recorded = self._recorded_id()
        self.run_id = found[0].run_id if found else recorded or uuid.uuid4().hex
        self._seq = max((manifest.seq for manifest in found), default=0)
        if recorded != self.run_id:
            about = {"format_version": FORMAT_VERSION, "name": self.name, "run_id": self.run_id}
            write_json(self.paths.run_json, about | {"created": self._now(), "settings": dict(settings)})
        fsync_dir(self.paths.folder.parent)

    def _recorded_id(self) -> str:
        try:
            return str(json.loads(self.paths.run_json.read_bytes())["run_id"])
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, TypeError):
            self._report(f"{self.paths.run_json} was damaged: written anew")
            return ""

    def _label(self) -> Label:
        return Label(self.name, self.run_id, self._seq + 1, self._now())

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.time(), UTC).isoformat(timespec="seconds")

    def _base(self) -> Manifest | None:
        """The checkpoint whose files may be shared: proven or written by this process, and still whole."""
        if self._proven is None or is_gone(self._proven.folder / MANIFEST):
            return None
        try:
            check_sizes(self._proven.folder, self._proven.manifest)
        except CheckpointError:
            return None
        return self._proven.manifest

    def _committed(self) -> Sequence[Committed]:
        return [
            Committed(item.folder, item.manifest)
            for item in self._catalog.own()
            if item.manifest and not item.error
        ]

    def _free_bytes(self) -> int:
        return free_bytes(self.paths.folder, self._disk_bytes, self._disk_folder)

    def _check_budget(self, made: Draft) -> None:
        """Only the budget: whether the disk has room shows, exactly, when the file is reserved."""
        if self._disk_bytes is not None and made.bytes_needed > self._free_bytes():
            raise OSError(errno.ENOSPC, "over the disk budget")

    def _make_room(self, made: Draft, error: OSError) -> None:
        """After a failed save: remove one thing that can be spared, or raise the typed error."""
        if error.errno not in FULL:
            raise self._typed(error, "cannot be written") from error
        free = self._free_bytes()
        if error.errno != errno.EFBIG and (debris.empty_quarantine(self.paths) or self._spare_one(made, free)):
            return
        raise DiskFullError(
            f"no room for the checkpoint at {made.manifest.position}: it needs {format_bytes(made.bytes_needed)},"
            f" {format_bytes(free)} are free in {self._disk_folder}",
            path=self.paths.folder,
            needed_bytes=made.bytes_needed,
            free_bytes=free,
            hint="remove files that the run does not need, or lower keep.last; the last checkpoint is untouched",
        ) from error

    def _spare_one(self, made: Draft, free: int) -> bool:
        """Remove the checkpoint that can best be spared, if removing all of these would be enough."""
        own = self._committed()
        spare = expendable(own, self.keep)
        kept = {file for item in own if item not in spare for file in item.manifest.files}
        gain = {f: n for item in spare for f, n in item.manifest.files.items() if f not in kept}
        if not spare or free + sum(gain.values()) < made.bytes_needed:
            return False
        try:
            debris.drop_checkpoint(spare[0].folder)
            debris.sweep(self.paths, self._catalog.own())
        except OSError:
            return False
        return True

    def _prune(self, saved: Committed) -> None:
        """Retention. The checkpoint is committed: what goes wrong here is reported, no more."""
        try:
            for item in to_drop(self._committed(), self.keep, saved):
                debris.drop_checkpoint(item.folder)
            debris.sweep(self.paths, self._catalog.own())
            while debris.count_files(self.paths.folder) >= MAX_RUN_FILES and self._drop_for_count(saved):
                debris.sweep(self.paths, self._catalog.own())
        except OSError as error:
            self._report(f"older checkpoints could not be removed: {error}")

    def _drop_for_count(self, saved: Committed) -> bool:
        if debris.empty_quarantine(self.paths):
            return True
        spare = [item for item in expendable(self._committed(), self.keep) if item.folder != saved.folder]
        if not spare:
            return False
        self._report(f"fewer checkpoints than keep.last stay: a run folder holds fewer than {MAX_RUN_FILES} files")
        debris.drop_checkpoint(spare[0].folder)
        return True

    def _set_aside(self, bad: Found) -> None:
        where = "skipped"
        own = bad.folder.parent == self.paths.checkpoints
        if own and self._is_open and isinstance(bad.error, CorruptError):
            others = [item for item in self._catalog.own() if item.folder != bad.folder]
            try:
                where = f"moved to {debris.set_aside(self.paths, bad, others)}"
            except OSError as error:
                where = f"skipped, and it could not be moved away: {error}"
        self._report(f"{bad.problem.splitlines()[0]}: {where}")

    def _tidy(self) -> None:
        """Remove what a failed save left; what cannot be removed now is at the next save."""
        with contextlib.suppress(OSError):
            debris.sweep(self.paths, self._catalog.own())

    def _typed(self, error: OSError, what: str) -> CheckpointError:
        if isinstance(error, CheckpointError):
            return error
        hint = "the last checkpoint is untouched; check the disk, or choose another folder with root="
        return UnreadableError(
            f"{self.paths.folder} {what}: {error.strerror or error}", path=self.paths.folder, hint=hint
        )

    def _report(self, sentence: str) -> None:
        if sentence not in self.reports:
            self.reports.append(sentence)
