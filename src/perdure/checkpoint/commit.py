"""One save: drafted in memory, then committed to disk in the order that survives a kill at any point."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.checkpoint.budget import rounded
from perdure.checkpoint.manifest import MANIFEST, Manifest, dump_manifest
from perdure.checkpoint.reader import is_gone
from perdure.checkpoint.sharing import Ahead, OnDisk, plan_save
from perdure.checkpoint.snapshot import Hashed, Snapshot
from perdure.checkpoint.stream import Stream
from perdure.checkpoint.tensorfile import TensorFile
from perdure.checkpoint.writer import publish
from perdure.core.files import fsync_dir
from perdure.core.paths import RunPaths

_FOLDER_BYTES = 3 * 4096  # the new folder, and growth of the two that it is listed in


@dataclass(frozen=True)
class Label:
    """What the store adds to a snapshot: name and identity of the run, count of its saves, time (ISO 8601)."""

    run: str
    run_id: str
    seq: int
    created: str


@dataclass(frozen=True)
class Draft:
    """A checkpoint as it will be written.

    Attributes:
        folder: Its folder.
        manifest: What it is.
        data: The bytes of its manifest.
        new: Its new tensor files.
        begun: The one of them that is being written already.
    """

    folder: Path
    manifest: Manifest
    data: bytes
    new: tuple[TensorFile, ...]
    begun: TensorFile | None = None

    @property
    def bytes_written(self) -> int:
        """Bytes of its files."""
        return len(self.data) + sum(file.nbytes for file in self.new)

    @property
    def bytes_needed(self) -> int:
        """What it takes on disk beside what is reserved for it, folders included."""
        files = sum(rounded(file.nbytes) for file in self.new if file is not self.begun)
        return rounded(len(self.data)) + files + _FOLDER_BYTES


def draft(
    paths: RunPaths,
    snapshot: Snapshot,
    hashed: Sequence[Hashed],
    label: Label,
    on_disk: OnDisk,
    ahead: Ahead | None = None,
) -> Draft:
    """Decide what is not decided yet about a save.

    Args:
        paths: The run folder.
        snapshot: What to save.
        hashed: Its buffers.
        label: What the store adds.
        on_disk: What may be shared.
        ahead: The file that is being written already.
    """
    plan = plan_save(hashed, on_disk, ahead)
    manifest = Manifest(
        run=label.run,
        run_id=label.run_id,
        seq=label.seq,
        position=snapshot.position,
        session=snapshot.session,
        reason=snapshot.reason,
        healthy=snapshot.healthy,
        created=label.created,
        training_s=float(snapshot.training_s),
        metrics={name: float(value) for name, value in snapshot.metrics.items()},
        libraries=dict(snapshot.libraries),
        files=plan.files,
        entries=plan.entries,
        values=snapshot.values,
    )
    folder = folder_for(paths, manifest.step, manifest.seq)
    return Draft(folder, manifest, dump_manifest(manifest), plan.new, plan.new[0] if ahead else None)


def folder_for(paths: RunPaths, step: int, seq: int) -> Path:
    """The folder of a new checkpoint: ``step-000001200``, or ``step-000001200-s17`` if that name is taken."""
    folder = paths.checkpoints / f"step-{step:09d}"
    return folder if is_gone(folder / MANIFEST) else folder.with_name(f"{folder.name}-s{seq}")


def commit(paths: RunPaths, made: Draft, stream: Stream | None = None) -> None:
    """Write it. The rename of the manifest is the commit.

    Args:
        paths: The run folder.
        made: What.
        stream: Where its ``begun`` file is written to.

    Raises:
        OSError: As the system says. Then the manifest is not there, unless the system refuses its removal too.
    """
    for file in made.new:
        paths.tensors.mkdir(exist_ok=True)
        if stream and file is made.begun:
            stream.publish(paths, file)
        else:
            publish(paths.folder / file.file, file.content(), file.nbytes)
    commit_manifest(paths, made)


def commit_manifest(paths: RunPaths, made: Draft) -> None:
    """The last part of ``commit``: its tensor files are there.

    Raises:
        OSError: As for ``commit``.
    """
    paths.checkpoints.mkdir(exist_ok=True)
    made.folder.mkdir(exist_ok=True)
    try:
        publish(made.folder / MANIFEST, [made.data], len(made.data))
        fsync_dir(paths.checkpoints)
    except BaseException:
        # Renamed, but not known to be on disk: what is not certain is taken back.
        with contextlib.suppress(OSError):
            (made.folder / MANIFEST).unlink(missing_ok=True)
        raise
