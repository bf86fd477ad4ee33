"""How a relay changes when something was done or learnt: a record in, a record out. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perdure.platforms.protocol import Handle, Observation
from perdure.relay.handover import Collected
from perdure.relay.records import Relay, RelayState, SessionRecord, Stop
from perdure.relay.slugs import session_slug
from perdure.relay.standing import forgiven, standing_after

Change = Callable[[Relay], Relay]
"""Applied to what is stored now, which another process may have changed since the plan read it."""


def session_at(relay: Relay, number: int) -> SessionRecord:
    """The session of this number, among those that were read."""
    return next(session for session in relay.sessions if session.number == number)


def with_session(relay: Relay, session: SessionRecord) -> Relay:
    """The relay with this session in place of the one of the same number, or beside the others."""
    others = [each for each in relay.sessions if each.number != session.number]
    return replace(relay, sessions=tuple(sorted([*others, session], key=lambda each: each.number)))


def intended(relay: Relay, accelerator: str, window_s: float, now_s: float) -> Relay:
    """One more session is about to be submitted."""
    number = relay.standing.numbers + 1
    slug = session_slug(relay.order.name, relay.id, number)
    session = SessionRecord(number, slug, "intended", accelerator, window_s, intended_s=now_s)
    counted = replace(relay, standing=replace(relay.standing, numbers=number), told="")
    return with_session(_towards(counted, "active", f"session {number} is being submitted"), session)


def withdrawn(relay: Relay, number: int) -> Relay:
    """It was not submitted, and never was: the number is free again."""
    sessions = tuple(session for session in relay.sessions if session.number != number)
    return replace(relay, sessions=sessions, standing=replace(relay.standing, numbers=number - 1))


def submitted(relay: Relay, number: int, handle: Handle, now_s: float) -> Relay:
    """The platform has accepted it, or shows it."""
    session = replace(
        session_at(relay, number),
        stage="submitted",
        handle=handle,
        submitted_s=now_s,
        doubted_s=None,
        missing_s=None,
    )
    return with_session(_towards(replace(relay, tries=0), "active", f"session {number} is submitted"), session)


def doubted(relay: Relay, number: int, now_s: float) -> Relay:
    """Nobody knows whether the platform has accepted it."""
    return with_session(relay, replace(session_at(relay, number), doubted_s=now_s))


def abandoned(relay: Relay, number: int, reason: str) -> Relay:
    """It does not turn up."""
    return with_session(relay, replace(session_at(relay, number), stage="abandoned", reason=reason))


def turned_up(relay: Relay, number: int, handle: Handle) -> Relay:
    """One that was given up is there after all."""
    return with_session(relay, replace(session_at(relay, number), handle=handle))


def dismissed(relay: Relay, number: int, now_s: float) -> Relay:
    """One that had begun beside another has ended; nothing is gone on from it."""
    reason = "it began after it had been given up, beside another; what it left is not used"
    session = replace(
        session_at(relay, number), stage="collected", outcome="no-output", reason=reason, ended_s=now_s
    )
    return with_session(relay, session)


def observed(relay: Relay, number: int, observation: Observation, now_s: float) -> Relay:
    """The platform said how it stands."""
    session = session_at(relay, number)
    if observation.state == "missing":
        since_s = now_s if session.missing_s is None or session.missing_s > now_s else session.missing_s
        return with_session(relay, replace(session, missing_s=since_s))
    session = replace(session, missing_s=None)
    if observation.state == "running" and session.started_s is None:
        session = replace(session, started_s=now_s)
    return with_session(replace(relay, tries=0), session)


def told(relay: Relay, what: Stop, said: str) -> Relay:
    """The platform was asked to end the open session, and said what became of that."""
    return replace(relay, told=what, reason=said or relay.reason)


def ended(relay: Relay, number: int, why: str, now_s: float) -> Relay:
    """It runs no more."""
    session = replace(session_at(relay, number), stage="ended", ended_s=now_s, reason=why, missing_s=None)
    return with_session(
        _towards(replace(relay, told="", tries=0), "active", f"session {number} has ended"), session
    )


def collected(relay: Relay, number: int, found: Collected) -> Relay:
    """It is known what it came to."""
    session = session_at(relay, number)
    session = replace(
        session,
        stage="collected",
        outcome=found.outcome,
        reason=found.reason or session.reason,
        runs=found.runs,
        accelerator_s=found.accelerator_s,
        started_s=session.started_s if found.started_s is None else found.started_s,
        ended_s=session.ended_s if found.ended_s is None else found.ended_s,
        tail=found.tail,
    )
    changed = with_session(replace(relay, standing=standing_after(relay.standing, session), tries=0), session)
    return _towards(changed, "active", f"session {number}: {session.reason or found.outcome}")


def set_back(relay: Relay) -> Relay:
    """One more refusal or error in a row."""
    return replace(relay, tries=relay.tries + 1)


def closed(relay: Relay, state: RelayState, reason: str) -> Relay:
    """It has come to an end, or needs its user."""
    return replace(relay, state=state, reason=reason, wake_s=None, stop="", tries=0)


def resting(relay: Relay, state: RelayState, reason: str, wake_s: float | None) -> Relay:
    """Nothing to do until then."""
    return replace(_towards(relay, state, reason), wake_s=wake_s)


def stopping(relay: Relay, stop: Stop, now_s: float) -> Relay:
    """The user stops it."""
    reason = "you stopped it"
    wanted: Stop = "now" if "now" in (stop, relay.stop) else stop
    return replace(relay, state="stopping", reason=reason, stop=wanted, wake_s=now_s)


def resumed(relay: Relay, now_s: float) -> Relay:
    """The user lets it go on."""
    return replace(
        relay,
        state="active",
        reason="goes on",
        stop="",
        wake_s=now_s,
        tries=0,
        standing=forgiven(relay.standing),
    )


def _towards(relay: Relay, state: RelayState, reason: str) -> Relay:
    """Another state, unless the user is stopping the relay: that stays until it is done."""
    if relay.state == "stopping":
        return replace(relay, reason=reason)
    return replace(relay, state=state, reason=reason)
