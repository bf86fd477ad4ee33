"""What users of Kaggle report, each told again to the emulator: the relay lives through it.

One test for each report of the list that is about relays and is not kept word for word elsewhere. B78 (metadata that
only looks like success) is kept by ``tests/platforms/kaggle/test_kaggle_metadata.py``.
"""

from __future__ import annotations

import pytest
from relayed import PACE, Bench, pack

from perdure.testing.kaggle import Rules


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def bench(tmp_path, packed):
    made = Bench(tmp_path, *packed, Rules(window_s=60.0, pace=PACE, dataset_ready_s=0.2))
    yield made
    made.close()


def test_two_sessions_and_a_run_that_comes_home(bench, tmp_path):
    relaying = bench.start()
    relay = relaying.drive()
    assert (relay.state, [s.outcome for s in relay.sessions]) == ("done", ["paused", "finished"])
    assert (tmp_path / "out/perdure/digits/checkpoints/step-000000020/manifest.json").is_file()
