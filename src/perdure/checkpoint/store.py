"""The store: the checkpoints of one run, written, found, kept and proven."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.checkpoint.adopt import adopt, adoption_bytes
from perdure.checkpoint.athand import AtHand
from perdure.checkpoint.budget import Room
from perdure.checkpoint.catalog import Catalog
from perdure.checkpoint.commit import Label
from perdure.checkpoint.debris import sweep_small_files
from perdure.checkpoint.lock import RunLock
from perdure.checkpoint.manifest import FORMAT_VERSION, Manifest
from perdure.checkpoint.opened import Checkpoint, ToKeep, keep_none, open_checkpoint
from perdure.checkpoint.reader import check_sizes
from perdure.checkpoint.retention import Committed, Keep, best_of, last_good
from perdure.checkpoint.saves import Saves, typed
from perdure.checkpoint.search import Found
from perdure.checkpoint.snapshot import Arrival, Snapshot
from perdure.checkpoint.upkeep import Upkeep, committed
from perdure.core.clock import Clock, SystemClock
from perdure.core.errors import CheckpointError
from perdure.core.files import fsync_dir, write_json
from perdure.core.paths import RunPaths


@dataclass(frozen=True)
class Saved:
    """A save that was committed.

    Attributes:
        folder: Where it is.
        manifest: What it is.
        bytes_written: Bytes that went to disk; shared ones were there before.
        seconds: How long it took until it was committed, by the clock of the store.
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
        room: Where the run may write, and how much.
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
        self.room = Room(paths.folder, disk_bytes, disk_folder or paths.folder.parent)
        self._upkeep = Upkeep(paths, keep, self.room, self._report)
        self._clock = clock
        self._catalog = Catalog(paths, name, inputs)
        self._lock = RunLock(paths.lock)
        self._saves = Saves(paths, self._lock, self.room, self._upkeep)
        self._is_open = False
        self._seq = 0
        self._proven: Committed | None = None
        self._left_behind: set[Path] = set()

    def open(self, settings: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Take the run folder for writing: lock it, make it, clean it of what a killed save left.

        Args:
            settings: What to write into ``run.json``, JSON-able; an existing ``run.json`` of this run stays.
            fresh: Begin a new run: checkpoints that are there do not count, and go at the first save.

        Raises:
            RunLockedError: Another process is writing to it.
            UnreadableError: The folder cannot be made, listed or written.
        """
        if self._is_open:
            return
        try:
            self.paths.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self.paths.checkpoints.mkdir(exist_ok=True)
            self.paths.tensors.mkdir(exist_ok=True)
            self._identify(settings, fresh)
            sweep_small_files(self.paths.folder)
            self._upkeep.sweep()
        except OSError as error:
            self._lock.release()
            raise typed(self.paths, error, "cannot be opened for writing") from error
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

    def newest(self, to_keep: ToKeep = keep_none) -> Checkpoint | None:
        """The newest checkpoint that verifies; None only if there is none at all.

        Damaged newer ones are reported; in the run folder they are moved to the quarantine, if the store is open
        and an older one is whole.

        Args:
            to_keep: Says of which of its entries the bytes shall stay in memory.

        Raises:
            CorruptError: There are some, and none is whole.
            UnreadableError: It could not be looked; or some could not be read, and none is whole.
            FormatVersionError: One is of a newer format, and no older one is whole.
        """
        chosen = self._catalog.choose(to_keep)
        for item in self._catalog.strangers():
            self._report(f"{item.folder} is of another run of the same name: ignored")
        for item in chosen.bad:
            became = self._upkeep.set_aside(item) if self._is_open else "skipped"
            self._report(f"{' '.join(item.problem.split())}: {became}")
        checkpoint = chosen.checkpoint
        if checkpoint and checkpoint.folder.parent == self.paths.checkpoints:
            self._proven = Committed(checkpoint.folder, checkpoint.manifest)
        return checkpoint

    def save(self, snapshot: Snapshot, arrival: Arrival | None = None) -> Saved:
        """Commit a checkpoint, then remove what retention does not keep.

        Args:
            snapshot: What to save.
            arrival: Its buffers and its health, if they are still to come; the manifest has the buffers in the
                order of ``snapshot``, if they are there too.

        Raises:
            DiskFullError: There is no room, even without the older checkpoints; the last good one is untouched.
            UnreadableError: The system refuses otherwise; the last good one is untouched.
            RunLockedError: This store is not open (any more).
            ValueError: The buffers are not what they say.
        """
        self._lock.check()
        started = self._clock.monotonic()
        if arrival is None:
            arrival = AtHand(snapshot.buffers, lambda: snapshot.healthy)
        label = Label(self.name, self.run_id, self._seq + 1, self._now())
        made = self._saves.write(snapshot, arrival, label, self._base)
        seconds = self._clock.monotonic() - started
        self._seq = made.manifest.seq
        self._proven = Committed(made.folder, made.manifest)
        self._bring_home()
        self._upkeep.prune(self._proven)
        return Saved(made.folder, made.manifest, made.bytes_written, seconds)

    def _identify(self, settings: Mapping[str, Any], fresh: bool) -> None:
        """Find out who this run is, and write it down."""
        found = [] if fresh else [item.manifest for item in self._catalog.all() if item.manifest]
        recorded = self._catalog.recorded_id()
        likely = "" if fresh else found[0].run_id if found else recorded
        self.run_id = self._catalog.run_id = likely or uuid.uuid4().hex
        self._seq = max((manifest.seq for manifest in found), default=0)
        if recorded != self.run_id:
            about = {"format_version": FORMAT_VERSION, "name": self.name, "run_id": self.run_id}
            write_json(self.paths.run_json, about | {"created": self._now(), "settings": dict(settings)})
        fsync_dir(self.paths.folder)
        fsync_dir(self.paths.folder.parent)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.time(), UTC).isoformat(timespec="seconds")

    def _base(self) -> Manifest | None:
        """The checkpoint whose files may be shared: proven or written by this process, and still whole."""
        if self._proven is None:
            return None
        try:
            check_sizes(self._proven.folder, self._proven.manifest)
        except CheckpointError:
            return None
        return self._proven.manifest

    def _bring_home(self) -> None:
        """Copy the best and the last good checkpoint from the inputs, if that is where they are."""
        known: builtins.list[Committed] = []
        for item in committed(self._catalog.all()):  # of copies of one checkpoint our own comes first
            if not known or known[-1].manifest.key != item.manifest.key:
                known.append(item)
        for wanted in {best_of(known, self.keep), last_good(known)} - {None}:
            if wanted and wanted.folder.parent != self.paths.checkpoints and wanted.folder not in self._left_behind:
                self._adopt(wanted.folder)

    def _adopt(self, folder: Path) -> None:
        try:
            checkpoint = open_checkpoint(folder)
            self.room.check(adoption_bytes(self.paths, checkpoint))
            adopt(self.paths, checkpoint)
        except (OSError, CheckpointError) as error:
            self._left_behind.add(folder)
            self._upkeep.tidy()
            self._report(f"{folder} could not be copied into the run folder: {error}")

    def _report(self, sentence: str) -> None:
        if sentence not in self.reports:
            self.reports.append(sentence)
