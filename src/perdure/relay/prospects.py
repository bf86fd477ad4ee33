"""What a relay has left, from what was said before it began and from what its sessions measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from perdure.platforms.protocol import Pace, Quota
from perdure.relay.forecast import WEEK_S, Forecast, Hours, Work, forecast
from perdure.relay.records import Relay, RunStand, SessionRecord

OVERHEAD_S = 180.0
"""From the start of a session to its first step, before one was measured: unpacking, imports, a checkpoint."""
OVERHEAD_SHARE = 0.1
"""The same is never taken for more than this share of a window."""


@dataclass(frozen=True)
class Prospect:
    """What is to be expected of a relay, and where that comes from.

    Attributes:
        expected: The forecast; None where nothing is known of how long the training takes.
        basis: What it was made from, as a clause; why there is none, where there is none.
        left_s: Seconds of training that are left; None where nobody knows.
        done: Share of the training that is done, 0 to 1; None where no session has measured it: time that
            has gone by says nothing of steps.
    """

    expected: Forecast | None
    basis: str
    left_s: float | None = None
    done: float | None = None


def prospect(
    relay: Relay,
    now_s: float,
    pace: Pace,
    *,
    quota: Quota | None = None,
    margin_s: float = 120.0,
    least_s: float = 0.0,
    period_s: float = WEEK_S,
    live: Sequence[RunStand] = (),
    earlier: Iterable[Relay] = (),
) -> Prospect:
    """What is to be expected of a relay, now.

    Args:
        relay: It and its sessions.
        now_s: Seconds since 1970.
        pace: Of its platform.
        quota: Hours of its accelerator; None where nothing is counted.
        margin_s: Seconds that sessions keep free at the end of a window.
        least_s: Sessions that could only be shorter are not begun.
        period_s: Seconds from one refresh of the quota to the next.
        live: What the running session says of its runs.
        earlier: Other relays of this machine: one of the same script that is done tells how long it took.
    """
    like = _earlier(relay, earlier)
    left_s, done, basis = _left(relay, now_s, live, like)
    if left_s is None:
        return Prospect(None, basis)
    work = Work(
        left_s=left_s,
        window_s=relay.order.window_s,
        overhead_s=overhead_s(relay, like),
        margin_s=margin_s,
        between_s=2 * pace.poll_s,
        least_s=least_s,
        running_s=_running_s(relay, now_s),
    )
    expected = forecast(work, now_s, _hours(relay, quota, work.running_s, period_s), relay.order.when_exhausted)
    return Prospect(expected, basis, left_s, done)


def overhead_s(relay: Relay, like: Relay | None = None) -> float:
    """Seconds from the start of a session to its first new step: measured, here or by one like it, else a guess."""
    guess_s = min(OVERHEAD_S, OVERHEAD_SHARE * relay.order.window_s)
    for known in (relay, *([like] if like else [])):
        measured = [value for session in _trained(known) if (value := _overhead_of(known, session)) is not None]
        if measured:
            return min(measured[-1], relay.order.window_s / 2)
    return guess_s


def newest_stands(relay: Relay, live: Sequence[RunStand] = ()) -> dict[str, RunStand]:
    """How each run stands now, by its name; what the running session does not say is taken from those before it."""
    stands: dict[str, RunStand] = {}
    for session in relay.sessions:
        for stand in session.runs:
            stands[stand.name] = _on_top(stands.get(stand.name), stand)
    for stand in live:
        stands[stand.name] = _on_top(stands.get(stand.name), stand)
    return stands


def stands_by_session(relay: Relay) -> dict[int, tuple[RunStand, ...]]:
    """How the runs of each session stood at its end, by its number: one that saved nothing stood where it began."""
    known: dict[str, RunStand] = {}
    stood = {}
    for session in relay.sessions:
        for stand in session.runs:
            known[stand.name] = _on_top(known.get(stand.name), stand)
        stood[session.number] = tuple(known[stand.name] for stand in session.runs)
    return stood


def steps_in_all(stand: RunStand) -> float | None:
    """Steps that a run has when it is finished; None if it does not say, or has not done half an epoch.

    The epoch that it is in counts as half done: a stand does not say how far it is.
    """
    if stand.count is None:
        return None
    if stand.unit == "steps":
        return float(stand.count)
    if stand.unit != "epochs" or stand.epoch < 1:
        return None
    return stand.count * stand.step / (min(stand.epoch, stand.count - 0.5) + 0.5)


def _left(
    relay: Relay, now_s: float, live: Sequence[RunStand], like: Relay | None
) -> tuple[float | None, float | None, str]:
    """Seconds that are left, the share that is done, and from what that is known."""
    measured = _measured(relay, live)
    if measured is not None:
        left_s, total_s = measured
        done = min(1.0, max(0.0, 1.0 - left_s / total_s)) if total_s else None
        return left_s, done, "from the measured speed"
    trained_s = trained_so_far_s(relay, now_s)
    if relay.order.expect_s is not None:
        return max(0.0, relay.order.expect_s - trained_s), None, "from --expect"
    if like is not None:
        took_s = trained_so_far_s(like, now_s)
        return max(0.0, took_s - trained_s), None, f"as relay {like.order.name} took"
    if relay.sessions:
        return None, None, "not known yet: the first session measures it"
    return None, None, "not known before the first session measures it; --expect '38 h' says how long it takes"


def _measured(relay: Relay, live: Sequence[RunStand]) -> tuple[float, float] | None:
    """Seconds that are left and in all, by what the runs plan and how fast they were on this accelerator."""
    left_s = total_s = 0.0
    stands = newest_stands(relay, live)
    for stand in stands.values():
        speed = _speed(relay, stand.name, live)
        if stand.status == "finished":
            total_s += stand.step / speed if speed else 0.0
            continue
        steps = steps_in_all(stand)
        if steps is None or not speed:
            return None
        left_s += max(0.0, steps - stand.step) / speed
        total_s += steps / speed
    return (left_s, total_s) if stands else None


def _speed(relay: Relay, run: str, live: Sequence[RunStand]) -> float | None:
    """Steps a second of a run in the newest session with the accelerator of the relay."""
    for stand in live:
        if stand.name == run and stand.steps_per_s:
            return stand.steps_per_s
    for session in reversed(relay.sessions):
        for stand in session.runs:
            if stand.name == run and stand.steps_per_s and session.accelerator == relay.order.accelerator:
                return stand.steps_per_s
    return None


def trained_so_far_s(relay: Relay, now_s: float) -> float:
    """Seconds that sessions with the accelerator of the relay have trained, their starts left out."""
    start_s = overhead_s(relay)
    lasted = [
        (session.ended_s if session.ended_s is not None else now_s) - session.started_s
        for session in _trained(relay)
        if session.started_s is not None
    ]
    return sum(max(0.0, seconds - start_s) for seconds in lasted)


def _trained(relay: Relay) -> list[SessionRecord]:
    """Sessions with the accelerator of the relay that trained, or do so now."""
    return [
        session
        for session in relay.sessions
        if session.accelerator == relay.order.accelerator
        and session.started_s is not None
        and (session.outcome in ("finished", "paused") or session.stage == "submitted")
    ]


def _overhead_of(relay: Relay, session: SessionRecord) -> float | None:
    """What of a session was no training; None if it does not say how fast it was, or how much it did."""
    if session.ended_s is None or session.started_s is None or not session.runs:
        return None
    before = {stand.name: stand.step for old in relay.sessions if old.number < session.number for stand in old.runs}
    trained_s = 0.0
    for stand in session.runs:
        steps = stand.step - before.get(stand.name, 0)
        if steps and not stand.steps_per_s:
            return None
        trained_s += steps / stand.steps_per_s if stand.steps_per_s else 0.0
    return max(0.0, session.ended_s - session.started_s - trained_s) if trained_s else None


def _running_s(relay: Relay, now_s: float) -> float | None:
    """Seconds until the window of the session that runs closes."""
    for session in relay.sessions:
        if session.stage == "submitted" and session.started_s is not None:
            return max(0.0, session.started_s + session.window_s - now_s)
    return None


def _hours(relay: Relay, quota: Quota | None, running_s: float | None, period_s: float) -> Hours | None:
    """The hours to count with: what the running session has reserved is its own."""
    if quota is None:
        return None
    free_s = quota.left_s + (min(quota.reserved_s, running_s) if running_s is not None else 0.0)
    return Hours(free_s, quota.allowed_s, quota.refresh_at_s, period_s)


def _earlier(relay: Relay, others: Iterable[Relay]) -> Relay | None:
    """The newest relay like it that is done."""
    done = (other for other in others if other.id != relay.id and other.state == "done" and _alike(relay, other))
    return max(done, key=lambda other: other.created_s, default=None)


def _alike(one: Relay, other: Relay) -> bool:
    """Whether one will take as long as the other did: variables hold settings too, such as how many epochs."""
    a, b = (
        (each.target, each.project, each.arguments, dict(each.environment), each.platform, each.accelerator)
        for each in (one.order, other.order)
    )
    return a == b


def _on_top(before: RunStand | None, stand: RunStand) -> RunStand:
    if before is None:
        return stand
    if stand.checkpoint is None and stand.step < before.step:  # it went on from there, and has saved nothing since
        stand = replace(stand, step=before.step, epoch=before.epoch, checkpoint=before.checkpoint)
    return replace(
        stand,
        count=before.count if stand.count is None else stand.count,
        unit=stand.unit or before.unit,
        steps_per_s=stand.steps_per_s or before.steps_per_s,
    )
