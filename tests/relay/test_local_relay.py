"""A whole relay on this machine: real processes, a real hand-over, and a driver that is killed again and again."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.checkpoint.search import find_checkpoints
from perdure.core.clock import SystemClock
from perdure.relay.bundle import make_bundle
from perdure.relay.home import Home
from perdure.relay.records import Relay, RelayOrder
from perdure.relay.slugs import new_relay_id
from perdure.relay.store import Store
from relay.relayed import TRAIN

WITHIN_S = 150.0
PACE = {"poll_s": 0.2, "settle_s": 1.0, "lag_s": 2.0, "retry_s": 0.2, "retry_most_s": 1.0}

_DRIVER = """
import sys, time
from pathlib import Path
from perdure.platforms.reach import reach
from perdure.relay.controller import Controller
from perdure.relay.home import Home
from perdure.relay.store import Store
store = Store(Home(Path(sys.argv[1])))
relay = store.load(sys.argv[2])
controller = Controller(store, reach(relay.order.platform, relay.order.place))
while (wake_s := controller.tick(relay.id)) is not None:
    time.sleep(max(0.0, wake_s - time.time()))
"""


def begin(tmp_path: Path) -> tuple[Home, str]:
    home, relay_id = Home(tmp_path / "home"), new_relay_id()
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    bundle = make_bundle(project, "train.py", home.bundle(relay_id))
    order = RelayOrder(
        name="digits",
        target="train.py",
        project=project,
        platform="local",
        place={"folder": str(tmp_path / "place"), "pace": PACE},
        accelerator="none",
        window_s=60.0,
        out=tmp_path / "out",
        bundle=bundle.path,
        bundle_digest=bundle.digest,
        environment={"END": "50", "EACH": "20"},
    )
    with Store(home) as store:
        store.create(relay_id, order, SystemClock().time())
    return home, relay_id


def drive(home: Home, relay_id: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _DRIVER, str(home.folder), relay_id])


def stored(home: Home, relay_id: str) -> Relay:
    with Store(home) as store:
        return store.load(relay_id)


@pytest.mark.slow
def test_a_relay_whose_driver_is_killed_again_and_again_gets_to_its_end(tmp_path: Path) -> None:
    home, relay_id = begin(tmp_path)
    chance = random.Random(4)
    until_s = time.monotonic() + WITHIN_S
    kills = 0
    while stored(home, relay_id).state != "done":
        assert time.monotonic() < until_s, stored(home, relay_id)
        driver = drive(home, relay_id)
        try:
            driver.wait(0.3 + chance.random() * (2.0 + kills / 4))  # on a slow machine it must get somewhere, too
        except subprocess.TimeoutExpired:
            driver.kill()
            kills += 1
        driver.wait()
    relay = stored(home, relay_id)
    assert kills > 2
    assert [each.outcome for each in relay.sessions if each.stage == "collected"] == [
        "paused",
        "paused",
        "finished",
    ]
    assert [each.runs[0].step for each in relay.sessions if each.runs] == [20, 40, 50]
    assert one_after_the_other(tmp_path)
    assert [each.manifest.step for each in find_checkpoints(tmp_path / "out") if each.manifest][:1] == [50]


def one_after_the_other(tmp_path: Path) -> bool:
    states = [json.loads(path.read_text()) for path in (tmp_path / "place/sessions").glob("*/state.json")]
    spans = sorted((state["started_s"], state["ended_s"]) for state in states)
    return all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))
