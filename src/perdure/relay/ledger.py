"""What sessions of this machine's relays have really used, beside what the platform counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perdure.relay.records import Relay, SessionRecord


@dataclass(frozen=True)
class Entry:
    """One session that used hours of an accelerator.

    Attributes:
        relay: Name of its relay.
        session: Its number.
        accelerator: What it ran with.
        began_s: When it began, seconds since 1970.
        ended_s: When it ended; now, if it still runs.
        used_s: Seconds that it used: as it measured, or so far.
        runs: Whether it still runs.
    """

    relay: str
    session: int
    accelerator: str
    began_s: float
    ended_s: float
    used_s: float
    runs: bool = False

    def used_between(self, since_s: float, until_s: float) -> float:
        """Seconds of it that fall into a period."""
        lasted_s = self.ended_s - self.began_s
        inside_s = min(self.ended_s, until_s) - max(self.began_s, since_s)
        if inside_s <= 0:
            return 0.0
        return self.used_s if lasted_s <= 0 else self.used_s * min(1.0, inside_s / lasted_s)


def entries(
    relays: Iterable[Relay], platform: str, counted: Mapping[str, str | None], resource: str, now_s: float
) -> tuple[Entry, ...]:
    """The sessions that used hours of one kind, oldest first.

    Args:
        relays: All relays of this machine.
        platform: Those on this platform.
        counted: Whose hours each accelerator uses, by its name.
        resource: ``"gpu"`` or ``"tpu"``.
        now_s: Seconds since 1970.
    """
    found = [
        entry
        for relay in relays
        if relay.order.platform == platform
        for session in relay.sessions
        if counted.get(session.accelerator) == resource and (entry := _entry(relay, session, now_s))
    ]
    return tuple(sorted(found, key=lambda entry: entry.began_s))


def used_by_relay(found: Iterable[Entry], since_s: float, until_s: float) -> dict[str, tuple[float, int]]:
    """Seconds and sessions of each relay in a period; the one that used most comes first."""
    sums: dict[str, tuple[float, int]] = {}
    for entry in found:
        if used_s := entry.used_between(since_s, until_s):
            before_s, sessions = sums.get(entry.relay, (0.0, 0))
            sums[entry.relay] = (before_s + used_s, sessions + 1)
    return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def _entry(relay: Relay, session: SessionRecord, now_s: float) -> Entry | None:
    if session.stage == "abandoned" or session.started_s is None:
        return None
    runs = session.ended_s is None
    ended_s = now_s if session.ended_s is None else session.ended_s
    used_s = max(0.0, ended_s - session.started_s) if runs or not session.accelerator_s else session.accelerator_s
    return Entry(
        relay.order.name, session.number, session.accelerator, session.started_s, ended_s, used_s, runs=runs
    )
