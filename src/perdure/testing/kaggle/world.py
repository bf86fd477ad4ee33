"""What there is on the emulated platform, kept in ``world.json`` for an emulator that is started again."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.files import write_json
from perdure.testing.kaggle.rules import Rules, known
from perdure.testing.kaggle.switches import SwitchBoard, Switches

QUEUED, RUNNING, ENDED = "queued", "running", "ended"


@dataclass
class EmulatedSession:
    """One session, also after its kernel is deleted.

    Attributes:
        id: Its number.
        slug: Of its kernel.
        version: Of its kernel.
        machine: The machine it was given, in the platform's word.
        resource: ``"cpu"``, ``"gpu"``, ``"tpu"``.
        pushed_s: When it was accepted, seconds since 1970; so are all times here.
        stage: ``"queued"``, ``"running"``, ``"ended"``.
        timeout_s: What the push asked for; None for nothing.
        started_s: When it began; None before.
        ended_s: When it ended; None before.
        code: Return code of its main process; None before.
        how: How it ended, in ``LocalSession``'s words.
        words: What its status was: time, word, failure message.
        mounts: Its inputs: place below the input root, and folder.
        internet: Whether it has any.
        lost: Its output is gone.
        deleted: Its kernel was deleted, or it was cancelled.
    """

    id: int
    slug: str
    version: int
    machine: str
    resource: str
    pushed_s: float
    stage: str = QUEUED
    timeout_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    code: int | None = None
    how: str = ""
    words: list[tuple[float, str, str]] = field(default_factory=list)
    mounts: dict[str, str] = field(default_factory=dict)
    internet: bool = False
    lost: bool = False
    deleted: bool = False

    def say(self, now_s: float, word: str, message: str = "") -> None:
        """Change its status."""
        self.words.append((now_s, word, message))

    def word(self, at_s: float) -> tuple[str, str]:
        """Its status at a time: word and failure message."""
        past = [each for each in self.words if each[0] <= at_s]
        return (past[-1][1], past[-1][2]) if past else ("QUEUED", "")

    @property
    def completed(self) -> bool:
        """Whether it ended well."""
        return bool(self.words) and self.words[-1][1] == "COMPLETE"


@dataclass
class Kernel:
    """A kernel.

    Attributes:
        id: Its number.
        slug: Its name in addresses.
        title: Its title.
        created_s: When it was first pushed.
        versions: What was pushed, without the source: request by version number, as text for JSON.
        sessions: Session by version number.
    """

    id: int
    slug: str
    title: str
    created_s: float
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """Its newest version."""
        return max(int(number) for number in self.versions)


@dataclass
class DatasetVersion:
    """A version of a data set.

    Attributes:
        number: From 1.
        created_s: When it was made.
        ready_s: When it is ready.
        notes: What its maker wrote.
    """

    number: int
    created_s: float
    ready_s: float
    notes: str = ""


@dataclass
class Dataset:
    """A data set.

    Attributes:
        id: Its number.
        slug: Its name in addresses.
        title: Its title.
        created_s: When it was made.
        private: Whether others see it.
        license: Its license.
        versions: Its versions that are still there.
    """

    id: int
    slug: str
    title: str
    created_s: float
    private: bool = True
    license: str = "unknown"
    versions: list[DatasetVersion] = field(default_factory=list)


@dataclass
class World:
    """All there is.

    Attributes:
        born_s: When it was made; periods of the quota are counted from here.
        next_id: The next free number.
        kernels: By slug.
        sessions: By number.
        datasets: By slug.
        uploads: Files that were announced, by token: name, size, finished.
    """

    born_s: float = 0.0
    next_id: int = 1000
    kernels: dict[str, Kernel] = field(default_factory=dict)
    sessions: dict[int, EmulatedSession] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)

    def number(self) -> int:
        """A number that nothing has yet."""
        self.next_id += 1
        return self.next_id


class Store:
    """The world, its rules and its switches, for all threads.

    Args:
        folder: Where everything is.
        rules: What it is like.

    Attributes:
        folder: Where everything is.
        rules: What it is like.
        board: The switches.
        lock: Held by whoever reads or changes the world.
        world: The world.
    """

    def __init__(self, folder: Path, rules: Rules) -> None:
        self.folder = folder
        self.rules = rules
        self.board = SwitchBoard(folder / "switches.json")
        self.lock = threading.RLock()
        self._path = folder / "world.json"
        self.world = _read(self._path)
        if not self.world.born_s:
            self.world.born_s = time.time()
            self.save()

    @property
    def switches(self) -> Switches:
        """The switches in force."""
        return self.board.now

    def save(self) -> None:
        """Keep the world; to be called with the lock."""
        write_json(self._path, asdict(self.world))

    def platform_s(self) -> float:
        """What the platform's own clock says."""
        return time.time() + self.switches.clock_offset_s

    def trouble(self, text: str) -> None:
        """Note an error of the emulator itself, in ``trouble.log``."""
        with self.lock, open(self.folder / "trouble.log", "a", encoding="utf-8") as file:
            file.write(text)

    def session_folder(self, session: EmulatedSession) -> Path:
        """Where the files of a session are."""
        return self.folder / "sessions" / str(session.id)

    def dataset_folder(self, dataset: Dataset, number: int) -> Path:
        """Where the files of a version of a data set are."""
        return self.folder / "datasets" / dataset.slug / str(number)


def _read(path: Path) -> World:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return World()
    world = World(born_s=values["born_s"], next_id=values["next_id"], uploads=values["uploads"])
    world.kernels = {slug: Kernel(**known(Kernel, each)) for slug, each in values["kernels"].items()}
    for number, each in values["sessions"].items():
        session = EmulatedSession(**known(EmulatedSession, each))
        session.words = [(at_s, word, message) for at_s, word, message in session.words]
        world.sessions[int(number)] = session
    for slug, each in values["datasets"].items():
        versions = [DatasetVersion(**known(DatasetVersion, one)) for one in each["versions"]]
        world.datasets[slug] = Dataset(**{**known(Dataset, each), "versions": versions})
    return world
