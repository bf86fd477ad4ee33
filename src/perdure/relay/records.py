"""What a relay is, as it is stored: frozen records that the plan reads, and that every part shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from perdure.platforms.protocol import Handle

RelayState = Literal["active", "waiting", "stopping", "stopped", "done", "needs-you"]
"""``"active"``: a session runs or is about to. ``"waiting"``: for hours, for a slot, or for the platform to answer.
``"stopping"``: no further session. ``"stopped"``: by the user. ``"needs-you"``: it cannot go on by itself."""

SessionStage = Literal["intended", "submitted", "ended", "collected", "abandoned"]
"""``"intended"``: about to be submitted, and nobody knows whether it was. ``"abandoned"``: it never began."""

Outcome = Literal["", "finished", "paused", "failed", "killed", "refused", "no-output"]
"""What a session came to. ``"refused"``: it ended itself because it had another accelerator than asked for.
``"killed"``: the platform ended it. ``"no-output"``: it left nothing that can be gone on from."""

WhenExhausted = Literal["wait", "cpu", "stop"]

Stop = Literal["", "kindly", "now"]
"""What the user wants of the session that runs, when he stops a relay."""


@dataclass(frozen=True)
class RelayOrder:
    """What the user asked for when the relay was started; never changed afterwards.

    Attributes:
        name: Name of the relay, unique among those of this machine.
        target: The script or notebook, as a path below the project.
        arguments: Its arguments.
        environment: Environment variables of its sessions.
        project: The folder on this machine that the bundle was made of; for people.
        platform: ``"kaggle"``, ``"local"`` or ``"emulator"``.
        place: Settings with which a new process reaches that platform again; JSON-able, no secrets.
        accelerator: By the name that users know.
        window_s: Seconds of a session.
        internet: Whether sessions may reach the network.
        datasets: As in ``Submission``.
        competitions: As in ``Submission``.
        models: As in ``Submission``.
        when_exhausted: What to do when the week's hours are used up.
        mirror: Where checkpoints go while a session runs: empty, ``"kaggle"``, or an fsspec URL.
        notify: Apprise URLs.
        expect_s: How long the training takes on that accelerator, if the user said so.
        out: Folder on this machine into which the finished run is fetched.
        bundle: The archive that every session gets.
        bundle_digest: Its digest, ``sha256:...``: what unpacks it has the standard library only.
        account: Whose account its sessions are in; empty where there are none. Another one cannot see them.
    """

    name: str
    target: str
    project: Path
    platform: str
    accelerator: str
    window_s: float
    out: Path
    bundle: Path
    bundle_digest: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    place: Mapping[str, Any] = field(default_factory=dict)
    internet: bool = False
    datasets: tuple[str, ...] = ()
    competitions: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    when_exhausted: WhenExhausted = "wait"
    mirror: str = ""
    notify: tuple[str, ...] = ()
    expect_s: float | None = None
    account: str = ""


@dataclass(frozen=True)
class RunStand:
    """How one run stood at the end of a session, as its output tells.

    Attributes:
        name: Its name.
        status: ``"running"``, ``"paused"``, ``"finished"`` or ``"failed"``.
        step: Steps of its newest checkpoint that is whole.
        epoch: Epoch of it.
        checkpoint: Its name; None if there is none.
        count: What it plans, in ``unit``; None if it does not say.
        unit: ``"epochs"`` or ``"steps"``.
        steps_per_s: Its speed; None if it does not say.
        reason: Why it stopped.
        mirrored: Whether that checkpoint lies in the mirror, and not in the output.
    """

    name: str
    status: str
    step: int
    epoch: int
    checkpoint: str | None
    count: int | None = None
    unit: str = ""
    steps_per_s: float | None = None
    reason: str = ""
    mirrored: bool = False


@dataclass(frozen=True)
class SessionRecord:
    """One session of a relay.

    Attributes:
        number: From 1, in the order in which they were intended; an abandoned one keeps its number.
        slug: Its name on the platform.
        stage: How far it has come.
        accelerator: What it was submitted with; ``"none"`` for a session that goes on without one.
        window_s: Its window.
        handle: The platform's handle; None before it is known.
        intended_s: When it was intended, seconds since 1970.
        submitted_s: When the platform had accepted it; None before.
        started_s: When it was first seen running, or said that it began; None before.
        ended_s: When it was seen to have ended, or said that it ended; None before.
        outcome: What it came to; empty before it is collected.
        reason: One sentence about the outcome.
        runs: How each of its runs stood at its end.
        accelerator_s: Seconds of accelerator hours it used, as it measured; 0 for none.
        tail: Last lines of its log, where it did not end well.
        doubted_s: Since when nobody knows whether the platform has accepted it; None if that is known.
        missing_s: Since when the platform says that there is no such session; None if it does not say so.
    """

    number: int
    slug: str
    stage: SessionStage
    accelerator: str
    window_s: float
    intended_s: float
    handle: Handle | None = None
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome = ""
    reason: str = ""
    runs: tuple[RunStand, ...] = ()
    accelerator_s: float = 0.0
    tail: tuple[str, ...] = ()
    doubted_s: float | None = None
    missing_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may still run: while one is open, no other is submitted."""
        return self.stage in ("intended", "submitted")


@dataclass(frozen=True)
class RunSource:
    """The best stand of a run so far, and the session whose output holds it.

    Attributes:
        stand: The stand.
        session: Number of that session; the newest, if several hold the same step.
    """

    stand: RunStand
    session: int


@dataclass(frozen=True)
class Standing:
    """What all collected sessions together have come to, kept with the relay so that no tick has to read them all.

    Attributes:
        runs: Where each run is gone on from; in the order in which they were first seen.
        numbers: Numbers that were given to sessions, abandoned ones included.
        collected: Sessions that were collected.
        idle: Collected sessions in a row without progress, the newest included.
        last: Outcome of the newest collected session.
        alike: Collected sessions in a row with that outcome, the first of which was the last to make progress.
        newest: Number of the newest collected session; 0 before there is one.
        accelerator_s: Seconds of accelerator hours that they used, as they measured.
    """

    runs: tuple[RunSource, ...] = ()
    numbers: int = 0
    collected: int = 0
    idle: int = 0
    last: Outcome = ""
    alike: int = 0
    newest: int = 0
    accelerator_s: float = 0.0


@dataclass(frozen=True)
class Relay:
    """A relay and its sessions, as they are stored.

    Attributes:
        id: Eight characters of ``0-9a-f``, also in the slugs of its sessions and in their outputs.
        order: What was asked for.
        state: How it stands.
        reason: Why, in a sentence.
        revision: Raised by every change: who writes names the one he has read (compare and set).
        created_s: Seconds since 1970.
        wake_s: When there is something to do next, seconds since 1970; None for "nothing".
        sessions: Its sessions, by number: all of them, or those that matter now (``Store.working``): the open one,
            those that are not collected yet, the newest, and those that its runs go on from.
        standing: What its sessions have come to.
        stop: What the user wants of its session, where he stopped it.
        told: What of that the platform has been told.
        tries: Refusals and transient errors in a row.
    """

    id: str
    order: RelayOrder
    state: RelayState
    reason: str
    revision: int
    created_s: float
    wake_s: float | None = None
    sessions: tuple[SessionRecord, ...] = ()
    standing: Standing = Standing()
    stop: Stop = ""
    told: Stop = ""
    tries: int = 0
