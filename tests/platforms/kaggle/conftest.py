"""The platform against the emulator, through the real client; sessions run what their order says."""

import pytest

from perdure.platforms.protocol import Submission
from perdure.platforms.reach import reach
from perdure.testing.kaggle import Emulator, Rules, Switches
from platforms.kaggle.bundles import pack, until

PACE = {"poll_s": 0.1, "settle_s": 1.0, "lag_s": 2.0, "retry_s": 0.1, "retry_most_s": 1.0}
RULES = Rules(window_s=60.0, pace=PACE, dataset_ready_s=0.2)


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


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One emulator, and one platform with its client, for all tests of a module: starting them costs most."""
    folder = tmp_path_factory.mktemp("kaggle") / "emulator"
    with Emulator(folder, RULES, Switches()) as running:
        platform = reach("emulator", {"folder": str(folder)})
        yield running, platform
        platform.close()


@pytest.fixture
def emulator(shared):
    """An emulator on which nothing has happened yet."""
    running, _ = shared
    yield running
    running.store.rules = RULES
    running.store.board.set(Switches())
    until(lambda: all(_is_over(running, session) for session in running.sessions()))
    with running.store.lock:
        for what in (running.store.world.kernels, running.store.world.sessions, running.store.world.datasets):
            what.clear()
    (running.folder / "calls.jsonl").unlink(missing_ok=True)


def _is_over(running, session):
    """Whether a session has ended; it is asked to, if it has not."""
    with running.store.lock:
        if session.stage != "ended" and not session.deleted:
            running._sessions.end(session)
        return session.stage == "ended"


@pytest.fixture
def kaggle(emulator, shared):
    return shared[1]


@pytest.fixture
def ended(emulator, kaggle):
    """Waits for the end of a session."""

    def wait(handle, within_s=60.0):
        emulator.switch(never_start=False)
        until(lambda: kaggle.observe(handle).ended, within_s)
        return kaggle.observe(handle)

    return wait
