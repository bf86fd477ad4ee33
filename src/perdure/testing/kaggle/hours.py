"""Accelerator hours: used, reserved, allowed, and whether a session may start. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perdure.testing.kaggle.rules import Rules
from perdure.testing.kaggle.switches import Switches
from perdure.testing.kaggle.world import ENDED, EmulatedSession


@dataclass(frozen=True)
class Hours:
    """How one kind of accelerator stands.

    Attributes:
        used_s: Seconds that are gone in this period, those of running sessions included.
        reserved_s: Seconds that running and waiting sessions may still use.
        allowed_s: Seconds in a period.
        refresh_at_s: When the next period begins.
    """

    used_s: float
    reserved_s: float
    allowed_s: float
    refresh_at_s: float


def hours(
    resource: str,
    sessions: Iterable[EmulatedSession],
    rules: Rules,
    switches: Switches,
    born_s: float,
    now_s: float,
) -> Hours:
    """How one kind of accelerator stands now."""
    period = int((now_s - born_s) // rules.refresh_every_s)
    since_s = born_s + period * rules.refresh_every_s
    used_s = rules.gpu_used_s if resource == "gpu" and period == 0 else 0.0
    reserved_s = 0.0
    for session in sessions:
        if session.resource == resource:
            used_s += _used_s(session, since_s, now_s)
            reserved_s += _reserved_s(session, rules, switches, now_s)
    allowed_s = rules.gpu_quota_s if resource == "gpu" else rules.tpu_quota_s
    return Hours(used_s, reserved_s, allowed_s, since_s + rules.refresh_every_s)


def window_s(session: EmulatedSession, rules: Rules) -> float:
    """After which a session is killed, its own time-out aside."""
    return rules.tpu_window_s if session.resource == "tpu" else rules.window_s


def no_room(
    resource: str, sessions: Iterable[EmulatedSession], rules: Rules, switches: Switches, now_s: float
) -> str:
    """The refusal where all slots are taken; empty where one is free (texts of third-party recordings)."""
    slots = {"gpu": rules.gpu_slots, "cpu": rules.cpu_slots, "tpu": rules.tpu_slots}[resource]
    taken = sum(1 for each in sessions if each.resource == resource and _has_slot(each, switches, now_s))
    return slots_text(resource, slots) if taken >= slots else ""


def no_hours(resource: str, stand: Hours) -> str:
    """The refusal where the hours are used up or spoken for; empty where there are some."""
    if resource == "cpu":
        return ""
    if stand.used_s >= stand.allowed_s:
        return quota_text(resource, stand.allowed_s)
    return projected_text(resource, stand.allowed_s) if stand.used_s + stand.reserved_s >= stand.allowed_s else ""


def slots_text(resource: str, slots: int) -> str:
    """As recorded."""
    return f"Maximum batch {resource.upper()} session count of {slots} reached."


def quota_text(resource: str, allowed_s: float) -> str:
    """As recorded."""
    return f"Maximum weekly {resource.upper()} quota of {allowed_s / 3600:.2f} hours reached."


def projected_text(resource: str, allowed_s: float) -> str:
    """As recorded."""
    return (
        "Session cannot start because currently running sessions are projected to exceed maximum weekly "
        f"{resource.upper()} quota of {allowed_s / 3600:g}. Cancelling running sessions may allow starting new "
        "sessions."
    )


def _used_s(session: EmulatedSession, since_s: float, now_s: float) -> float:
    if session.started_s is None:
        return 0.0
    until_s = now_s if session.ended_s is None else session.ended_s
    return max(0.0, until_s - max(session.started_s, since_s))


def _reserved_s(session: EmulatedSession, rules: Rules, switches: Switches, now_s: float) -> float:
    if session.stage == ENDED:
        return 0.0
    most_s = window_s(session, rules)
    if session.timeout_s is not None and switches.timeout_reserves:
        most_s = min(most_s, session.timeout_s)
    return max(0.0, most_s - (0.0 if session.started_s is None else now_s - session.started_s))


def _has_slot(session: EmulatedSession, switches: Switches, now_s: float) -> bool:
    return session.ended_s is None or now_s < session.ended_s + switches.slot_lag_s
