"""The checksums in zip files, which torch does not look at when it loads one."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from perdure.core.errors import CorruptError
from perdure.core.intervals import format_bytes
from perdure.models.contents import damaged

_CHUNK = 1 << 20
_SMALL_BYTES, _RATIO = 1 << 28, 100

NO_CHECKSUMS = "it was written without checksums, so damage in the numbers would not show"


def check_zip(path: Path) -> tuple[str, ...]:
    """Read every byte of a zip file and compare the checksums.

    Returns:
        A note if the file has none: torch can be told to leave them out, and then all are wrong.

    Raises:
        CorruptError: An entry does not have the checksum that was written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.file_size]
            _check_unpacked(path, sum(entry.file_size for entry in entries))
            bad = [entry.filename for entry in entries if not _whole(archive, entry)]
    except CorruptError:
        raise
    except Exception as error:  # of a damaged file zipfile raises many kinds
        raise damaged(path, str(error)) from error
    if bad and len(bad) < len(entries):
        raise damaged(path, f"{bad[0]} does not have the checksum that was written")
    return (NO_CHECKSUMS,) if bad else ()


def _check_unpacked(path: Path, unpacked: int) -> None:
    """Weights hardly shrink: what unpacks to a hundred times its size is made to fill memory."""
    if unpacked > max(_SMALL_BYTES, _RATIO * path.stat().st_size):
        raise damaged(path, f"it would unpack to {format_bytes(unpacked)}, which no model file of its size does")


def _whole(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(entry) as file:
            while file.read(_CHUNK):
                pass
    except zipfile.BadZipFile as error:
        if "CRC" not in str(error):
            raise
        return False
    except zlib.error:
        return False
    return True
