"""Bringing a checkpoint of an input folder into the run folder, where it must outlive the input.

A run goes on from an input without copying it. But a session hands on its own folder only: the best checkpoint,
or the last healthy one, would be lost one session later if it stayed behind.
"""

from __future__ import annotations

from pathlib import Path

from perdure.checkpoint.budget import rounded
from perdure.checkpoint.commit import Draft, commit_manifest, folder_for
from perdure.checkpoint.manifest import dump_manifest
from perdure.checkpoint.opened import Checkpoint
from perdure.checkpoint.reader import is_gone
from perdure.checkpoint.writer import publish
from perdure.core.paths import RunPaths


def adoption_bytes(paths: RunPaths, checkpoint: Checkpoint) -> int:
    """What ``adopt`` will take on disk."""
    return _draft(paths, checkpoint).bytes_needed + sum(map(rounded, _missing(paths, checkpoint).values()))


def adopt(paths: RunPaths, checkpoint: Checkpoint) -> Path:
    """Copy a proven checkpoint into a run folder that this process holds.

    Returns:
        Its new folder.

    Raises:
        UnreadableError: It can no longer be read.
        OSError: As the system says; then it is not committed here.
    """
    paths.tensors.mkdir(exist_ok=True)
    for file, nbytes in _missing(paths, checkpoint).items():
        publish(paths.folder / file, checkpoint.file_parts(file), nbytes)
    made = _draft(paths, checkpoint)
    commit_manifest(paths, made)
    return made.folder


def _draft(paths: RunPaths, checkpoint: Checkpoint) -> Draft:
    manifest = checkpoint.manifest
    return Draft(folder_for(paths, manifest.step, manifest.seq), manifest, dump_manifest(manifest), ())


def _missing(paths: RunPaths, checkpoint: Checkpoint) -> dict[str, int]:
    """The tensor files that the run folder does not have yet, with their sizes in bytes."""
    return {file: n for file, n in checkpoint.manifest.files.items() if is_gone(paths.folder / file)}
