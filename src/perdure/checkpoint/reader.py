"""The manifest of a checkpoint and the sizes of its files: what can be told without reading the bytes."""

from __future__ import annotations

import os
from pathlib import Path

from perdure.checkpoint.manifest import MANIFEST, Manifest, load_manifest
from perdure.core.errors import CorruptError, NoCheckpointError, UnreadableError


def run_folder_of(folder: Path) -> Path:
    """The run folder of ``<run>/checkpoints/step-...``."""
    return folder.parent.parent


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder.

    Raises:
        NoCheckpointError: There is none.
        UnreadableError: The system does not let it be read.
        CorruptError, FormatVersionError: It is not what was written, or it is of a newer format.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NoCheckpointError(f"{folder} holds no checkpoint: it has no {MANIFEST}", path=folder) from None
    except OSError as error:
        raise unreadable(path, error) from error
    return load_manifest(data, path)


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Check that the files of a checkpoint are there, with the right sizes.

    Raises:
        CorruptError: They are not.
        UnreadableError: The system does not let it be seen.
    """
    problems = []
    for file, nbytes in manifest.files.items():
        path = run_folder_of(folder) / file
        try:
            found = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            problems.append(f"{file} is missing")
        except OSError as error:
            raise unreadable(path, error) from error
        else:
            if found != nbytes:
                problems.append(f"{file} has {found} bytes instead of {nbytes}")
    problems += [
        f"{MANIFEST}: entry {entry.name} lies outside of {entry.file}"
        for entry in manifest.entries
        if entry.offset + entry.nbytes > manifest.files.get(entry.file, -1)
    ]
    if problems:
        raise corrupt(folder, problems)


def is_gone(path: Path) -> bool:
    """Whether there is no such file; False where the system does not say."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def unreadable(path: Path, error: OSError) -> UnreadableError:
    """The typed error for a file that the system does not let us read or write."""
    return UnreadableError(
        f"{path}: {error.strerror or error}",
        path=path,
        hint="check the disk, the mount and the permissions; nothing was changed",
    )


def corrupt(folder: Path, problems: list[str]) -> CorruptError:
    """The typed error for a checkpoint that is not what was written."""
    return CorruptError(f"the checkpoint {folder} is damaged", path=folder, problems=problems)
