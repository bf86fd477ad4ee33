"""Small files that are whole or absent, whatever dies in between."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

_CANNOT_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)
"""What network and FUSE mounts (Google Drive in Colab) say that have nothing to sync in a folder."""


def fsync_dir(folder: Path) -> None:
    """Make renames and creations in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file by way of a temporary one beside it: readers see the old bytes or the new, never half.

    Raises:
        OSError: It could not be written; the old file is untouched and the temporary one is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_json(path: Path, value: Any) -> None:
    """``write_atomic`` of a JSON document, UTF-8."""
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())
