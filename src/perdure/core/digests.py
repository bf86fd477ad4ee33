"""Digests of model files and of folders that are one model."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(path: Path) -> str:
    """``"sha256:..."`` of a file; of a folder, that of its sorted ``<sha256>  <relative path>`` lines.

    The lines are those of ``sha256sum``, so that anybody can compute the digest of a folder without Perdure.

    Raises:
        OSError: It cannot be read.
    """
    return f"sha256:{hexdigest(path)}"


def hexdigest(path: Path) -> str:
    """The same without the name of the algorithm."""
    if not path.is_dir():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    files = sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
    lines = "".join(f"{hexdigest(path / name)}  {name}\n" for name in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    if not path.is_dir():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
