"""What a tick can do next, and what it has learnt so far: the words of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.platforms.protocol import Observation, Pace, Quota, Resource
from perdure.relay.records import RelayState


@dataclass(frozen=True)
class Look:
    """Ask whether a session that was given up has turned up after all."""

    number: int


@dataclass(frozen=True)
class Find:
    """Ask whether a session was begun of which nobody knows."""

    number: int


@dataclass(frozen=True)
class Doubt:
    """Note that from now on nobody knows whether a session was begun."""

    number: int


@dataclass(frozen=True)
class Abandon:
    """Give a session up that does not turn up; its slug is not used again."""

    number: int


@dataclass(frozen=True)
class Adopt:
    """Take a session that turned up late for the relay's open one."""

    number: int


@dataclass(frozen=True)
class Dismiss:
    """Note that a double has ended; what it left is not used."""

    number: int


@dataclass(frozen=True)
class Observe:
    """Ask how a session stands."""

    number: int


@dataclass(frozen=True)
class Halt:
    """Ask the platform to end a session, at any price with ``now``."""

    number: int
    now: bool
    why: str


@dataclass(frozen=True)
class End:
    """Note that a session has ended."""

    number: int
    why: str = ""


@dataclass(frozen=True)
class Collect:
    """Bring what it left, and judge it."""

    number: int


@dataclass(frozen=True)
class AskQuota:
    """Ask for the hours that are left."""


@dataclass(frozen=True)
class Intend:
    """Put down that a session is about to be submitted."""

    accelerator: str
    window_s: float


@dataclass(frozen=True)
class Withdraw:
    """Take back an intent that was never tried."""

    number: int


@dataclass(frozen=True)
class Submit:
    """Submit the session that was intended in this tick."""

    number: int


@dataclass(frozen=True)
class Fetch:
    """Bring the finished run."""


@dataclass(frozen=True)
class Close:
    """Bring the relay to its end, or to where it needs its user."""

    state: RelayState
    reason: str


@dataclass(frozen=True)
class Rest:
    """Nothing more in this tick.

    Attributes:
        state: How the relay stands meanwhile.
        reason: What it waits for, in a sentence.
        wake_s: When to look again, seconds since 1970; None for never.
    """

    state: RelayState
    reason: str
    wake_s: float | None


Action = (
    Look
    | Find
    | Doubt
    | Abandon
    | Adopt
    | Dismiss
    | Observe
    | Halt
    | End
    | Collect
    | AskQuota
    | Intend
    | Withdraw
    | Submit
    | Fetch
    | Close
    | Rest
)


@dataclass(frozen=True)
class Terms:
    """What the platform offers to this relay.

    Attributes:
        pace: How often it may be asked.
        resource: Whose hours the relay's accelerator uses; None where none are counted.
        window_s: Longest window with that accelerator, as far as the user wants it.
        plain_window_s: Longest window without one.
    """

    pace: Pace
    resource: Resource | None
    window_s: float
    plain_window_s: float


@dataclass(frozen=True)
class Seen:
    """What this tick has learnt. A tick that dies forgets it; the next one asks again.

    Attributes:
        looked: Abandoned sessions that were looked for.
        sought: Sessions of unknown fate that were asked for and not found.
        observed: How sessions stand.
        halted: Sessions that were asked to end, and what became of that.
        lagging: Sessions whose output is still on its way.
        quota: Hours that are left; None before they were asked for.
        fresh: The session that was intended in this tick and not tried yet; 0 for none.
        refused: Code of the refusal that this tick got.
        said: What the refusal said.
        plain: Whether the session that was refused was one without an accelerator.
        fetched: Whether the finished run is here.
    """

    looked: frozenset[int] = frozenset()
    sought: frozenset[int] = frozenset()
    observed: Mapping[int, Observation] = field(default_factory=dict)
    halted: Mapping[int, str] = field(default_factory=dict)
    lagging: frozenset[int] = frozenset()
    quota: tuple[Quota, ...] | None = None
    fresh: int = 0
    refused: str = ""
    said: str = ""
    plain: bool = False
    fetched: bool = False
