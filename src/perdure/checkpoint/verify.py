"""Proof that a checkpoint is what was written, or where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perdure.checkpoint.manifest import MANIFEST
from perdure.checkpoint.opened import Checkpoint
from perdure.checkpoint.reader import check_sizes, read_manifest
from perdure.core.errors import CorruptError, FormatVersionError, UnreadableError


@dataclass(frozen=True)
class Verdict:
    """What ``verify`` found.

    Attributes:
        problems: What is wrong, one line each, with file and entry; empty if the checkpoint is whole.
        entries: Entries that the manifest names; 0 if it cannot be read.
        bytes: Bytes of these entries.
    """

    problems: tuple[str, ...]
    entries: int = 0
    bytes: int = 0


def verify(path: Path) -> Verdict:
    """Prove every byte of a checkpoint: manifest, headers, entries, and what its files hold beside these.

    Args:
        path: The folder of the checkpoint, or the ``manifest.json`` in it.

    Raises:
        NoCheckpointError: There is none.
    """
    folder = path.parent if path.name == MANIFEST else path
    try:
        manifest = read_manifest(folder)
    except CorruptError as error:
        return Verdict(error.problems)
    except (FormatVersionError, UnreadableError) as error:
        return Verdict((error.what,))
    problems: list[str] = []
    try:
        check_sizes(folder, manifest)
        checkpoint = Checkpoint(folder, manifest)
        problems = checkpoint.problems() + _unused_problems(checkpoint)
    except CorruptError as error:
        problems += error.problems
    except UnreadableError as error:
        problems.append(error.what)
    if problems:
        read_manifest(folder)  # pruned by its writer while we were reading: gone, not damaged
    return Verdict(tuple(problems), len(manifest.entries), sum(entry.nbytes for entry in manifest.entries))


def _unused_problems(checkpoint: Checkpoint) -> list[str]:
    """Damage in regions that older checkpoints use, in the files that this one shares with them."""
    used = {(entry.file, entry.offset) for entry in checkpoint.manifest.entries}
    problems = []
    for file in checkpoint.manifest.files:
        try:
            regions = checkpoint.regions(file)
        except ValueError:  # named already
            continue
        problems += [
            f"{file}: entry {region.name}, not used by this checkpoint, does not have the digest that was written"
            for region in regions
            if (file, region.offset) not in used
            and not checkpoint.proves(file, region.offset, region.nbytes, region.digest)
        ]
    return problems
