"""Every scenario, through the public surface only: killed with SIGKILL at three places and resumed in a new process
under another seed, it ends bit for bit where it would have ended."""

from __future__ import annotations

import pytest

from cases.worlds import SCENARIOS, drive, full_digest, seed_all
from training.driving import session
from training.processes import in_new_process

pytestmark = pytest.mark.filterwarnings("ignore")

# augmentation in workers is seeded by Perdure for each batch, so there the plain loop draws other numbers
WITH_WORKERS = {"augment_workers", "persistent_workers", "iterable_stream"}


def trap(name: str) -> str:
    words = SCENARIOS[name]["trap"].replace("'", "").replace("/", " ")
    return f"{name}: {words}"


@pytest.mark.parametrize("name", SCENARIOS, ids=trap)
def test_killed_and_resumed_it_ends_bit_for_bit_where_it_would_have_ended(name, tmp_path):
    want, _ = in_new_process(session, name, str(tmp_path / "straight"), 0, None)
    for cut in SCENARIOS[name]["cuts"]:
        root = str(tmp_path / f"cut-{cut}")
        in_new_process(session, name, root, 0, cut, expect_kill=True)
        got, resumed_from = in_new_process(session, name, root, 987654, None)
        assert resumed_from == cut
        assert got == want, f"killed after call {cut}"


def plain(name: str) -> str:
    seed_all(0)
    w = SCENARIOS[name]["build"]()
    drive(w)
    return full_digest(w)


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - WITH_WORKERS))
def test_without_workers_it_is_bit_for_bit_the_plain_loop(name, tmp_path):
    assert in_new_process(session, name, str(tmp_path), 0, None)[0] == in_new_process(plain, name)
