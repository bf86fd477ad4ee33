"""One tick of a relay: asks the plan, does what it says, and asks again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from perdure.core.clock import Clock
from perdure.core.errors import (
    CredentialsError,
    NotThereError,
    PerdureError,
    RefusedError,
    RelayError,
    StaleError,
    StoreError,
    TransientPlatformError,
    UncertainError,
)
from perdure.platforms.protocol import Accelerator, Observation, Platform, Progress, Stopping, Submission
from perdure.relay import actions, changes
from perdure.relay.actions import Action, Seen, Terms
from perdure.relay.handover import Collector
from perdure.relay.hours import retry_s
from perdure.relay.inside.order import session_order
from perdure.relay.lease import Lease
from perdure.relay.mirrored import mirror_datasets, with_mirror
from perdure.relay.notices import notice_of
from perdure.relay.plan import plan
from perdure.relay.records import Relay, Stop
from perdure.relay.store import Store

STEPS_MOST = 60
"""Actions of one tick; far more than any tick needs."""

GONE_TRIES = 4
"""How often the finished run is asked for that the platform does not show."""

_CLASHES_MOST = 100

_IN_ACCOUNT = (
    actions.Look,
    actions.Find,
    actions.Observe,
    actions.Halt,
    actions.Collect,
    actions.AskQuota,
    actions.Intend,
    actions.Submit,
    actions.Fetch,
)
"""What must not be done with the credentials of another account: there, every session looks as if it were gone."""


class Fetcher(Protocol):
    """Brings a finished run to this machine; may be called again after a death anywhere in it."""

    def __call__(self, platform: Platform, relay: Relay, out: Path, progress: Progress | None) -> object: ...


Notifier = Callable[[Sequence[str], str, str], Sequence[str]]
"""Sends a notice: addresses, title, body; gives what failed."""


class Tick:
    """One tick; thrown away after it.

    Args:
        store: Where relays are kept.
        platform: Where sessions run.
        relay_id: Which relay.
        lease: Held by this process.
        collect: Judges a session that has ended.
        fetch: Brings the finished run.
        clock: For the time of day.
    """

    def __init__(
        self,
        store: Store,
        platform: Platform,
        relay_id: str,
        lease: Lease,
        *,
        collect: Collector,
        fetch: Fetcher,
        clock: Clock,
    ) -> None:
        self._store = store
        self._platform = platform
        self._relay_id = relay_id
        self._lease = lease
        self._collect_session = collect
        self._fetch_run = fetch
        self._clock = clock
        self._seen = Seen()
        self._over = False
        self._is_ours = False
        self._doers: dict[type, Callable[[Relay, Any], None]] = {
            actions.Look: self._look,
            actions.Find: self._find,
            actions.Doubt: self._doubt,
            actions.Abandon: self._abandon,
            actions.Adopt: self._adopt,
            actions.Dismiss: self._dismiss,
            actions.Observe: self._observe,
            actions.Halt: self._halt,
            actions.End: self._end,
            actions.Collect: self._collect,
            actions.AskQuota: self._ask_quota,
            actions.Intend: self._intend,
            actions.Withdraw: self._withdraw,
            actions.Submit: self._submit,
            actions.Fetch: self._fetch,
            actions.Close: self._close,
            actions.Rest: self._rest,
        }

    def run(self) -> None:
        """Do all that is to be done now.

        Raises:
            RelayError: The plan does not come to rest, which is a mistake in it.
        """
        for _ in range(STEPS_MOST):
            if self._over or not self._lease.renew(self._clock.time()):
                return
            relay = self._store.working(self._relay_id)
            self._do(relay, self._next(relay))
        raise RelayError(f"the relay {self._relay_id} does not come to rest", hint="please report this")

    def _next(self, relay: Relay) -> Action:
        try:
            return plan(relay, self._seen, self._now_s, self._terms(relay))
        except RelayError as error:
            return actions.Close("needs-you", str(error))

    def _do(self, relay: Relay, action: Action) -> None:
        """Do one thing. An error of the platform never ends the relay where it may pass."""
        try:
            if isinstance(action, _IN_ACCOUNT):
                self._check_account(relay)
            self._doers[type(action)](relay, action)
        except StaleError:
            return  # the plan is asked again
        except StoreError:
            raise  # nothing can be put down; whoever drives says so, and tries again
        except TransientPlatformError as error:
            self._back_off(error, error.retry_after_s)
        except (RefusedError, NotThereError) as error:  # of a question; those of a submission are dealt with there
            self._back_off(error, None)
        except PerdureError as error:
            self._stop_here(error)
        except OSError as error:  # of this machine: its disk is full, say
            self._back_off(error, None)

    @property
    def _now_s(self) -> float:
        return self._clock.time()

    def _check_account(self, relay: Relay) -> None:
        """Once in a tick, that it is the account in which the relay was started.

        Raises:
            CredentialsError: It is another.
        """
        ours = relay.order.account
        if self._is_ours or not ours:
            return
        account = self._platform.account()
        if account.lower() != ours.lower():
            raise CredentialsError(
                f"the credentials here are those of {account}, and this relay runs in the account {ours}",
                hint=f"put those of {ours} back, then: perdure relay resume {relay.order.name}",
            )
        self._is_ours = True

    def _terms(self, relay: Relay) -> Terms:
        accelerator = self._accelerator(relay.order.accelerator)
        return Terms(
            self._platform.pace,
            accelerator.resource,
            min(relay.order.window_s, self._window_s(accelerator.name)),
            min(relay.order.window_s, self._platform.window_s("none")),
        )

    def _window_s(self, accelerator: str) -> float:
        try:
            return self._platform.window_s(accelerator)
        except RefusedError:  # retired since the relay began: a session that runs goes on, the next is refused
            return float("inf")

    def _accelerator(self, name: str) -> Accelerator:
        for accelerator in self._platform.accelerators:
            if accelerator.name == name:
                return accelerator
        raise RelayError(f"{self._platform.name} has no accelerator {name!r}")

    # sessions that may or may not be there

    def _look(self, relay: Relay, action: actions.Look) -> None:
        handle = self._platform.find(changes.session_at(relay, action.number).slug)
        self._seen = replace(self._seen, looked=self._seen.looked | {action.number})
        if handle is None:
            self._store.looked(relay.id, action.number, self._now_s)
        else:
            self._write(lambda now: changes.turned_up(now, action.number, handle))

    def _find(self, relay: Relay, action: actions.Find) -> None:
        handle = self._platform.find(changes.session_at(relay, action.number).slug)
        if handle is None:
            self._seen = replace(self._seen, sought=self._seen.sought | {action.number})
        else:
            self._write(lambda now: changes.submitted(now, action.number, handle, self._now_s))

    def _doubt(self, relay: Relay, action: actions.Doubt) -> None:
        self._write(lambda now: changes.doubted(now, action.number, self._now_s))

    def _abandon(self, relay: Relay, action: actions.Abandon) -> None:
        self._write(lambda now: changes.abandoned(now, action.number, "it did not turn up"))

    def _adopt(self, relay: Relay, action: actions.Adopt) -> None:
        handle = changes.session_at(relay, action.number).handle
        assert handle is not None
        self._write(lambda now: changes.submitted(now, action.number, handle, self._now_s))

    def _dismiss(self, relay: Relay, action: actions.Dismiss) -> None:
        self._write(lambda now: changes.dismissed(now, action.number, self._now_s))

    # the session that runs

    def _observe(self, relay: Relay, action: actions.Observe) -> None:
        handle = changes.session_at(relay, action.number).handle
        assert handle is not None
        try:
            observation = self._platform.observe(handle)
        except NotThereError as error:
            observation = Observation("missing", message=error.what)
        self._write(lambda now: changes.observed(now, action.number, observation, self._now_s))
        self._seen = replace(self._seen, observed={**self._seen.observed, action.number: observation})

    def _halt(self, relay: Relay, action: actions.Halt) -> None:
        session = changes.session_at(relay, action.number)
        assert session.handle is not None
        try:
            stopping = self._platform.stop(session.handle, now=action.now)
        except NotThereError:
            stopping = Stopping(False, "the platform shows no such session")  # which may be hidden, and run
        except RefusedError as error:
            stopping = Stopping(False, error.what)
        observed = {number: seen for number, seen in self._seen.observed.items() if number != action.number}
        halted = {**self._seen.halted, action.number: stopping.what}
        self._seen = replace(self._seen, observed=observed, halted=halted)
        if session.is_open:  # "now" is not told before it is done: only then "missing" means that it is gone
            told: Stop = "now" if action.now and stopping.done else "kindly"
            self._write(lambda now: changes.told(now, told, stopping.what))
        elif stopping.done:
            self._write(lambda now: changes.dismissed(now, action.number, self._now_s))

    def _end(self, relay: Relay, action: actions.End) -> None:
        self._write(lambda now: changes.ended(now, action.number, action.why, self._now_s))

    def _collect(self, relay: Relay, action: actions.Collect) -> None:
        session = changes.session_at(relay, action.number)
        assert session.handle is not None
        ended_s = self._now_s if session.ended_s is None else session.ended_s
        folder = self._store.home.session(relay.id, session.number)
        found = self._collect_session(
            self._platform, session.handle, relay.id, session.number, folder, self._now_s, ended_s
        )
        if found is not None:
            found = with_mirror(self._platform, relay, session, found, self._now_s - ended_s)
        if found is None:
            self._seen = replace(self._seen, lagging=self._seen.lagging | {action.number})
        else:
            self._write(lambda now: changes.collected(now, action.number, found))

    # the next session

    def _ask_quota(self, relay: Relay, action: actions.AskQuota) -> None:
        try:
            quota = tuple(self._platform.quota())
        except (NotThereError, RefusedError):  # it tells this account nothing: what it accepts is seen by trying
            quota = ()
        self._seen = replace(self._seen, quota=quota)

    def _intend(self, relay: Relay, action: actions.Intend) -> None:
        after = changes.intended(relay, action.accelerator, action.window_s, self._now_s)
        self._write_over(relay, after)
        self._seen = replace(self._seen, fresh=after.standing.numbers, refused="", said="", plain=False)

    def _withdraw(self, relay: Relay, action: actions.Withdraw) -> None:
        self._write_over(relay, changes.withdrawn(relay, action.number))
        self._seen = replace(self._seen, fresh=0)

    def _submit(self, relay: Relay, action: actions.Submit) -> None:
        number = action.number
        submission = self._submission(relay, number)
        self._seen = replace(self._seen, fresh=0)
        try:
            handle = self._platform.submit(submission)
        except UncertainError:
            self._write(lambda now: changes.doubted(changes.set_back(now), number, self._now_s))
        except RefusedError as error:
            self._refused(number, error.code, error)
        except NotThereError as error:
            self._refused(number, "sources", error)
        except PerdureError:  # it was not carried out; what that means for the relay is said in _do
            self._write(lambda now: changes.withdrawn(now, number))
            raise
        else:
            self._write(lambda now: changes.submitted(now, number, handle, self._now_s))

    def _submission(self, relay: Relay, number: int) -> Submission:
        session, order = changes.session_at(relay, number), relay.order
        accelerator = self._accelerator(session.accelerator)
        numbers = sorted({source.session for source in relay.standing.runs if not source.stand.mirrored})
        handles = [changes.session_at(relay, each).handle for each in numbers]
        return Submission(
            slug=session.slug,
            cargo=order.bundle,
            order=session_order(relay, number, accelerator, session.window_s),
            accelerator=accelerator.name,
            window_s=session.window_s,
            internet=order.internet,
            sessions=tuple(handle for handle in handles if handle is not None),
            datasets=(*order.datasets, *mirror_datasets(relay)),
            competitions=order.competitions,
            models=order.models,
        )

    def _refused(self, number: int, code: str, error: PerdureError) -> None:
        """It said no. Where it may have begun without its inputs, its slug is not used again."""
        plain = changes.session_at(self._store.working(self._relay_id), number).accelerator == "none"
        if code == "sources":
            self._write(lambda now: changes.abandoned(changes.set_back(now), number, error.what))
        else:
            self._write(lambda now: changes.withdrawn(changes.set_back(now), number))
        self._seen = replace(self._seen, refused=code, said=str(error), plain=plain)

    def _fetch(self, relay: Relay, action: actions.Fetch) -> None:
        self._write(lambda now: changes.resting(now, "active", "the finished run is being fetched", now.wake_s))

        def progress(done: int, whole: int) -> None:
            self._lease.renew(self._now_s)

        whole = self._store.load(relay.id)
        try:
            self._fetch_run(self._platform, whole, relay.order.out, progress)
        except (NotThereError, RefusedError) as error:
            if relay.tries < GONE_TRIES:
                raise
            return self._stop_here(error)
        self._seen = replace(self._seen, fetched=True)

    # the end of the tick

    def _close(self, relay: Relay, action: actions.Close) -> None:
        self._write_over(relay, changes.closed(relay, action.state, action.reason))
        self._over = True

    def _rest(self, relay: Relay, action: actions.Rest) -> None:
        if action.wake_s is not None:
            self._write_over(relay, changes.resting(relay, action.state, action.reason, action.wake_s))
        self._over = True

    def _back_off(self, error: Exception, retry_after_s: float | None) -> None:
        """Try again later: nobody is at fault, or nobody can know."""
        pace = self._platform.pace
        what = error.what if isinstance(error, PerdureError) else f"this machine: {error}"

        def change(now: Relay) -> Relay:
            wait_s = max(retry_s(pace, now.tries + 1), min(retry_after_s or 0.0, pace.retry_most_s))
            is_open = any(session.is_open for session in now.sessions)
            reason = f"{what}; tried again"
            return changes.resting(
                changes.set_back(now), "active" if is_open else "waiting", reason, self._now_s + wait_s
            )

        self._write(change)
        self._over = True

    def _stop_here(self, error: PerdureError) -> None:
        """Only the user can help."""
        where = " (while it was being stopped)" if isinstance(error, CredentialsError) else ""
        self._write(
            lambda now: changes.closed(now, "needs-you", str(error) + (where if now.state == "stopping" else ""))
        )
        self._over = True

    # writing

    def _write(self, change: changes.Change) -> None:
        """Apply what was learnt to what is stored now: what the user does meanwhile is kept."""
        for _ in range(_CLASHES_MOST):
            before = self._store.working(self._relay_id)
            after = change(before)
            if after == before:
                return
            try:
                self._write_over(before, after)
                return
            except StaleError:
                continue
        raise RelayError(f"the relay {self._relay_id} is changed by other processes all the time")

    def _write_over(self, before: Relay, after: Relay) -> None:
        """Write what was decided, if nothing was changed since it was decided."""
        notice = notice_of(before, after) if before.order.notify else None
        self._store.write(before, after, self._now_s, [notice] if notice else [])


def fetch_finished(platform: Platform, relay: Relay, out: Path, progress: Progress | None) -> object:
    """``perdure.relay.fetching.fetch_run``, loaded when it is needed."""
    from perdure.relay.fetching import fetch_run

    return fetch_run(platform, relay, out, progress)
