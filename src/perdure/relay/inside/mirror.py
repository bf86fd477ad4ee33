"""The mirror: checkpoints leave the session while it runs, in case a hard kill takes its output with it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perdure.checkpoint.manifest import MANIFEST, Manifest
from perdure.checkpoint.opened import Checkpoint, open_checkpoint
from perdure.checkpoint.reader import run_folder_of
from perdure.checkpoint.search import find_checkpoints, look_at
from perdure.core.clock import SystemClock
from perdure.core.errors import CheckpointError, CorruptError, PerdureError, PlatformError
from perdure.core.intervals import format_bytes
from perdure.core.paths import RunPaths
from perdure.core.say import say, warn
from perdure.platforms.box import used_bytes
from perdure.relay.inside.order import Expected, InsideOrder

_LOOK_MOST_S = 30.0
_EVENTS_MOST_BYTES = 64_000_000
_NICE = 10


@dataclass(frozen=True)
class Kept:
    """A committed checkpoint, held open: it can be read to its end, even if it is pruned meanwhile.

    Attributes:
        checkpoint: The checkpoint, every digest of it proved.
        manifest: The bytes of its manifest.
    """

    checkpoint: Checkpoint
    manifest: bytes

    @property
    def about(self) -> Manifest:
        """What it is."""
        return self.checkpoint.manifest

    @property
    def name(self) -> str:
        """Its name: ``step-000000720``."""
        return self.checkpoint.folder.name

    def as_dict(self) -> dict[str, Any]:
        """For the marker, and for the description of a mirror."""
        where = self.about.position
        return {"run": self.about.run, "step": where.step, "epoch": where.epoch, "checkpoint": self.name}

    def small_files(self) -> Iterator[tuple[str, bytes]]:
        """What a resumed run likes to have beside it, below the run's folder; left out where it cannot be read."""
        paths = RunPaths(run_folder_of(self.checkpoint.folder))
        for path in (paths.run_json, paths.events):
            try:
                if path.stat().st_size <= _EVENTS_MOST_BYTES:
                    yield path.name, path.read_bytes()
            except OSError:
                continue

    def tensors(self) -> Iterator[tuple[str, int]]:
        """Its tensor files below the run's folder, with their sizes. A file's name is the digest of its content."""
        yield from self.about.files.items()

    @property
    def manifest_name(self) -> str:
        """Its manifest below the run's folder."""
        return f"checkpoints/{self.name}/{MANIFEST}"


class Target(Protocol):
    """Where checkpoints are mirrored to."""

    def probe(self) -> str:
        """Prove that it can be written to; says where it is. Raises any error if it cannot."""

    def put(self, kept: Sequence[Kept]) -> None:
        """Send the newest checkpoint of each run, and prove by listing that all of it arrived."""

    def bring(self, expects: Sequence[Expected], folder: Path) -> None:
        """Bring checkpoints from there, as far as they are there."""


class Mirror:
    """Sends the newest checkpoints away, in a thread; whatever happens there, training goes on.

    Args:
        order: Says where to, and how often.
        root: Folder of runs.
        resumed: Checkpoints that the session began with: a run that has not saved since is sent from there.
        note: Called with how it stands, for the marker.
        target: Where to; by default what the order says.
        disk_bytes: What the platform's output folder may hold; None for no limit but the disk.
    """

    def __init__(
        self,
        order: InsideOrder,
        root: Path,
        resumed: Sequence[Path],
        note: Callable[[dict[str, Any]], None],
        target: Target | None = None,
        disk_bytes: int | None = None,
    ) -> None:
        self._disk_bytes = disk_bytes
        self._to = order.mirror_to
        self._every_s = order.mirror_every_s
        self._root = root
        self._resumed = tuple(resumed)
        self._note = note
        self._target = target
        self._order = order
        self._over = threading.Event()
        self._clock = SystemClock()
        self._held: dict[str, str] = {}
        self._sent_s = -float("inf")
        self._trouble = ""
        self._shown: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._work, name="perdure-mirror", daemon=True)

    def start(self) -> None:
        """Begin, if a mirror was asked for."""
        if self._to:
            self._thread.start()

    def finish(self) -> None:
        """Begin nothing more. What is under way may be cut off: a mirror holds only what was proven to be there."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(min(1.0, self._order.margin_s / 4))

    def _work(self) -> None:
        _be_nice()
        try:
            self._target = self._target or open_target(self._order)
            where = self._target.probe()
        except Exception as error:  # noqa: BLE001 - it must not cost a training
            self._fail("checkpoints cannot be mirrored", error, state="off")
            return
        say(f"checkpoints are mirrored to {where}, every {self._every_s:.0f} s at most")
        self._note(self._facts("ready"))
        while not self._over.wait(min(_LOOK_MOST_S, self._every_s / 4)):
            if self._clock.monotonic() - self._sent_s >= self._every_s:
                self._send(self._target)

    def _send(self, target: Target) -> None:
        try:
            kept = [_hold(folder) for folder in self._newest()]
            new = {item.about.run: item.name for item in kept}
            if not new or new == self._held:
                return
            self._sent_s = self._clock.monotonic()
            try:
                self._check_room(kept)
                target.put(kept)
            finally:
                for item in kept:
                    item.checkpoint.close()
            self._held = new
            self._trouble = ""
            self._shown = [item.as_dict() for item in kept]
            self._note(self._facts("ready"))
        except Exception as error:  # noqa: BLE001 - it must not cost a training
            self._sent_s = self._clock.monotonic()  # not again at once
            self._fail("a checkpoint could not be mirrored", error, state="failing")

    def _check_room(self, kept: Sequence[Kept]) -> None:
        """What is pruned while it is sent keeps its room; the next save of the training must have its own."""
        needed = sum(size for item in kept for _, size in item.tensors())
        folder = self._root.parent
        free = shutil.disk_usage(folder).free
        if self._disk_bytes is not None:
            free = min(free, self._disk_bytes - used_bytes(folder))
        if free < needed:
            room = format_bytes(max(0, free))
            raise PlatformError(f"{room} of room are too little to hold {format_bytes(needed)} while they are sent")

    def _newest(self) -> list[Path]:
        """The newest checkpoint of each run that looks whole: those of this session, and those it began with."""
        found = [item for item in find_checkpoints(self._root) if item.manifest and not item.error]
        found += [
            item for folder in self._resumed if (item := look_at(folder)) and item.manifest and not item.error
        ]
        best: dict[str, Any] = {}
        for item in found:
            if item.manifest and (item.manifest.run not in best or item.key > best[item.manifest.run].key):
                best[item.manifest.run] = item
        return [best[run].folder for run in sorted(best)]

    def _fail(self, what: str, error: Exception, *, state: str) -> None:
        why = error.what if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
        if why != self._trouble:
            self._trouble = why
            warn(f"{what}: {why}; training goes on")
        self._note(self._facts(state, reason=why))

    def _facts(self, state: str, reason: str = "") -> dict[str, Any]:
        """For the marker; credentials in an address are not shown."""
        return {"to": without_password(self._to), "state": state, "reason": reason, "held": self._shown}


def open_target(order: InsideOrder) -> Target:
    """The target that an order names.

    Raises:
        MissingExtraError, PlatformError: It cannot be used here.
    """
    if order.mirror_to == "kaggle":
        from perdure.relay.inside.mirror_kaggle import KaggleTarget

        return KaggleTarget(order.relay)
    from perdure.relay.inside.mirror_files import FilesTarget

    return FilesTarget(order.mirror_to, order.relay)


def bring_from_mirror(order: InsideOrder, lacking: Sequence[Expected], folder: Path) -> list[Path]:
    """Bring checkpoints that no input holds from the mirror, where it can be read here.

    A mirror in a data set is mounted as an input, and never asked here.

    Returns:
        The folder, if anything was tried; what came is looked at like any input.
    """
    if not order.mirror_to or order.mirror_to == "kaggle":
        return []
    try:
        open_target(order).bring(lacking, folder)
    except Exception as error:  # noqa: BLE001 - whatever it is: the checkpoint is not there, and that is refused
        warn(f"the mirror {without_password(order.mirror_to)} cannot be read: {type(error).__name__}: {error}")
        return []
    return [folder]


def without_password(url: str) -> str:
    """An address without the user and password that may be in it."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _hold(folder: Path) -> Kept:
    """Open a checkpoint, and prove it: what is mirrored is what was written."""
    checkpoint = open_checkpoint(folder)
    try:
        manifest = (folder / MANIFEST).read_bytes()
    except OSError as error:
        checkpoint.close()
        raise CheckpointError(f"{folder} is gone: {error.strerror}", path=folder) from error
    if not manifest:
        raise CorruptError(f"{folder / MANIFEST} is empty", path=folder)
    return Kept(checkpoint, manifest)


def _be_nice() -> None:
    """Leave the processor to the training: on Linux a thread has a niceness of its own."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except (OSError, AttributeError):
        return
