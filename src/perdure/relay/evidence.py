"""Is this file a whole checkpoint of a trainer that is not ours? Told from its structure, without loading it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import IO

_HEAD_BYTES = 16
_MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

KINDS = "a zip file (torch, Keras, NumPy .npz), safetensors, HDF5, or a pickle of old torch versions"


def problem_of(path: Path) -> str:
    """What is wrong with a checkpoint file; empty if it looks whole.

    Raises:
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    if size == 0:
        return "it is empty"
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        if head.startswith(b"PK\x03\x04"):
            return _zip_problem(path)
        if head.startswith(_HDF5_MAGIC):
            return _hdf5_problem(file, size)
        if head[8:9] == b"{":
            return _safetensors_problem(file, size)
        if head[:1] == b"\x80" and 2 <= head[1] <= 5:
            return _pickle_problem(file, head)
    return f"it is of no known kind: {KINDS}"


def _zip_problem(path: Path) -> str:
    """A zip file's list of contents is at its end, so that a torn one has none.

    The CRCs are not checked: torch can be told to leave them out (``set_crc32_options``).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if not archive.infolist():
                return "it is a zip file without contents"
            for entry in archive.infolist():
                with archive.open(entry):  # proves the local header
                    pass
                if entry.header_offset + entry.compress_size > archive.start_dir:
                    return f"its entry {entry.filename!r} reaches beyond the data"
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        return f"it is no whole zip file: {error}"
    return ""


def _safetensors_problem(file: IO[bytes], size: int) -> str:
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, _MAX_HEADER_BYTES):
        return "its safetensors header is cut off"
    try:
        header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "its safetensors header does not parse"
    expected = 8 + length + max(ends, default=0)
    return "" if size == expected else f"it should have {expected} bytes by its safetensors header, and has {size}"


def _hdf5_problem(file: IO[bytes], size: int) -> str:
    """The superblock holds the end-of-file address: at byte 40 in versions 0 and 1 (44 in 1), at 28 in 2 and 3."""
    file.seek(8)
    version = file.read(1)[0:1]
    at = {b"\x00": 40, b"\x01": 44, b"\x02": 28, b"\x03": 28}.get(version)
    if at is None:
        return "its HDF5 superblock is of an unknown version"
    file.seek(at)
    expected = int.from_bytes(file.read(8), "little")
    return "" if expected <= size else f"it should have {expected} bytes by its HDF5 superblock, and has {size}"


def _pickle_problem(file: IO[bytes], head: bytes) -> str:
    """Old torch files: a pickled magic number, more pickles, raw bytes; only the head can be proved."""
    if b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20" in head:
        return ""
    file.seek(-1, os.SEEK_END)
    return "" if file.read(1) == b"." else "it is a pickle without its end"
