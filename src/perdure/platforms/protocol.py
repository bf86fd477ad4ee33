"""What a place where sessions run can be asked: the seam between the relay and every platform.

A platform is asked by one process at a time. Every call has a time limit. A call raises errors of
``perdure.core.errors`` only: ``RefusedError``, ``NotThereError``, ``CredentialsError``, ``TransientPlatformError``
(nothing was done) or ``UncertainError`` (nobody knows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

SessionState = Literal["queued", "running", "stopping", "complete", "failed", "stopped", "unknown", "missing"]
"""``"unknown"``: the platform used a word that is not known here, never taken for an end. ``"missing"``: no such
session, or not for this account."""

ENDED: frozenset[SessionState] = frozenset({"complete", "failed", "stopped"})

Resource = Literal["gpu", "tpu"]


@dataclass(frozen=True)
class Handle:
    """One session that was submitted; plain, so that it can be stored and used by another process.

    Attributes:
        platform: Name of the platform.
        ref: What the platform calls it: ``owner/slug`` on Kaggle, a folder locally.
        version: Version of the kernel, 1 for the first; 0 if the platform did not say.
        url: Page for people; empty if there is none.
    """

    platform: str
    ref: str
    version: int = 0
    url: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For a database or JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Handle:
        """The way back."""
        return cls(str(values["platform"]), str(values["ref"]), int(values["version"]), str(values["url"]))


@dataclass(frozen=True)
class Observation:
    """What the platform says of a session.

    Attributes:
        state: In our words.
        word: In the platform's.
        message: Its reason for a failure; empty if it gave none.
    """

    state: SessionState
    word: str = ""
    message: str = ""

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.state in ENDED


@dataclass(frozen=True)
class OutputFile:
    """A file in the output of a session.

    Attributes:
        name: Path below the output folder, with ``/``.
        size_bytes: Its size; None if the platform does not say.
    """

    name: str
    size_bytes: int | None


@dataclass(frozen=True)
class Log:
    """What a session has printed.

    Attributes:
        lines: Lines, oldest first.
        complete: Whether the session has ended and this is all of it.
    """

    lines: tuple[str, ...]
    complete: bool


@dataclass(frozen=True)
class Quota:
    """Hours of one kind of accelerator, in the present period.

    Attributes:
        resource: ``"gpu"`` or ``"tpu"``.
        used_s: Seconds that are gone.
        reserved_s: Seconds that sessions which run now may still use.
        allowed_s: Seconds in a period.
        refresh_at_s: When the next period begins, seconds since 1970 (UTC); None if the platform does not say.
    """

    resource: Resource
    used_s: float
    reserved_s: float
    allowed_s: float
    refresh_at_s: float | None

    @property
    def left_s(self) -> float:
        """Seconds that are neither used nor reserved."""
        return max(0.0, self.allowed_s - self.used_s - self.reserved_s)


@dataclass(frozen=True)
class Submission:
    """One session to be started.

    Attributes:
        slug: Name of this session, used by no other session ever: 6 to 50 characters of ``a-z0-9-``.
        cargo: The bundle: a ``.tar.xz`` of the user's project and of Perdure.
        order: What the session is to do; JSON-able, read by ``perdure.relay.inside`` there.
        accelerator: ``"none"`` or a name of ``Platform.accelerators``.
        window_s: Seconds until the platform is to end it; the session stops itself earlier.
        internet: Whether it may reach the network.
        sessions: Earlier sessions whose outputs it is to see, read-only.
        datasets: Data sets it is to see: ``owner/slug``.
        competitions: Competitions whose data it is to see.
        models: Models it is to see: ``owner/model/framework/variation/version``.
    """

    slug: str
    cargo: Path
    order: Mapping[str, Any]
    accelerator: str = "none"
    window_s: float = 12 * 3600.0
    internet: bool = False
    sessions: tuple[Handle, ...] = ()
    datasets: tuple[str, ...] = ()
    competitions: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accelerator:
    """An accelerator by the name that users know.

    Attributes:
        name: ``"t4x2"``, ``"none"``.
        word: What the platform calls it.
        resource: Whose hours it uses; None for the processor alone.
        cards: How many cards it has; 0 for none.
        card: What NVML calls such a card, a part of its name: ``"T4"``; empty where it is no NVIDIA card.
        retired: Why it can no longer be had, and what to take instead; empty if it can.
    """

    name: str
    word: str
    resource: Resource | None
    cards: int = 0
    card: str = ""
    retired: str = ""


@dataclass(frozen=True)
class Stopping:
    """What became of the wish that a session ends.

    Attributes:
        done: Whether it has ended, or is certain to.
        what: What was done, or why nothing could be, as a sentence for people.
    """

    done: bool
    what: str


@dataclass(frozen=True)
class Pace:
    """How often a platform may be asked, in seconds.

    Attributes:
        poll_s: Between two looks at a session.
        settle_s: How long a submitted session may stay invisible before it counts as never begun.
        lag_s: How long files of an ended session may stay invisible before they count as not there.
        retry_s: First wait after a refusal for lack of room, or a transient error; doubled up to ``retry_most_s``.
        retry_most_s: The longest such wait.
    """

    poll_s: float = 60.0
    settle_s: float = 180.0
    lag_s: float = 900.0
    retry_s: float = 60.0
    retry_most_s: float = 1800.0


Progress = Callable[[int, int], None]
"""Called with bytes that are there, and bytes in all."""


class Platform(Protocol):
    """A place where sessions run.

    Attributes:
        name: ``"kaggle"``, ``"local"``, ``"emulator"``.
        pace: How often it may be asked.
        accelerators: What it offers, the default first.
    """

    @property
    def name(self) -> str: ...
    @property
    def pace(self) -> Pace: ...
    @property
    def accelerators(self) -> Sequence[Accelerator]: ...

    def window_s(self, accelerator: str) -> float:
        """The longest window of a session with this accelerator."""

    def account(self) -> str:
        """Whose account it is. Raises ``CredentialsError`` without one: asked before anything else is done."""

    def quota(self) -> tuple[Quota, ...]:
        """Hours of each kind of accelerator; empty where nothing is counted."""

    def submit(self, submission: Submission) -> Handle:
        """Start a session. After an ``UncertainError``, ask ``find`` before trying again."""

    def find(self, slug: str) -> Handle | None:
        """The session that was submitted under this slug; None if there is none, or it cannot be seen yet."""

    def observe(self, handle: Handle) -> Observation:
        """How it stands."""

    def logs(self, handle: Handle) -> Log:
        """What it has printed so far; may lag behind."""

    def files(self, handle: Handle) -> tuple[OutputFile, ...]:
        """All files of its output, whatever the number of pages; empty before its end."""

    def fetch(
        self, handle: Handle, names: Sequence[str], folder: Path, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Bring files of its output to ``folder``, under their names; what is there in part is gone on with.

        A file is complete, or it does not have its name yet. Digests are the caller's to check.
        """

    def stop(self, handle: Handle, *, now: bool) -> Stopping:
        """Ask it to end. With ``now``, at any price: its output may be lost."""


@runtime_checkable
class DataSets(Protocol):
    """A platform that has data sets, and shows what is in them."""

    def dataset_text(self, dataset: str, name: str) -> str:
        """A small text file of a data set that is ready.

        Raises ``NotThereError`` if there is none, and ``TransientPlatformError`` while a version is processed.
        """
