"""Carrying a trainer that is not ours: its own checkpoint files are verified, kept, pruned and handed on.

Nothing is known of what is in them, so exactness is not promised; that the last good file survives is.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from perdure.core.errors import ConfigError, RunLockedError
from perdure.core.intervals import format_bytes
from perdure.core.say import say, warn
from perdure.relay.carried import KEEP, CarriedFiles, newest_good

PLACE = "{path}"
"""Stands for the path of the checkpoint file in ``--resume-with``."""

_MARGIN_SHARE = 0.05
_MARGIN_MOST_S = 30.0
_SHRUNK = 0.5
_MOMENT_S = 0.3


@dataclass(frozen=True)
class Carry:
    """What a trainer leaves and how it takes it back.

    Args:
        pattern: Glob pattern of its checkpoint files, relative to the working folder: ``runs/**/last.pt``.
        resume_with: Arguments that make it go on from one: ``--resume {path}``.

    Raises:
        ConfigError: ``resume_with`` does not say where the path belongs, or cannot be split into words.
    """

    pattern: str
    resume_with: str

    def __post_init__(self) -> None:
        if PLACE not in self.resume_with:
            raise ConfigError(
                f"--resume-with must say where the path belongs, got {self.resume_with!r}",
                hint="write {path} there: --resume-with '--resume {path}'",
            )
        self.arguments(Path("x"))

    def arguments(self, path: Path) -> tuple[str, ...]:
        """The arguments that hand on a file."""
        try:
            words = shlex.split(self.resume_with)
        except ValueError as error:
            raise ConfigError(f"--resume-with cannot be split into words: {self.resume_with!r}: {error}") from error
        return tuple(word.replace(PLACE, str(path)) for word in words)


class Carrier:
    """Keeps the checkpoint files of one training over its sessions.

    Files that were there before the session are never taken: they may come from anywhere.

    Args:
        carry: What to keep and how to hand it on.
        command: The command without the resume arguments; another command is another training.
        root: Folder of runs; files are kept in ``<root>/carried/<training>``.
        inputs: Folders in which files kept by earlier sessions are looked for.

    Raises:
        RunLockedError: Another process carries this training.
    """

    def __init__(self, carry: Carry, command: Sequence[str], *, root: Path, inputs: Sequence[Path]) -> None:
        self._carry = carry
        self._inputs = tuple(inputs)
        name = _name(carry.pattern, command)
        self._files = CarriedFiles(root.absolute() / "carried" / name)
        self._lock = _lock(self._files.folder)
        self._files.open(carry.pattern, command)
        self._before: dict[str, _Look] = {}
        self._since_s: dict[str, float] = {}
        self._refused: set[tuple[str, _Look]] = set()
        self._slowest_s = 0.0

    def __enter__(self) -> Self:
        say(f"carrying {self._carry.pattern}: kept in {self._files.folder}; exactness is not promised")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def resume_arguments(self) -> tuple[str, ...]:
        """Put the newest good file where the trainer left it; the arguments that hand it on, none if there is none.

        Raises:
            CorruptError: There are files, and none of them verifies.
            UnreadableError: It could not be looked.
        """
        self._files.say_others()
        good = newest_good(self._files, self._inputs)
        arguments: tuple[str, ...] = ()
        if good is None:
            say("no carried checkpoint: a fresh start")
        else:
            path = good.put_back()
            arguments = self._carry.arguments(path)
            say(f"the trainer goes on from {good.describe()}: {shlex.join(arguments)}")
        self._before = self._looks()
        return arguments

    def look(self, *, last: bool = False) -> None:
        """Keep the newest files that have come since the start, if they are whole and do not change for a moment.

        Args:
            last: The trainer has ended: what is there now does not change any more.
        """
        looks = self._looks()
        fresh = [source for source, look in looks.items() if self._before.get(source) != look]
        for source in sorted(fresh, key=lambda source: (looks[source].mtime_ns, numbers(source)))[-KEEP:]:
            look = looks[source]
            if self._is_settled(source, look):
                continue
            self._since_s.setdefault(source, time.monotonic())
            if last or _rests(source, look):
                self._keep(source, look)

    def margin_s(self, window_s: float) -> float:
        """How long before the deadline the trainer is told to stop, in seconds: learned from its saves so far."""
        return min(_MARGIN_MOST_S, _MARGIN_SHARE * window_s) + 2 * self._slowest_s

    def summary(self) -> str:
        """What the next session will begin with."""
        newest = self._files.newest
        return f"kept for the next session: {newest.describe()}" if newest else "no checkpoint of it could be kept"

    def _is_settled(self, source: str, look: _Look) -> bool:
        kept = self._files.find(source)
        return (kept is not None and kept.is_of(look.size, look.mtime_ns)) or (source, look) in self._refused

    def _keep(self, source: str, look: _Look) -> None:
        problem = self._shrunk(source, look)
        if not problem:
            answer = self._files.keep(Path(source), source, look.mtime_ns, lambda: _look(source) == look)
            if answer is None:  # it changed under our hands: judged at the next look
                return
            problem = answer
        since_s = self._since_s.pop(source)
        if problem:
            self._refused.add((source, look))
            warn(f"{source} is not kept: {problem}; {self.summary()}")
        else:
            self._slowest_s = max(self._slowest_s, time.monotonic() - since_s)

    def _shrunk(self, source: str, look: _Look) -> str:
        """ultralytics strips the optimizer from ``last.pt`` at its end, and training cannot go on from that."""
        kept = self._files.find(source)
        if kept is None or look.size >= _SHRUNK * kept.bytes:
            return ""
        return f"it shrank from {format_bytes(kept.bytes)} to {format_bytes(look.size)}, as if it had been stripped"

    def _looks(self) -> dict[str, _Look]:
        sources = glob.glob(self._carry.pattern, recursive=True)
        mine = str(self._files.folder.parent)
        looks = {s: _look(s) for s in sources if not os.path.abspath(s).startswith(mine + os.sep)}
        return {source: look for source, look in looks.items() if look is not None}


@dataclass(frozen=True)
class _Look:
    """What ``stat`` says of a file."""

    size: int
    mtime_ns: int


def _look(source: str) -> _Look | None:
    try:
        found = os.stat(source)
    except FileNotFoundError:
        return None
    return _Look(found.st_size, found.st_mtime_ns) if os.path.isfile(source) else None


def _rests(source: str, look: _Look) -> bool:
    """Whether nobody writes to it for a moment."""
    time.sleep(_MOMENT_S)
    return _look(source) == look


def numbers(source: str) -> tuple[int, ...]:
    """The numbers in a path, so that ``step_10000`` comes after ``step_9000``."""
    return tuple(int(digits) for digits in re.findall(r"\d+", source))


def _name(pattern: str, command: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join((pattern, *command)).encode()).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9.]+", "-", pattern).strip("-.")[:40]
    return f"{words}-{digest}"


def _lock(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise RunLockedError(
            f"another process carries this training in {folder}", path=folder, pid=0, host="", hint="end it first"
        ) from error
    return descriptor
