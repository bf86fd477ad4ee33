"""What the tests of the controller share: a relay on a scripted platform, and a judge of its sessions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from perdure.platforms.protocol import Handle, Pace, Platform
from perdure.relay.controller import Controller
from perdure.relay.handover import Collected
from perdure.relay.home import Home
from perdure.relay.records import Relay, RelayOrder, RunStand
from perdure.relay.store import Store
from perdure.testing.clock import FakeClock
from perdure.testing.platform import ScriptedPlatform

PACE = Pace(poll_s=300.0, settle_s=180.0, lag_s=900.0, retry_s=60.0, retry_most_s=1800.0)
STEP_S = 10.0
"""Seconds of training that one step takes, in these tests."""


def order(tmp_path: Path, **changed: object) -> RelayOrder:
    values = {
        "name": "digits",
        "target": "train.py",
        "project": tmp_path,
        "platform": "scripted",
        "accelerator": "none",
        "window_s": 3600.0,
        "out": tmp_path / "out",
        "bundle": tmp_path / "bundle.tar.xz",
        "bundle_digest": "xxh3-128:00",
    }
    return RelayOrder(**{**values, **changed})  # type: ignore[arg-type]


@dataclass
class Judge:
    """Stands for the hand-over: a session trains a step in ``STEP_S``, from where its order says that it begins."""

    platform: ScriptedPlatform
    clock: FakeClock
    goal: int = 1000
    outcomes: dict[int, Collected] = field(default_factory=dict)
    lags: dict[int, int] = field(default_factory=dict)
    judged: list[int] = field(default_factory=list)

    def __call__(
        self,
        platform: Platform,
        handle: Handle,
        relay_id: str,
        number: int,
        folder: Path,
        now_s: float,
        ended_s: float,
    ) -> Collected | None:
        if self.lags.get(number, 0) > 0:
            self.lags[number] -= 1
            return None
        self.judged.append(number)
        if number in self.outcomes:
            return self.outcomes[number]
        session = self.platform.sessions[handle.ref]
        begin = sum(each["step"] for each in session.submission.order["expects"])
        step = min(self.goal, begin + int(session.ran_s(self.clock.time()) / STEP_S))
        done = step >= self.goal
        stand = RunStand(
            "digits", "finished" if done else "paused", step, step // 100, f"step-{step:09d}", 10, "epochs"
        )
        if session.end == "failed" and not done:
            return Collected("killed", "the platform ended it", (replace(stand, status="running"),))
        outcome = "finished" if done else "paused"
        return Collected(outcome, "its window closed", (stand,), session.ran_s(self.clock.time()))  # type: ignore[arg-type]


@dataclass
class Stage:
    """A relay, its platform, and a clock."""

    home: Home
    clock: FakeClock
    platform: ScriptedPlatform
    judge: Judge
    store: Store
    relay_id: str
    told: list[str] = field(default_factory=list)
    fetched: int = 0

    def controller(self, store: Store | None = None) -> Controller:
        return Controller(
            store or self.store,
            self.platform,
            collect=self.judge,
            fetch=self.fetch,
            notify=self.notify,
            clock=self.clock,
        )

    def fetch(self, platform: Platform, relay: Relay, out: Path, progress: object) -> None:
        self.fetched += 1

    def notify(self, urls: object, title: str, body: str) -> tuple[str, ...]:
        self.told.append(title)
        return ()

    @property
    def relay(self) -> Relay:
        return self.store.load(self.relay_id)

    def tick(self) -> float | None:
        return self.controller().tick(self.relay_id)

    def until_rest(self, ticks: int = 5000) -> Relay:
        """Ticks, each at the time that the one before named, until there is nothing to do."""
        for _ in range(ticks):
            wake_s = self.tick()
            if wake_s is None:
                return self.relay
            self.clock.forward(max(0.0, wake_s - self.clock.time()))
        raise AssertionError(f"no rest after {ticks} ticks: {self.relay.state}: {self.relay.reason}")


def stage(
    tmp_path: Path, platform: ScriptedPlatform, clock: FakeClock, goal: int = 1000, **changed: object
) -> Stage:
    tmp_path.mkdir(exist_ok=True)
    home = Home(tmp_path / "home")
    store = Store(home)
    store.run("PRAGMA synchronous = OFF")  # nothing here loses its power
    (tmp_path / "bundle.tar.xz").write_bytes(b"bundle")
    relay = store.create("0123abcd", order(tmp_path, **changed), clock.time())
    return Stage(home, clock, platform, Judge(platform, clock, goal), store, relay.id)
