"""Who drives a relay looks at it too: what was seen is kept, and what goes wrong passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.core.errors import TransientPlatformError
from perdure.platforms.protocol import Submission
from perdure.relay.controller import Controller
from perdure.relay.driving import Driver, Glance
from perdure.relay.home import Home
from perdure.relay.live import PREFIX
from perdure.relay.records import RelayOrder
from perdure.relay.store import Store
from perdure.testing.clock import FakeClock
from perdure.testing.platform import Course, ScriptedPlatform

ID = "0a0a0a0a"
BEAT = PREFIX + json.dumps({"session": 1, "runs": [{"name": "digits", "step": 7}], "metrics": {"loss": 0.5}})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    bundle = tmp_path / "bundle.tar.xz"
    bundle.write_bytes(b"bundle")
    order = RelayOrder(
        "digits", "train.py", tmp_path, "scripted", "t4x2", 3600.0, tmp_path / "out", bundle, "sha256:0"
    )
    with Store(Home(tmp_path / "home")) as store:
        store.create(ID, order, clock.time())
        yield store


@pytest.fixture
def platform(clock: FakeClock) -> ScriptedPlatform:
    def course(_: Submission) -> Course:
        return Course(runs_s=3000.0, lines=("hello", BEAT))

    return ScriptedPlatform(clock, course, allowed_s=36000.0)


def driver_of(store: Store, platform: ScriptedPlatform, clock: FakeClock, tick: Callable | None = None) -> Driver:
    tick = tick or Controller(store, platform, clock=clock).tick
    return Driver(store, platform, tick, ID, clock=clock.time)


def test_what_the_session_says_is_kept_for_every_command(store, platform, clock) -> None:
    driver = driver_of(store, platform, clock)
    driver.step()
    clock.forward(60)
    driver.step()
    kept = Glance.read(store.home.relay(ID))
    assert kept == driver.glance
    assert kept.live is not None
    assert (kept.live.runs[0].step, dict(kept.live.metrics), kept.seen_s) == (7, {"loss": 0.5}, clock.time())
    assert [quota.resource for quota in kept.quotas] == ["gpu"]
    assert driver.wake_s is not None
    assert clock.time() < driver.wake_s <= clock.time() + platform.pace.poll_s


def test_the_word_of_a_session_that_has_ended_is_not_shown_for_the_next(store, platform, clock) -> None:
    driver = driver_of(store, platform, clock)
    driver.step()
    assert driver.glance.live is not None
    clock.forward(3600)
    for _ in range(40):  # it left no marker: the output is waited for
        driver.step()
        clock.forward(60)
    assert max(session.number for session in driver.relay.sessions) == 2
    assert driver.glance.live is None  # the second one's log speaks of session 1


def test_a_look_that_fails_is_told_and_made_again(store, platform, clock) -> None:
    driver = driver_of(store, platform, clock)
    driver.step()

    def fail(call: str) -> None:
        if call == "logs":
            raise TransientPlatformError("no answer from there")

    platform.before = fail
    clock.forward(60)
    driver.step()
    assert (driver.glance.problem, driver.glance.live is None) == ("no answer from there", False)
    platform.before = lambda call: None
    clock.forward(60)
    driver.step()
    assert driver.glance.problem == ""


def test_a_disk_that_is_full_for_a_while_does_not_end_the_driver_nor_the_relay(store, platform, clock) -> None:
    driver = driver_of(store, platform, clock)
    platform.after = lambda call: store.run("PRAGMA query_only = ON") and None  # nothing can be written any more
    driver.step()
    assert driver.wake_s == clock.time() + platform.pace.poll_s
    assert "relays.sqlite" in driver.glance.problem
    platform.after = lambda call: None
    store.run("PRAGMA query_only = OFF")
    clock.forward(60)
    driver.step()
    clock.forward(platform.pace.settle_s)
    driver.step()
    assert driver.glance.problem == ""
    assert (driver.relay.sessions[0].stage, len(platform.sessions)) == ("submitted", 1)


def test_a_clock_that_is_set_back_does_not_put_the_driver_to_sleep(store, platform, clock) -> None:
    driver = driver_of(store, platform, clock)
    driver.step()
    assert not driver.is_due
    clock.set_wall(clock.time() - 30 * 86400)
    assert driver.is_due
    driver.step()
    assert not driver.is_due
