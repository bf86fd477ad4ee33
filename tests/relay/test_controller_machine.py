"""Whatever goes wrong, in whatever order: never two sessions at once, none lost, and the run gets to its end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from perdure.core.errors import RefusedError, TransientPlatformError, UncertainError
from perdure.platforms.protocol import Pace, Submission
from perdure.relay.controller import resume_relay, stop_relay
from perdure.relay.store import Store
from perdure.testing.clock import FakeClock
from perdure.testing.platform import NONE, T4X2, Course, ScriptedPlatform
from relay.steady import stage

PACE = Pace(poll_s=600.0, settle_s=1200.0, lag_s=1800.0, retry_s=600.0, retry_most_s=2400.0)
CALLS = ("submit", "submit", "submit", "find", "observe", "quota", "stop", "collect", "write")
GOAL = 1000


class Died(BaseException):
    """The driver ends here, as SIGKILL ends it: nothing is caught, nothing is written any more."""


def _courses(hidden_s: st.SearchStrategy[float]) -> st.SearchStrategy[Course]:
    return st.builds(
        Course,
        queued_s=st.sampled_from([0.0, 0.0, 300.0, 2000.0]),
        runs_s=st.sampled_from([3600.0, 3600.0, 900.0, 50.0]),
        end=st.sampled_from(["complete", "complete", "failed"]),
        hidden_s=hidden_s,
        stops=st.booleans(),
    )


class Relays(RuleBasedStateMachine):
    """Two drivers, a user, a platform; each can fail in every call, before it or after it has had its effect."""

    hidden = st.sampled_from([PACE.settle_s - 1.0, 500.0, 0.0])
    """How long the platform may hide a session: shorter than what ``settle_s`` says, here."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="relays-"))
        self.clock = FakeClock()
        self.courses: list[Course] = []
        self.faults: dict[tuple[str, str], BaseException] = {}
        self.platform = ScriptedPlatform(
            self.clock, self._course, pace=PACE, allowed_s=30 * 3600.0, accelerators=(T4X2, NONE)
        )
        self.platform.before = lambda call: self._fail(call, "before")
        self.platform.after = lambda call: self._fail(call, "after")
        self.it = stage(self.folder, self.platform, self.clock, GOAL, accelerator="t4x2")
        self.stores = [self.it.store, Store(self.it.home)]
        for store in self.stores:
            store.run("PRAGMA synchronous = OFF")
            self._guard(store)
        judge = self.it.judge
        self.it.judge = lambda *args: (
            self._fail("collect", "before"),
            judge(*args),
            self._fail("collect", "after"),
        )[1]

    def _course(self, submission: Submission) -> Course:
        return self.courses.pop(0) if self.courses else Course(runs_s=submission.window_s)

    def _fail(self, call: str, moment: str) -> None:
        error = self.faults.pop((call, moment), None)
        if error is not None:
            raise error

    def _guard(self, store: Store) -> None:
        """A driver may also die directly before or after a write."""
        write = store.write

        def guarded(*args: object) -> object:
            self._fail("write", "before")
            written = write(*args)  # type: ignore[arg-type]
            self._fail("write", "after")
            return written

        store.write = guarded  # type: ignore[method-assign,assignment]

    def _tick(self, driver: int) -> None:
        store = self.stores[driver]
        try:
            self.it.controller(store).tick(self.it.relay_id)
        except Died:
            if store.connection.in_transaction:
                store.run("ROLLBACK")
            store.run("DELETE FROM leases")  # its process is gone

    @initialize(
        data=st.data(), lost=st.sampled_from([("submit", "after"), ("submit", "after"), ("write", "before"), None])
    )
    def begin(self, data: st.DataObject, lost: tuple[str, str] | None) -> None:
        self.courses = [data.draw(_courses(self.hidden)) for _ in range(2)]
        if lost is not None:
            self.faults[lost] = Died()

    @rule(driver=st.integers(0, 1))
    def tick(self, driver: int) -> None:
        self._tick(driver)

    @rule(driver=st.integers(0, 1))
    def tick_when_it_is_time(self, driver: int) -> None:
        wake_s = self.stores[driver].working(self.it.relay_id).wake_s
        self.clock.forward(max(0.0, (wake_s or 0.0) - self.clock.time()))
        self._tick(driver)

    @rule(seconds=st.sampled_from([1.0, 300.0, 1300.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.forward(seconds)

    @rule(
        call=st.sampled_from(CALLS),
        moment=st.sampled_from(["before", "after"]),
        error=st.sampled_from([Died, UncertainError, TransientPlatformError]),
    )
    def the_next_call_fails(self, call: str, moment: str, error: type[BaseException]) -> None:
        if call == "write" or (call == "submit" and moment == "after" and error is TransientPlatformError):
            error = Died  # that was carried out, and "nothing was done" would be a lie
        self.faults[call, moment] = error() if error is Died else error("it failed")

    @rule(code=st.sampled_from(["slots-full", "quota-exhausted", "quota-projected", "sources"]))
    def the_next_submission_is_refused(self, code: str) -> None:
        self.faults["submit", "before"] = RefusedError("no", code=code)

    @rule(data=st.data())
    def the_next_session_is_odd(self, data: st.DataObject) -> None:
        self.courses.append(data.draw(_courses(self.hidden)))

    @rule(now=st.booleans())
    def the_user_stops_it(self, now: bool) -> None:
        self._user(lambda: stop_relay(self.stores[1], self.it.relay_id, self.clock.time(), now=now))

    @rule()
    def the_user_resumes_it(self) -> None:
        if self.it.relay.state != "done":
            self._user(lambda: resume_relay(self.stores[1], self.it.relay_id, self.clock.time()))

    def _user(self, act: object) -> None:
        kept, self.faults = self.faults, {}
        act()  # type: ignore[operator]
        self.faults = kept

    @invariant()
    def never_two_at_once(self) -> None:
        assert len([slug for slug in self.platform.sessions if self.platform._state(slug) == "running"]) <= 1

    @invariant()
    def every_session_is_known(self) -> None:
        assert set(self.platform.sessions) <= {each.slug for each in self.it.relay.sessions}

    def teardown(self) -> None:
        self.faults.clear()
        self.courses.clear()
        try:
            self._finish()
        finally:
            for store in self.stores:
                store.close()
            shutil.rmtree(self.folder)

    def _finish(self) -> None:
        for _ in range(4):
            relay = self.it.until_rest()
            if relay.state == "done":
                break
            resume_relay(self.it.store, self.it.relay_id, self.clock.time())
        assert relay.state == "done", (relay.state, relay.reason)
        assert self.platform.running() == []
        assert relay.standing.runs[0].stand.step == GOAL
        stages = {each.slug: each.stage for each in relay.sessions}
        assert {stages[slug] for slug in self.platform.sessions} == {"collected"}
        self.check(relay)

    def check(self, relay: object) -> None:
        assert self.platform.most_at_once() == 1


class LateRelays(Relays):
    """A platform that shows a session later than it should: two may run for a while, and never for long."""

    hidden = st.sampled_from([0.0, PACE.settle_s + 100.0, 3 * PACE.settle_s])

    @invariant()
    def never_two_at_once(self) -> None:
        assert len(self.platform.running()) <= 2

    def check(self, relay: object) -> None:
        """What turned up late was ended, or taken for the relay's own."""


_SETTINGS = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestRelays = Relays.TestCase
TestRelays.settings = _SETTINGS
TestLateRelays = LateRelays.TestCase
TestLateRelays.settings = settings(_SETTINGS, max_examples=10)
