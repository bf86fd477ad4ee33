"""What two executions of a script left: the same, or where it differs first."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.checkpoint.compare import compare
from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.search import Found, find_checkpoints

RUNS = "perdure"
"""Folder of runs in the output of a rehearsed session."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Difference:
    """One difference.

    Attributes:
        where: The run and the entry in its state, or the file.
        what: The difference in words.
    """

    where: str
    what: str

    @property
    def is_generator(self) -> bool:
        """Whether it lies in the state of a global random generator of a run."""
        return re.match(r"[^:]+: generators\b", self.where) is not None

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def newest_checkpoints(outputs: Sequence[Path]) -> dict[str, Found]:
    """The newest readable checkpoint of each run in these outputs."""
    newest: dict[str, Found] = {}
    for output in outputs:
        for found in find_checkpoints(output / RUNS):
            name = found.manifest.run if found.manifest is not None else ""
            if name and (name not in newest or found.key > newest[name].key):
                newest[name] = found
    return newest


def compare_runs(chain: Sequence[Path], twin: Path) -> list[Difference]:
    """Differences between the final states of the runs of a chain of sessions, and of its uninterrupted twin.

    Metrics are left out: speeds and times are logged too, and differ from one execution to the next.

    Args:
        chain: Outputs of the sessions.
        twin: Output of the twin.
    """
    ours, theirs = newest_checkpoints(chain), newest_checkpoints([twin])
    differences = []
    for name in sorted({**ours, **theirs}):
        if name not in theirs or name not in ours:
            which = "the chain of sessions" if name in ours else "the uninterrupted run"
            differences.append(Difference(name, f"only {which} has a checkpoint of this run"))
            continue
        one, other = open_checkpoint(ours[name].folder), open_checkpoint(theirs[name].folder)
        found = [each for each in compare(one, other) if not each.path.startswith("metrics")]
        differences += [Difference(f"{name}: {each.path}", each.what) for each in found]
    return differences


def compare_files(chain: Path, twin: Path) -> list[Difference]:
    """Differences between the files that two executions left in their working folders, runs of Perdure left out."""
    ours, theirs = _files(chain), _files(twin)
    differences = []
    for name in sorted({*ours, *theirs}):
        if name not in theirs:
            differences.append(Difference(name, "only the chain of sessions left this file"))
        elif name not in ours:
            differences.append(Difference(name, "only the uninterrupted run left this file"))
        elif _sha256(ours[name]) != _sha256(theirs[name]):
            differences.append(Difference(name, "the contents differ"))
    return differences


def count_files(output: Path) -> int:
    """How many files a session left, runs of Perdure left out."""
    return len(_files(output))


def _files(output: Path) -> dict[str, Path]:
    files = {}
    for parent, folders, names in os.walk(output):
        if Path(parent) == output and RUNS in folders:
            folders.remove(RUNS)
        files.update({str(Path(parent, name).relative_to(output)): Path(parent, name) for name in names})
    return files


def _sha256(path: Path) -> str:
    if path.is_symlink():
        return os.readlink(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
