"""Files kept of a trainer that is not ours: ``<root>/carried/<training>/``, with an index replaced atomically."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from perdure.core.errors import CorruptError, FormatVersionError, UnreadableError
from perdure.core.files import fsync_dir, write_json
from perdure.core.intervals import format_bytes
from perdure.core.runs import read_json
from perdure.core.say import say, warn
from perdure.relay.evidence import problem_of

FORMAT_VERSION = 1
INDEX = "index.json"
TEMPORARY = ".new.tmp"
KEEP = 2
"""How many files of a training are kept: the newest, and the one before it."""

_SEARCH_DEPTH = 8
_CHUNK = 1 << 22
_KEPT_NAME = re.compile(r"\d{6,}-[0-9a-f]{8}-")


@dataclass(frozen=True)
class Carried:
    """One kept file.

    Attributes:
        folder: Where it is kept.
        number: Counts the files kept of a training over all its sessions; a newer file has a greater one. Clocks of
            different machines are not compared.
        file: Its name in ``folder``.
        source: Where the trainer wrote it, relative to its working folder unless absolute.
        bytes: Its size.
        digest: xxh3_128 of its bytes.
        mtime_ns: When the trainer wrote it.
    """

    folder: Path
    number: int
    file: str
    source: str
    bytes: int
    digest: str
    mtime_ns: int

    def is_of(self, size: int, mtime_ns: int) -> bool:
        """Whether it was made of a file that ``stat`` describes so."""
        return (self.bytes, self.mtime_ns) == (size, mtime_ns)

    def problem(self) -> str:
        """What is wrong with the kept file; empty if it is what was kept.

        Raises:
            OSError: It cannot be read.
        """
        path = self.folder / self.file
        if not path.exists():
            return f"{path} is gone"
        if path.stat().st_size != self.bytes:
            return f"{path} has {path.stat().st_size} bytes, kept were {self.bytes}"
        return "" if _digest(path) == self.digest else f"{path} is damaged: its digest differs"

    def put_back(self) -> Path:
        """Put a copy where the trainer left it; what is there and differs becomes ``<name>.replaced``."""
        place = Path(self.source)
        if place.exists():
            if place.stat().st_size == self.bytes and _digest(place) == self.digest:
                return place
            os.replace(place, place.with_name(place.name + ".replaced"))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.folder / self.file, place)
        return place

    def describe(self) -> str:
        """A short text for people."""
        return f"{self.source} ({format_bytes(self.bytes)}, number {self.number})"


class CarriedFiles:
    """The files kept of one training.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[Carried] = []
        self._about: dict[str, Any] = {}

    def open(self, pattern: str, command: Sequence[str]) -> None:
        """Make the folder and read what is there.

        Raises:
            CorruptError: The index is damaged.
            FormatVersionError: It was written by a newer Perdure.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._about = {"format_version": FORMAT_VERSION, "pattern": pattern, "command": shlex.join(command)}
        self._files = read_index(self.folder)
        named = {file.file for file in self._files}
        for path in self.folder.iterdir():  # what a kill between two steps left
            if path.name == TEMPORARY or (_KEPT_NAME.match(path.name) and path.name not in named):
                path.unlink()

    @property
    def files(self) -> tuple[Carried, ...]:
        """The kept files, newest last."""
        return tuple(self._files)

    @property
    def newest(self) -> Carried | None:
        """The newest kept file."""
        return self._files[-1] if self._files else None

    def find(self, source: str) -> Carried | None:
        """The newest file kept of a source."""
        return next((file for file in reversed(self._files) if file.source == source), None)

    def keep(self, source: Path, name: str, mtime_ns: int, is_same: Callable[[], bool]) -> str | None:
        """Copy a file in, if it verifies; the ones already kept are touched only after that.

        Args:
            source: The file.
            name: What it is known by.
            mtime_ns: When it was written.
            is_same: Whether it is still the file that was looked at.

        Returns:
            Why it was not kept, empty if it was; None if it changed while it was copied.
        """
        temporary = self.folder / TEMPORARY
        try:
            digest = _copy(source, temporary)
            problem = problem_of(temporary)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            return "the disk is full" if full else f"it cannot be copied: {error}"
        if problem or not is_same():
            temporary.unlink()
            return problem if is_same() else None
        number = self._files[-1].number + 1 if self._files else 1
        self._commit(temporary, number, name, digest, mtime_ns)
        return ""

    def adopt(self, good: Carried) -> Carried:
        """Keep a file of an earlier session's output here too, under its number.

        Raises:
            UnreadableError: It cannot be copied.
        """
        self._files = [file for file in self._files if file.number <= good.number]
        if good.folder == self.folder:
            return good
        temporary = self.folder / TEMPORARY
        try:
            digest = _copy(good.folder / good.file, temporary)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise UnreadableError(
                f"a carried file cannot be copied: {error}", path=good.folder / good.file
            ) from error
        return self._commit(temporary, good.number, good.source, digest, good.mtime_ns)

    def say_others(self) -> None:
        """Tell of files that the same pattern brought in under another command: they are another training's."""
        for folder in sorted(self.folder.parent.iterdir()):
            about, _ = read_json(folder / INDEX)
            if folder != self.folder and about.get("pattern") == self._about["pattern"]:
                say(f"files of another command are kept in {folder} and not used: {about.get('command')}")

    def _commit(self, temporary: Path, number: int, source: str, digest: str, mtime_ns: int) -> Carried:
        size = temporary.stat().st_size
        name = f"{number:06d}-{digest[:8]}-{Path(source).name}"
        os.replace(temporary, self.folder / name)
        fsync_dir(self.folder)
        kept = Carried(self.folder, number, name, source, size, digest, mtime_ns)
        files = sorted([*self._files, kept], key=lambda file: file.number)
        dropped, self._files = files[:-KEEP], files[-KEEP:]
        entries = [{k: v for k, v in asdict(file).items() if k != "folder"} for file in self._files]
        write_json(self.folder / INDEX, {**self._about, "files": entries})
        for file in dropped:
            (self.folder / file.file).unlink(missing_ok=True)
        return kept


def newest_good(files: CarriedFiles, inputs: Sequence[Path]) -> Carried | None:
    """The newest kept file that verifies, here or below the inputs; it is kept here too.

    Returns:
        None only if there is none at all.

    Raises:
        CorruptError: There are some, and none verifies.
        UnreadableError: It could not be looked.
        FormatVersionError: An index was written by a newer Perdure.
    """
    candidates = list(files.files)
    for folder in _find(files.folder.name, inputs):
        candidates += read_index(folder)
    bad = []
    for candidate in sorted(candidates, key=lambda file: file.number, reverse=True):
        try:
            problem = candidate.problem()
        except OSError as error:
            problem = f"{candidate.folder / candidate.file} cannot be read: {error.strerror}"
        if not problem:
            return files.adopt(candidate)
        warn(f"a carried file is skipped: {problem}")
        bad.append(problem)
    if bad:
        raise CorruptError(
            "no carried checkpoint file verifies",
            path=files.folder,
            problems=bad,
            hint="a fresh start would lose them; move the folder away if that is what you want",
        )
    return None


def read_index(folder: Path) -> list[Carried]:
    """The files that an index names, newest last; none where there is no index.

    Raises:
        CorruptError: It is damaged.
        FormatVersionError: It was written by a newer Perdure.
    """
    document, problem = read_json(folder / INDEX)
    if not document and not problem:
        return []
    version = document.get("format_version", 0)
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{folder / INDEX} has format version {version}",
            path=folder / INDEX,
            found=version,
            supported=FORMAT_VERSION,
            hint="install a newer perdure",
        )
    try:
        entries = [Carried(folder=folder, **entry) for entry in document["files"]]
    except (KeyError, TypeError) as error:
        raise CorruptError(problem or f"{folder / INDEX} is damaged: {error}", path=folder / INDEX) from error
    return sorted(entries, key=lambda file: file.number)


def _find(name: str, inputs: Sequence[Path]) -> Iterator[Path]:
    """Folders ``carried/<name>`` anywhere below the inputs."""

    def refuse(error: OSError) -> None:
        raise UnreadableError(
            f"an input folder cannot be listed: {error}", path=str(error.filename), hint="check its permissions"
        ) from error

    for top in inputs:
        if not top.exists():
            continue
        for parent, folders, _ in os.walk(top, onerror=refuse):
            if len(Path(parent).relative_to(top).parts) >= _SEARCH_DEPTH:
                folders.clear()
            if os.path.basename(parent) == "carried" and name in folders:
                yield Path(parent) / name


def _copy(source: Path, target: Path) -> str:
    """Copy a file durably; the digest of the bytes that were read."""
    digest = xxhash.xxh3_128()
    with open(source, "rb") as file, open(target, "wb") as copy:
        size = os.fstat(file.fileno()).st_size
        if size:
            os.posix_fallocate(copy.fileno(), 0, size)  # a full disk is seen before anything is written
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
        copy.truncate()
        copy.flush()
        os.fsync(copy.fileno())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
