"""What a relay does next. Pure: how it stands, what this tick has learnt, the time; one action.

The order is the safety: first those sessions that may run unknown, then the one that runs, and only when there is
none of them any more, a new one.
"""

from __future__ import annotations

from perdure.platforms.protocol import Observation
from perdure.relay.actions import (
    Abandon,
    Action,
    Adopt,
    Close,
    Collect,
    Dismiss,
    Doubt,
    End,
    Fetch,
    Find,
    Halt,
    Look,
    Observe,
    Rest,
    Seen,
    Submit,
    Terms,
    Withdraw,
)
from perdure.relay.hours import next_session
from perdure.relay.records import Relay, RelayState, SessionRecord
from perdure.relay.standing import trouble
from perdure.relay.words import moment

LOOKS_MOST = 3
"""Abandoned sessions that one tick looks at again."""

QUEUE_LAGS = 24.0
"""A session that waits in the queue for so many times ``pace.lag_s`` is taken out of it and submitted anew."""

OVERDUE_LAGS = 1.0
"""A session that runs longer than its window by so many times ``pace.lag_s`` is asked to end."""


def plan(relay: Relay, seen: Seen, now_s: float, terms: Terms) -> Action:
    """What to do next for a relay.

    Args:
        relay: As it is stored, with the sessions that matter now.
        seen: What this tick has learnt.
        now_s: Seconds since 1970.
        terms: What the platform offers.

    Returns:
        One action; ``Rest`` ends the tick.
    """
    if relay.state in ("done", "stopped", "needs-you"):
        return Rest(relay.state, relay.reason, None)
    opened = next((session for session in relay.sessions if session.is_open), None)
    return (
        _lost_ones(relay, opened, seen)
        or _ended_one(relay, seen, now_s, terms)
        or (_open_one(relay, opened, seen, now_s, terms) if opened else _next_one(relay, seen, now_s, terms))
    )


def _lost_ones(relay: Relay, opened: SessionRecord | None, seen: Seen) -> Action | None:
    """Abandoned sessions: looked for again and again, and not let run beside another."""
    for session in _abandoned(relay):
        if session.handle is None:
            if session.number not in seen.looked and len(seen.looked) < LOOKS_MOST:
                return Look(session.number)
        elif opened is None:
            return Adopt(session.number)
        else:
            action = _double(session, opened, seen)
            if action:
                return action
    return None


def _double(session: SessionRecord, opened: SessionRecord, seen: Seen) -> Action | None:
    """A session that turned up beside the open one; None if nothing can be done about it now."""
    observed = seen.observed.get(session.number)
    if observed is None:
        return Observe(session.number)
    if observed.ended:
        return Dismiss(session.number)
    if session.number not in seen.halted:
        return Halt(session.number, now=True, why=f"it runs beside session {opened.number}")
    return None


def _ended_one(relay: Relay, seen: Seen, now_s: float, terms: Terms) -> Action | None:
    """A session that has ended and is not collected yet."""
    for session in relay.sessions:
        if session.stage != "ended":
            continue
        if session.ended_s is not None and session.ended_s > now_s:  # the clock was set back
            return End(session.number, session.reason)
        if session.number not in seen.lagging:
            return Collect(session.number)
        reason = f"session {session.number} has ended; its output is not there yet"
        return Rest(_meanwhile(relay), reason, now_s + terms.pace.poll_s)
    return None


def _open_one(relay: Relay, session: SessionRecord, seen: Seen, now_s: float, terms: Terms) -> Action:
    if session.stage == "intended":
        return _intended(relay, session, seen, now_s, terms)
    halt = _wish(relay, session, seen)
    if halt:
        return halt
    observed = seen.observed.get(session.number)
    if observed is None:
        return Observe(session.number)
    if observed.ended:
        return End(session.number, observed.message)
    return _lasting(relay, session, observed, seen, now_s, terms)


def _intended(relay: Relay, session: SessionRecord, seen: Seen, now_s: float, terms: Terms) -> Action:
    """A session that was tried, or not: only the platform knows, and not at once."""
    if seen.fresh == session.number:
        return Withdraw(session.number) if relay.state == "stopping" else Submit(session.number)
    if session.doubted_s is None or session.doubted_s > now_s:  # the clock was set back
        return Doubt(session.number)
    if session.number not in seen.sought:
        return Find(session.number)
    left_s = session.doubted_s + terms.pace.settle_s - now_s
    if left_s <= 0:
        return Abandon(session.number)
    reason = f"nobody knows yet whether session {session.number} began"
    return Rest(_meanwhile(relay), reason, now_s + min(terms.pace.poll_s, left_s))


def _wish(relay: Relay, session: SessionRecord, seen: Seen) -> Action | None:
    """What the user wants of the session and the platform was not told yet."""
    if relay.state != "stopping" or relay.stop == "" or relay.told in (relay.stop, "now"):
        return None
    if session.number in seen.halted:
        return None
    return Halt(session.number, now=relay.stop == "now", why="the relay is stopped")


def _lasting(
    relay: Relay, session: SessionRecord, observed: Observation, seen: Seen, now_s: float, terms: Terms
) -> Action:
    """A session that has not ended, as far as is known."""
    if observed.state == "missing" and session.missing_s is not None:
        return _missing(relay, session, session.missing_s, now_s, terms)
    late = _is_overdue(session, observed, now_s, terms)
    if session.number not in seen.halted:
        if late and not relay.told:
            return Halt(session.number, now=False, why="its window is over")
        if _is_stuck(session, observed, now_s, terms) and relay.told != "now":
            return Halt(session.number, now=True, why="it never left the queue")  # it has no output to lose
    reason = _word(session, observed)
    if session.started_s is not None and (late or relay.told):
        closes = moment(session.started_s + session.window_s, now_s)
        reason += f"; it was asked to end, and its window closes {closes}"
    if late:
        past = "; its window is over" if session.started_s is None else " (past)"
        reason += f"{past}: `perdure relay stop {relay.order.name} --now` ends it, at the price of its output"
    return Rest(_meanwhile(relay), reason, now_s + terms.pace.poll_s)


def _is_overdue(session: SessionRecord, observed: Observation, now_s: float, terms: Terms) -> bool:
    """Whether it has not ended when the platform should have ended it; seen on Kaggle by others, not tried here."""
    if observed.state in ("queued", "missing"):
        return False
    begun_s = session.started_s
    if begun_s is None:  # never seen running, and in no state that is known here: it had time to leave the queue
        begun_s = _submitted_s(session) + QUEUE_LAGS * terms.pace.lag_s
    return now_s > begun_s + session.window_s + OVERDUE_LAGS * terms.pace.lag_s


def _is_stuck(session: SessionRecord, observed: Observation, now_s: float, terms: Terms) -> bool:
    return observed.state == "queued" and now_s > _submitted_s(session) + QUEUE_LAGS * terms.pace.lag_s


def _submitted_s(session: SessionRecord) -> float:
    return session.intended_s if session.submitted_s is None else session.submitted_s


def _missing(relay: Relay, session: SessionRecord, since_s: float, now_s: float, terms: Terms) -> Action:
    """A session that the platform does not show: it may run all the same, so its window is waited for."""
    wait_s = terms.pace.lag_s + (terms.pace.settle_s if relay.stop == "now" else session.window_s)
    if now_s >= since_s + wait_s or relay.told == "now":
        return End(session.number, "the platform shows no such session any more")
    reason = (
        f"the platform does not show session {session.number}; "
        f"it counts as ended {moment(since_s + wait_s, now_s)} if it stays so"
    )
    return Rest(_meanwhile(relay), reason, now_s + terms.pace.poll_s)


def _next_one(relay: Relay, seen: Seen, now_s: float, terms: Terms) -> Action:
    """No session runs, as far as is known, and every one is collected."""
    if relay.state == "stopping":
        return Close("stopped", "stopped by you")
    if relay.standing.last == "finished":
        return Close("done", "finished") if seen.fetched else Fetch()
    problem = trouble(relay.standing)
    if problem:
        newest = next((each for each in relay.sessions if each.number == relay.standing.newest), None)
        return Close("needs-you", f"{problem}: {newest.reason}" if newest and newest.reason else problem)
    return next_session(relay, seen, now_s, terms)


def _abandoned(relay: Relay) -> list[SessionRecord]:
    return [session for session in relay.sessions if session.stage == "abandoned"]


def _word(session: SessionRecord, observed: Observation) -> str:
    words = {
        "queued": "waits in the queue",
        "running": "runs",
        "stopping": "is being stopped",
        "unknown": f"is in a state that is not known here: {observed.word!r}",
        "missing": "is not shown by the platform",
    }
    return f"session {session.number} {words[observed.state]}"


def _meanwhile(relay: Relay) -> RelayState:
    """The state of a relay while something goes on."""
    return "stopping" if relay.state == "stopping" else "active"
