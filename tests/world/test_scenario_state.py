"""Every scenario, cut, restored into a fresh world under another seed, ends bit for bit where it would have ended."""

import pytest
import torch

from cases.worlds import SCENARIOS, Progress, drive, full_digest, get_rng, seed_all
from world.ways import through_bytes, world_of

pytestmark = pytest.mark.filterwarnings("ignore")

# workers of a loader that stays belong to the loop, which seeds them; here only the state is tested
CASES = [(name, cut) for name, s in SCENARIOS.items() for cut in s["cuts"] if s["exact"]]

_straight: dict[str, str] = {}


def straight(name):
    """Digest at the end of the uninterrupted twin."""
    if name not in _straight:
        seed_all(0)
        w = SCENARIOS[name]["build"]()
        drive(w)
        _straight[name] = full_digest(w)
    return _straight[name]


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_a_scenario_restored_in_a_fresh_world_goes_on_bit_for_bit(name, cut):
    want = straight(name)
    seed_all(0)
    w = SCENARIOS[name]["build"]()
    world = world_of(w)
    progress, epoch_rng = drive(w, stop=cut)
    saved = through_bytes(world.capture())
    now_rng = get_rng()

    seed_all(987654)
    fresh = SCENARIOS[name]["build"]()
    fresh_world = world_of(fresh)
    if fresh["prime"]:
        fresh["prime"](next(iter(fresh["loader"](fresh["dataset"](), 0))))
    fresh_world.restore(saved)
    resumed = Progress(progress.step, progress.epoch, progress.batch)
    drive(fresh, resumed, epoch_rng=epoch_rng if progress.batch else None, now_rng=now_rng)
    assert full_digest(fresh) == want


ALTS = ["dataparallel_prefix", "compile_prefix", "meta_init"]


@pytest.mark.parametrize("name", ALTS)
def test_the_same_training_written_in_another_legal_way_takes_over_the_checkpoint(name):
    seed_all(0)
    w = SCENARIOS[name]["build"]()
    world = world_of(w)
    progress, epoch_rng = drive(w, stop=6)
    saved, now_rng = through_bytes(world.capture()), get_rng()
    drive(w, progress, epoch_rng=epoch_rng, now_rng=now_rng)

    seed_all(987654)
    other = w["alt"]()
    other_world = world_of(other)
    other_world.restore(saved)
    drive(other, Progress(6, 1, 2), epoch_rng=epoch_rng, now_rng=now_rng)
    for mine, theirs in zip(w["model"].parameters(), other["model"].parameters(), strict=True):
        assert torch.equal(mine, theirs)  # bit for bit, under other names


def test_every_alternative_is_tried():
    built = {name: s["build"]() for name, s in SCENARIOS.items() if s["exact"]}
    assert sorted(ALTS) == sorted(name for name, w in built.items() if w["alt"])
