"""The platform against the emulator, through the real client; sessions run what their order says."""

import time

import pytest

from perdure.platforms.protocol import Submission
from perdure.platforms.reach import reach
from perdure.testing.kaggle import Emulator, Rules
from platforms.kaggle.bundles import pack

PACE = {"poll_s": 0.1, "settle_s": 1.0, "lag_s": 2.0, "retry_s": 0.1, "retry_most_s": 1.0}


@pytest.fixture
def cargo(tmp_path):
    return pack(tmp_path / "bundle.tar.xz")


@pytest.fixture
def order(cargo):
    """A submission that runs a piece of Python in the session's working folder."""

    def make(do="pass", slug="perdure-test-1a2b3c4d-1", **more):
        plan = {
            "relay": "1a2b3c4d",
            "session": 1,
            "slug": slug,
            "target": "train.py",
            "mount_wait_s": 5.0,
            "do": do,
        }
        return Submission(**({"slug": slug, "cargo": cargo, "order": plan, "window_s": 30.0} | more))

    return make


@pytest.fixture
def emulator(tmp_path):
    with Emulator(tmp_path / "emulator", Rules(window_s=60.0, pace=PACE, dataset_ready_s=0.2)) as running:
        yield running


@pytest.fixture
def kaggle(emulator):
    platform = reach("emulator", {"folder": str(emulator.folder)})
    yield platform
    platform.close()


@pytest.fixture
def ended(kaggle):
    """Waits for the end of a session."""

    def wait(handle, within_s=30.0):
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            seen = kaggle.observe(handle)
            if seen.ended:
                return seen
            time.sleep(0.05)
        raise AssertionError(f"it has not ended: {seen}")

    return wait
