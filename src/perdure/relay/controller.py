"""The controller: drives a relay on, a tick at a time.

A tick may die anywhere. What is about to be done is on disk before the platform is asked to do it; what was learnt
is on disk before the next thing is asked. Whatever a dead tick leaves open, the next one finds out.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.clock import Clock, SystemClock
from perdure.core.errors import RelayError, StaleError
from perdure.platforms.protocol import Platform
from perdure.relay import changes
from perdure.relay.doing import Fetcher, Notifier, Tick, fetch_finished
from perdure.relay.handover import Collector, collect
from perdure.relay.hours import is_due
from perdure.relay.lease import Lease
from perdure.relay.notices import notice_of, notify
from perdure.relay.records import Relay
from perdure.relay.store import Store

_BUSY_S = 2.0
_CLASHES_MOST = 100


class Controller:
    """Drives relays of one platform. Belongs to the thread that opened its store.

    Args:
        store: Where they are kept.
        platform: Where their sessions run.
        collect: Judges a session that has ended.
        fetch: Brings the finished run.
        notify: Sends notices.
        clock: For the time of day.
    """

    def __init__(
        self,
        store: Store,
        platform: Platform,
        *,
        collect: Collector = collect,
        fetch: Fetcher = fetch_finished,
        notify: Notifier = notify,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.platform = platform
        self._collect = collect
        self._fetch = fetch
        self._notify = notify
        self._clock = clock or SystemClock()

    def tick(self, relay_id: str) -> float | None:
        """Do for a relay what is to be done now; nothing, if it is not time yet or another process is at it.

        Args:
            relay_id: Which one.

        Returns:
            When to call again, seconds since 1970; None when it has come to an end, or needs its user.

        Raises:
            RelayError: There is no such relay.
        """
        relay = self.store.working(relay_id)
        now_s = self._clock.time()
        due = relay.wake_s is not None and is_due(relay.wake_s, now_s, self.platform.pace)
        if not due and (relay.wake_s is not None or not self.store.unsent(relay_id)):
            return relay.wake_s
        lease = Lease(self.store, relay_id)
        if lease.take(now_s) is not None:
            return now_s + _BUSY_S if due else None
        try:
            if due:
                self._act(relay_id, lease)
                relay = self.store.working(relay_id)
            self._send(relay)
        finally:
            lease.release()
        return relay.wake_s

    def _act(self, relay_id: str, lease: Lease) -> None:
        tick = Tick(
            self.store, self.platform, relay_id, lease, collect=self._collect, fetch=self._fetch, clock=self._clock
        )
        tick.run()

    def _send(self, relay: Relay) -> None:
        """Send what the user is to be told; one that is sent when this dies is sent again."""
        if not relay.order.notify:
            return
        for pending in self.store.unsent(relay.id):
            problems = self._notify(relay.order.notify, pending.notice.title, pending.notice.body)
            self.store.sent(pending, self._clock.time(), "; ".join(problems))


def stop_relay(store: Store, relay_id: str, now_s: float, *, now: bool = False) -> Relay:
    """Let a relay end: no further session. Where one runs, the next tick tells it, and waits for its end.

    Args:
        store: Where it is kept.
        relay_id: Which one.
        now_s: Seconds since 1970.
        now: Whether its session is to be ended at any price: its output may be lost.

    Returns:
        How it stands now: ``"stopping"`` where a session may still run, else ``"stopped"`` or ``"done"``.
    """

    def change(relay: Relay) -> Relay:
        if relay.state in ("done", "stopped"):
            return relay
        if any(session.is_open or session.stage == "ended" for session in relay.sessions):
            return changes.stopping(relay, "now" if now else "kindly", now_s)
        return changes.closed(relay, "stopped", "you stopped it")

    return _change(store, relay_id, now_s, change)


def resume_relay(store: Store, relay_id: str, now_s: float) -> Relay:
    """Let a relay go on that was stopped, or that needed its user. What had gone wrong in a row is forgiven.

    Args:
        store: Where it is kept.
        relay_id: Which one.
        now_s: Seconds since 1970.

    Returns:
        How it stands now.

    Raises:
        RelayError: It is done already.
    """

    def change(relay: Relay) -> Relay:
        if relay.state == "done":
            name = relay.order.name
            raise RelayError(f"the relay {name!r} is done", hint=f"its run is in {relay.order.out}")
        return changes.resumed(relay, now_s)

    return _change(store, relay_id, now_s, change)


def _change(store: Store, relay_id: str, now_s: float, change: Callable[[Relay], Relay]) -> Relay:
    """Change what is stored now, however often another process is faster."""
    for _ in range(_CLASHES_MOST):
        before = store.working(relay_id)
        after = change(before)
        if after is before:
            return before
        notice = notice_of(before, after) if before.order.notify else None
        try:
            return store.write(before, after, now_s, [notice] if notice else [])
        except StaleError:
            continue
    raise RelayError(f"the relay {relay_id!r} is changed by other processes all the time", hint="try again")
