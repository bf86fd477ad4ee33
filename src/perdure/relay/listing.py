"""What a listing of a session's output tells: which runs and checkpoints lie in it, and whether they are whole."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from perdure.checkpoint.manifest import MANIFEST, Manifest
from perdure.platforms.protocol import OutputFile

CARD = "model-card.json"
"""Beside exported models: what they are, with their digests."""

_CHECKPOINT = re.compile(
    r"((?:.+/)?)checkpoints/(step-(\d{1,18})(?:-s(\d{1,18}))?(?:-\w+)*)/" + re.escape(MANIFEST)
)
_NEVER = frozenset({"quarantine", "lost+found", "__pycache__"})
_STATUS = ("run.json", "session.json")


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint whose manifest is in a listing.

    Attributes:
        run_folder: Folder of its run, below the output, with ``/`` at its end; empty for the output itself.
        name: Name of its folder.
        step: Steps, by that name.
        save: Count of the save where the name says it, else 0.
    """

    run_folder: str
    name: str
    step: int
    save: int

    @property
    def folder(self) -> str:
        """Its folder, with ``/`` at its end."""
        return f"{self.run_folder}checkpoints/{self.name}/"

    @property
    def manifest(self) -> str:
        """Its manifest."""
        return self.folder + MANIFEST


@dataclass(frozen=True)
class Listing:
    """The files of an output, by name.

    Attributes:
        sizes: Size of each in bytes; None where the platform does not say.
        refused: Names that cannot be used here, or could lead out of the folder that they are brought to; never
            asked for.
    """

    sizes: Mapping[str, int | None]
    refused: tuple[str, ...] = ()
    _checkpoints: Mapping[str, tuple[ListedCheckpoint, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[OutputFile]) -> Listing:
        """Of what a platform lists. A name that comes twice, from pages that overlap, is one file."""
        sizes: dict[str, int | None] = {}
        refused = []
        for file in files:
            if is_plain(file.name):
                sizes[file.name] = file.size_bytes
            else:
                refused.append(file.name)
        return cls(sizes, tuple(refused), _checkpoints_in(sizes))

    def __contains__(self, name: str) -> bool:
        return name in self.sizes

    @property
    def run_folders(self) -> tuple[str, ...]:
        """Folders that hold a run, by name, with ``/`` at their end."""
        told = {name.removesuffix("run.json") for name in self.sizes if PurePosixPath(name).name == "run.json"}
        return tuple(sorted(told | self._checkpoints.keys()))

    def checkpoints(self, run_folder: str) -> tuple[ListedCheckpoint, ...]:
        """The checkpoints of a run, the newest first, as far as names tell."""
        return self._checkpoints.get(run_folder, ())

    def small_files(self, run_folder: str) -> tuple[str, ...]:
        """The files that say how a run stands."""
        return tuple(name for part in _STATUS if (name := run_folder + part) in self.sizes)

    def below(self, folder: str) -> tuple[str, ...]:
        """All files below a folder that is named with ``/`` at its end."""
        return tuple(sorted(name for name in self.sizes if name.startswith(folder)))

    def problems(self, run_folder: str, manifest: Manifest) -> list[str]:
        """What is not there of a checkpoint, or not with the size that its manifest names; one line each."""
        found = []
        for file, size_bytes in manifest.files.items():
            name = run_folder + file
            if name not in self.sizes:
                found.append(f"{name} is not in the output")
            elif self.sizes[name] not in (None, size_bytes):
                found.append(f"{name} has {self.sizes[name]} bytes in the output instead of {size_bytes}")
        return found


def is_plain(name: str) -> bool:
    """Whether a name is text and stays below the folder that it is joined to; on Windows ``:`` leads elsewhere."""
    if any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that no database and no JSON can hold
        return False
    parts = name.split("/")
    odd = "\\\0:" if os.name == "nt" else "\\\0"
    return bool(name) and not any(part in ("", ".", "..") or set(odd) & set(part) for part in parts)


def _checkpoints_in(names: Iterable[str]) -> dict[str, tuple[ListedCheckpoint, ...]]:
    found: dict[str, list[ListedCheckpoint]] = defaultdict(list)
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is None or _NEVER & set(name.split("/")):
            continue
        folder = match.group(1)
        found[folder].append(
            ListedCheckpoint(folder, match.group(2), int(match.group(3)), int(match.group(4) or 0))
        )
    return {
        folder: tuple(sorted(each, key=lambda one: (one.step, one.save), reverse=True))
        for folder, each in found.items()
    }
