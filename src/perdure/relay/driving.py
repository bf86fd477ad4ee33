"""Driving relays: tick, look at what runs, keep what was seen where every command finds it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perdure.core.errors import PlatformError, StoreError
from perdure.core.files import write_json
from perdure.platforms.protocol import Handle, Platform, Quota
from perdure.relay.hours import is_due
from perdure.relay.live import Live, newest_live
from perdure.relay.logs import read_log
from perdure.relay.records import Relay, SessionRecord
from perdure.relay.store import Store
from perdure.relay.words import in_a_line

GLANCE = "glance.json"

QUOTA_POLLS = 10
"""Hours are asked for at the start, and then once in so many looks."""

_OVER = ("done", "stopped", "needs-you")


@dataclass(frozen=True)
class Glance:
    """What was seen of a relay beside what its database holds; lost, it is only seen again.

    Attributes:
        seen_s: When the platform was last asked, seconds since 1970; 0 for never.
        live: The newest word of the running session.
        quotas: Hours of the account.
        problem: Why the newest look failed; empty if it did not.
    """

    seen_s: float = 0.0
    live: Live | None = None
    quotas: tuple[Quota, ...] = ()
    problem: str = ""

    def write(self, folder: Path) -> None:
        """Keep it in the folder of a relay. A full disk must not stop a relay: then it is not kept."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / GLANCE, {"format": 1, **asdict(self)})
        except OSError:
            return

    @classmethod
    def read(cls, folder: Path) -> Glance:
        """What was kept; nothing, where that cannot be read."""
        try:
            value = json.loads((folder / GLANCE).read_text(encoding="utf-8"))
            return _glance(value) if value.get("format") == 1 else cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()


def _glance(value: dict[str, Any]) -> Glance:
    live = value["live"]
    return Glance(
        float(value["seen_s"]),
        None if live is None else Live.from_dict(live),
        tuple(Quota(**quota) for quota in value["quotas"]),
        str(value["problem"]),
    )


class Driver:
    """Drives one relay. May be killed anywhere, and may run beside another: only one of them acts.

    Args:
        store: The database.
        platform: Where the relay runs.
        tick: The controller's: does what is due for a relay, returns when there is something to do next.
        relay_id: Which relay.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        store: Store,
        platform: Platform,
        tick: Callable[[str], float | None],
        relay_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.platform, self.relay_id = store, platform, relay_id
        self._tick, self._clock = tick, clock
        self._folder = store.home.relay(relay_id)
        self._looks = 0
        self.glance = Glance.read(self._folder)
        self.wake_s: float | None = clock()

    @property
    def relay(self) -> Relay:
        """The relay as it is stored now."""
        return self.store.load(self.relay_id)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a step."""
        return self.wake_s is not None and is_due(self.wake_s, self._clock(), self.platform.pace)

    def step(self) -> None:
        """Do what is due, and look. ``wake_s`` is then when to step again; None when there is nothing to do."""
        try:
            due_s = self._tick(self.relay_id)
            relay = self.relay
        except StoreError as error:  # a full disk, or one that is gone: it may come back
            self.glance = replace(self.glance, problem=error.what)
            self.wake_s = self._clock() + max(self.platform.pace.poll_s, 1.0)
            return
        self._look(relay)
        now_s = self._clock()
        if relay.state in _OVER:
            self.wake_s = None
        elif running_session(relay) is None:
            self.wake_s = now_s + self.platform.pace.poll_s if due_s is None else due_s
        else:
            soon_s = now_s + self.platform.pace.poll_s
            self.wake_s = soon_s if due_s is None else min(due_s, soon_s)

    def _look(self, relay: Relay) -> None:
        """Ask for the newest word of the session and for the hours; what cannot be had now is had later."""
        session = running_session(relay)
        seen = self.glance if session and _is_of(self.glance.live, session) else replace(self.glance, live=None)
        try:
            if session is not None and session.handle is not None:
                folder = self.store.home.session(relay.id, session.number)
                live = newest_live(read_log(self.platform, session.handle, folder).lines)
                seen = replace(seen, live=live if _is_of(live, session) else seen.live)
            if self._looks % QUOTA_POLLS == 0 or session is None:
                seen = replace(seen, quotas=self.platform.quota())
            seen = replace(seen, problem="")
        except (PlatformError, OSError) as error:
            seen = replace(seen, problem=str(error.args[0]) if error.args else type(error).__name__)
        self._looks += 1
        self.glance = replace(seen, seen_s=self._clock())
        self.glance.write(self._folder)


def running_session(relay: Relay) -> SessionRecord | None:
    """The session that the platform has accepted and that has not ended, as far as is known."""
    return next((session for session in relay.sessions if session.stage == "submitted"), None)


def _is_of(live: Live | None, session: SessionRecord) -> bool:
    return live is not None and live.session == session.number


def _has_page(handle: Handle) -> bool:
    return bool(handle.url) and handle.platform != "emulator"


def changes(before: Relay | None, after: Relay) -> list[str]:
    """What has happened to a relay between two looks, a sentence each, for those who read along.

    Args:
        before: As it was; None where it is seen for the first time: then nothing has happened yet.
        after: As it is.
    """
    if before is None:
        return []
    known = {session.number: session for session in before.sessions}
    told = [line for session in after.sessions for line in _session_changes(known.get(session.number), session)]
    if (after.state, after.reason) != (before.state, before.reason) and after.state != "active":
        reason = "" if after.state == "done" else in_a_line(after.reason)
        told.append(": ".join(part for part in (after.state, reason) if part))
    return told


def _session_changes(before: SessionRecord | None, after: SessionRecord) -> list[str]:
    told = []
    name = f"session {after.number}"
    if after.stage == "submitted" and (before is None or before.stage == "intended"):
        told.append(
            f"{name} submitted" + (f": {after.handle.url}" if after.handle and _has_page(after.handle) else "")
        )
    if after.started_s is not None and (before is None or before.started_s is None):
        told.append(f"{name} runs")
    if after.outcome and (before is None or not before.outcome):
        steps = ", ".join(f"{stand.name} at step {stand.step}" for stand in after.runs if stand.checkpoint)
        told.append(": ".join(part for part in (f"{name} {after.outcome}", steps, in_a_line(after.reason)) if part))
    if after.stage == "abandoned" and (before is None or before.stage != "abandoned"):
        told.append(f"{name} never began: its name is not used again")
    return told
