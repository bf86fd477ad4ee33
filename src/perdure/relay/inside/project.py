"""The project in the working folder: scripts read ``config.yaml`` from where they run, and write there too.

The files are copied, not linked: what a script changes then is output, as it is at home. What it did not change is
taken away at the end. The script itself runs from its copy, so that what it writes beside itself is output as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from perdure.core.say import warn
from perdure.relay.inside.marker import MARKER

_OURS = frozenset({"perdure", MARKER})
"""Names at the top of a working folder that are not the project's."""

_CACHE = "__pycache__"

_INTERPRETED = (".py", ".ipynb")
"""What an interpreter reads runs from anywhere; a program may not be executable in the working folder."""


class ProjectCopies:
    """The project's files, where the script runs.

    Args:
        project: The unpacked project.
        working: The working folder.
    """

    def __init__(self, project: Path, working: Path) -> None:
        self._project = project
        self._working = working
        self._copies: dict[Path, tuple[int, int, int]] = {}
        self._folders: list[Path] = []
        self._had_cache = (working / _CACHE).exists()

    def lay_out(self) -> None:
        """Copy what is not there yet. A full disk is the script's to notice: it may not need them."""
        try:
            for source in self._files():
                goal = self._working / source.relative_to(self._project)
                if not os.path.lexists(goal):
                    self._make_folders(goal.parent)
                    shutil.copy2(source, goal)
                    self._copies[goal] = _stamp(goal)
        except OSError as error:
            warn(f"the project cannot be laid out in {self._working}: {error}")

    def place_of(self, target: str) -> Path:
        """Where a script of the project runs from: its copy, or the unpacked project where there is none.

        Args:
            target: The script, below the project.
        """
        copy = self._working / target
        return copy if copy in self._copies and target.endswith(_INTERPRETED) else self._project / target

    @property
    def count(self) -> int:
        """Files and folders that were laid out."""
        return len(self._copies) + len(self._folders)

    def take_back(self) -> None:
        """Take away what nobody changed, and folders that are empty."""
        for path, stamp in self._copies.items():
            with contextlib.suppress(OSError):
                if _stamp(path) == stamp:
                    path.unlink()
        if not self._had_cache:
            shutil.rmtree(self._working / _CACHE, ignore_errors=True)
        for folder in sorted(self._folders, key=lambda path: -len(path.parts)):
            shutil.rmtree(folder / _CACHE, ignore_errors=True)
            with contextlib.suppress(OSError):  # it holds something of the script's
                folder.rmdir()

    def _files(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self._project, followlinks=False):
            top = Path(folder) == self._project
            folders[:] = sorted(name for name in folders if not (top and name in _OURS))
            for name in sorted([*names, *(f for f in folders if Path(folder, f).is_symlink())]):
                path = Path(folder, name)
                if not (top and name in _OURS):
                    yield from _below(path) if path.is_symlink() and path.is_dir() else (path,)

    def _make_folders(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir()
            self._folders.append(path)


def _below(folder: Path) -> Iterator[Path]:
    """Files of a linked folder; links in it that lead back are not followed."""
    for parent, _, names in os.walk(folder, followlinks=False):
        yield from (Path(parent, name) for name in sorted(names))


def _stamp(path: Path) -> tuple[int, int, int]:
    """Changes when somebody writes to a file, or puts another in its place."""
    state = os.lstat(path)
    return state.st_size, state.st_mtime_ns, state.st_ino
