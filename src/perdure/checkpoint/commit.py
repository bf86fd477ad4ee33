"""One save: drafted in memory, then committed to disk in the order that survives a kill at any point."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from perdure.checkpoint.budget import rounded
from perdure.checkpoint.manifest import MANIFEST, Manifest, dump_manifest
from perdure.checkpoint.reader import is_gone
from perdure.checkpoint.sharing import plan_save
from perdure.checkpoint.snapshot import Snapshot
from perdure.checkpoint.tensorfile import Hashed, TensorFile, hash_buffer
from perdure.checkpoint.writer import publish
from perdure.core.files import fsync_dir
from perdure.core.paths import RunPaths

_ALONE_BYTES = 64 * 1024 * 1024  # from here on digests are worth some threads
_THREADS = 4
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
    """

    folder: Path
    manifest: Manifest
    data: bytes
    new: tuple[TensorFile, ...]

    @property
    def bytes_written(self) -> int:
        """Bytes of its files."""
        return len(self.data) + sum(file.nbytes for file in self.new)

    @property
    def bytes_needed(self) -> int:
        """What it takes on disk, folders included."""
        return rounded(len(self.data)) + sum(rounded(file.nbytes) for file in self.new) + _FOLDER_BYTES


def hash_buffers(snapshot: Snapshot) -> list[Hashed]:
    """The buffers with their digests.

    Raises:
        ValueError: Two have one name, or one is not what its dtype and shape say.
    """
    names = [buffer.name for buffer in snapshot.buffers]
    if len(set(names)) != len(names):
        raise ValueError("two buffers of the snapshot have one name")
    if sum(buffer.data.nbytes for buffer in snapshot.buffers if not buffer.digest) < _ALONE_BYTES:
        return [hash_buffer(buffer) for buffer in snapshot.buffers]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(hash_buffer, snapshot.buffers))


def draft(
    paths: RunPaths, snapshot: Snapshot, hashed: Sequence[Hashed], label: Label, base: Manifest | None
) -> Draft:
    """Decide everything about a save before a byte is written.

    Args:
        paths: The run folder.
        snapshot: What to save.
        hashed: Its buffers.
        label: What the store adds.
        base: The checkpoint of the run folder whose tensor files may be shared.
    """
    plan = plan_save(hashed, base)
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
    return Draft(folder, manifest, dump_manifest(manifest), plan.new)


def folder_for(paths: RunPaths, step: int, seq: int) -> Path:
    """The folder of a new checkpoint: ``step-000001200``, or ``step-000001200-s17`` if that name is taken."""
    folder = paths.checkpoints / f"step-{step:09d}"
    return folder if is_gone(folder / MANIFEST) else folder.with_name(f"{folder.name}-s{seq}")


def commit(paths: RunPaths, made: Draft) -> None:
    """Write it. The rename of the manifest is the commit.

    Raises:
        OSError: As the system says. Then the manifest is not there, unless the system refuses its removal too.
    """
    for file in made.new:
        paths.tensors.mkdir(exist_ok=True)
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
