"""Too many files in the working folder: a platform may then not keep the output at all."""

from __future__ import annotations

import os
from pathlib import Path

FILES_MOST = 500
"""Users report that a version with thousands of small files was not saved (ak9250/stylegan-art, issue 2); where the
limit is, is not known. Listings without pages ended at 500 (Kaggle/kaggle-cli, issue 664)."""


def clutter(folder: Path, most: int = FILES_MOST) -> str:
    """A warning about the number of files and folders below a folder; empty if there are few.

    Counting ends at the limit, so that a folder full of images costs no more than a small one.

    Args:
        folder: The working folder.
        most: How many are fine.
    """
    count, queue = 0, [folder]
    while queue:
        try:
            with os.scandir(queue.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > most:
                        return _words(folder, most)
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(Path(entry.path))
        except OSError:  # gone meanwhile, or not to be listed: then it is nothing to count
            continue
    return ""


def _words(folder: Path, most: int) -> str:
    return (
        f"more than {most} files and folders lie in {folder}: all of them become output, and too many can make the "
        "platform lose it. Unpack data in a temporary folder instead, or pack results into one file"
    )
