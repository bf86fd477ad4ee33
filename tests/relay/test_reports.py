"""What users of Kaggle report, each told again to the emulator: the relay lives through it.

One test for each report of the list that is about relays and is not kept elsewhere. Elsewhere: B69 (what survives; a
stop before the window closes) in ``inside/test_inside_session.py``, B78 (metadata that only looks like success) in
``tests/platforms/kaggle/test_kaggle_metadata.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from relayed import PACE, Bench, pack

from perdure.core.errors import PlatformError
from perdure.relay.controller import stop_relay
from perdure.relay.inside.marker import Marker
from perdure.testing.kaggle import Rules

ONE = {"END": "10", "EACH": "10"}
"""A training that is done in one session."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def bench_of(tmp_path, packed):
    made = []

    def make(**rules):
        made.append(
            Bench(tmp_path, *packed, Rules(**{"window_s": 60.0, "pace": PACE, "dataset_ready_s": 0.2, **rules}))
        )
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(bench_of):
    return bench_of()


def outcomes(relay) -> list[str]:
    return [session.outcome for session in relay.sessions]


def marker_of(relaying, number: int) -> Marker:
    return Marker.read(relaying.store.home.session(relaying.relay_id, number))


def test_b32_an_output_on_many_pages_comes_whole(bench, tmp_path):
    bench.emulator.switch(page_most=8)
    many = "os.mkdir('frames'); [Path(f'frames/{n:04}.txt').write_text(str(n)) for n in range(60)]"
    relay = bench.start(environment={**ONE, "LAST": many}).drive()
    assert relay.state == "done"
    frames = sorted((tmp_path / "out/frames").iterdir())
    assert [frame.read_text() for frame in frames] == [str(n) for n in range(60)]


def test_b54_a_refused_push_is_no_session_and_is_tried_again(bench):
    bench.emulator.switch(refusals=("gpu-slots", "projected", "quota"))
    relaying = bench.start(environment=ONE)
    reasons = []

    def note(relay) -> bool:
        if not bench.emulator.sessions():
            assert not any(session.stage == "submitted" for session in relay.sessions)
            reasons.append((relay.state, relay.reason))
        return False

    relay = relaying.drive(note)
    assert (relay.state, outcomes(relay), len(bench.emulator.sessions())) == ("done", ["finished"], 1)
    assert any(state == "waiting" and "Maximum batch GPU session count" in reason for state, reason in reasons)


def test_b55_a_session_that_cannot_be_cancelled_is_waited_for_and_never_doubled(bench):
    bench.emulator.switch(cancel="forbidden")
    relaying = bench.start(window_s=6.0, environment={"LAST": "time.sleep(60)"})
    relaying.drive(lambda relay: any(session.started_s for session in relay.sessions))
    stop_relay(relaying.store, relaying.relay_id, time.time())
    relaying.drive(lambda relay: relay.told == "kindly")
    assert (relaying.relay.state, len(bench.emulator.sessions())) == ("stopping", 1)
    relay = relaying.drive()
    assert (relay.state, len(bench.emulator.sessions())) == ("stopped", 1)


def test_b58_too_many_files_are_warned_of_while_there_is_time(bench, tmp_path):
    many = "os.mkdir('frames'); [Path(f'frames/{n}.txt').touch() for n in range(600)]; time.sleep(3)"
    clean = "import shutil; shutil.rmtree('frames')"
    relaying = bench.start(environment={**ONE, "FIRST": many, "LAST": clean})
    assert relaying.drive().state == "done"
    log = (relaying.store.home.session(relaying.relay_id, 1) / "log.txt").read_text(encoding="utf-8")
    assert log.count("files and folders lie in") == 1  # once, and not at every look
    assert len([p for p in (tmp_path / "out/perdure").rglob("*") if p.is_file()]) < 10  # a checkpoint is no clutter


@pytest.mark.parametrize("old_layout", [False, True])
def test_b59_inputs_are_found_wherever_and_whenever_they_are_mounted(bench, old_layout):
    bench.emulator.switch(old_layout=old_layout, mount_late_s=1.0)
    relaying = bench.start()
    relay = relaying.drive()
    assert (relay.state, outcomes(relay)) == ("done", ["paused", "finished"])
    (resumed,) = marker_of(relaying, 2).resumed
    assert (resumed["run"], resumed["step"]) == ("digits", 10)


DRIVER = """
import sys, time
from pathlib import Path
from perdure.platforms.reach import reach
from perdure.relay.controller import Controller
from perdure.relay.home import Home
from perdure.relay.store import Store

assert sys.getfilesystemencoding() != "utf-8", sys.getfilesystemencoding()
folder, relay_id = Path(sys.argv[1]), sys.argv[2]
with Store(Home(folder / "home")) as store:
    controller = Controller(store, reach("emulator", {"folder": str(folder / "emulator")}))
    while not any(session.outcome for session in store.load(relay_id).sessions):
        controller.tick(relay_id)
        time.sleep(0.2)
"""


def test_b60_a_log_and_names_that_the_locale_cannot_write_cost_nothing(bench, tmp_path):
    bar, name = "\u2588\u2588\u258c 50 % caf\u00e9", "\u0434\u0430\u043d\u043d\u044b\u0435.txt"
    last = f"print({bar!a}); Path({name!a}).write_text('x')"
    relaying = bench.start(environment={"LAST": last})
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", DRIVER, str(tmp_path), relaying.relay_id]
    subprocess.run(command, env={**os.environ, **plain}, check=True, timeout=60)
    assert outcomes(relaying.relay)[0] == "paused"
    log = relaying.store.home.session(relaying.relay_id, 1) / "log.txt"
    assert bar in log.read_text(encoding="utf-8")
    assert relaying.drive().state == "done"
    assert (tmp_path / "out" / name).read_text() == "x"


def test_b70_hours_come_back_when_the_service_says_whatever_the_clocks_say(bench_of, monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    bench = bench_of(gpu_quota_s=60.0, gpu_used_s=60.0, refresh_every_s=12.0)
    bench.emulator.switch(clock_offset_s=5.0)  # and its clock is ahead
    relaying = bench.start(accelerator="t4x2", environment=ONE)
    relay = relaying.drive(lambda relay: relay.state == "waiting")
    told = next(quota for quota in bench.platform.quota() if quota.resource == "gpu")
    assert told.left_s == 0
    assert datetime.fromtimestamp(told.refresh_at_s).strftime("%H:%M") in relay.reason  # the reader's time of day
    assert "+14" in relay.reason
    assert datetime.fromtimestamp(relay.wake_s, UTC) <= datetime.fromtimestamp(told.refresh_at_s, UTC)
    relay = relaying.drive()
    assert (relay.state, outcomes(relay)) == ("done", ["finished"])


def test_b76_a_session_ends_with_its_script_and_every_second_of_it_is_counted(bench_of):
    bench = bench_of(gpu_quota_s=600.0)
    relay = bench.start(accelerator="t4x2", environment={**ONE, "FIRST": "time.sleep(2)"}).drive()
    (session,) = relay.sessions
    used_s = next(quota.used_s for quota in bench.platform.quota() if quota.resource == "gpu")
    assert (relay.state, session.outcome) == ("done", "finished")
    assert 2.0 <= session.accelerator_s <= used_s + 0.5  # installing and idling count as well
    assert used_s < session.window_s  # and it did not stay until its window closed


def test_b77_a_mirror_that_is_being_processed_is_waited_for_and_gone_on_from(bench_of):
    bench = bench_of(dataset_ready_s=1.0)
    bench.emulator.switch(dataset_forbidden_s=0.5)
    hang = "time.sleep(60) if not began else None"
    relaying = bench.start(mirror="kaggle", internet=True, window_s=30.0, environment={"LAST": hang})
    mirror = f"{bench.emulator.rules.owner}/perdure-{relaying.relay_id}-mirror"
    relaying.drive(lambda _: _holds(bench.platform, mirror, 10))
    (session,) = relaying.relay.sessions
    bench.platform.stop(session.handle, now=True)  # hard, and the output is lost
    relay = relaying.drive()
    assert (relay.state, outcomes(relay)) == ("done", ["no-output", "finished"])
    assert "the mirror holds digits at step 10" in relay.sessions[0].reason
    assert marker_of(relaying, 2).resumed[0]["step"] == 10


def _holds(platform, mirror: str, step: int) -> bool:
    try:
        return f'"step": {step}' in platform.dataset_text(mirror, "perdure-mirror.json")
    except PlatformError:
        return False
