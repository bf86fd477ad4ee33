"""Which checkpoints stay."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snapshots import (
    assert_no_debris,
    open_store,
    saved_run,
    snapshot,
    steps,
)

from perdure.checkpoint.retention import Committed, best_of, expendable, last_good, to_drop
from perdure.checkpoint.store import Keep
from perdure.core.errors import ConfigError
from perdure.core.progress import Position


def test_the_newest_stay_and_the_others_go(tmp_path):
    saved_run(tmp_path / "digits", [10, 20, 30, 40, 50], last=3)
    assert steps(tmp_path / "digits") == [50, 40, 30]
    assert_no_debris(tmp_path / "digits")


@pytest.mark.parametrize(("best", "kept"), [("max:accuracy", 20), ("min:accuracy", 30)])
def test_the_best_one_stays(tmp_path, best, kept):
    store = open_store(tmp_path / "digits", keep=Keep(last=1, best=best))
    for step, accuracy in [(10, 0.5), (20, 0.9), (30, 0.1), (40, math.nan), (50, 0.5)]:
        store.save(snapshot(step, metrics={"accuracy": accuracy}))
    store.save(snapshot(60))
    assert steps(tmp_path / "digits") == [60, kept]


def test_of_equally_good_ones_the_one_that_was_measured_stays(tmp_path):
    store = open_store(tmp_path / "digits", keep=Keep(last=1, best="max:accuracy"))
    for step in (10, 20, 30):
        store.save(snapshot(step, metrics={"accuracy": 0.9}))
    assert steps(tmp_path / "digits") == [30, 10]


def test_the_last_healthy_one_is_never_lost_to_unhealthy_ones(tmp_path):
    store = open_store(tmp_path / "digits", keep=Keep(last=1))
    store.save(snapshot(10))
    for step in (20, 30, 40):
        store.save(snapshot(step, healthy=False))
    assert steps(tmp_path / "digits") == [40, 10]
    store.save(snapshot(50))
    assert steps(tmp_path / "digits") == [50]


def test_a_save_of_the_same_boundary_replaces_the_earlier_one(tmp_path):
    store = open_store(tmp_path / "digits", keep=Keep(last=5))
    store.save(snapshot(10))
    store.save(snapshot(20, reason="interval"))
    store.save(snapshot(20, reason="stop"))
    found = store.list()
    assert [(f.folder.name, f.manifest.reason) for f in found] == [
        ("step-000000020-s3", "stop"),
        ("step-000000010", "interval"),
    ]
    store.save(snapshot(20, reason="finished"))
    assert steps(tmp_path / "digits") == [20, 10]
    store.close()
    assert_no_debris(tmp_path / "digits")


def test_two_boundaries_of_one_step_both_stay_and_the_later_is_newer(tmp_path):
    store = open_store(tmp_path / "digits")
    store.save(snapshot(20, epoch=1))
    store.save(snapshot(20, epoch=0))  # the earlier boundary, saved later
    assert [f.manifest.position.epoch for f in store.list()] == [1, 0]
    assert store.newest().manifest.position.epoch == 1


def test_an_unhealthy_save_does_not_replace_a_healthy_one_of_the_same_boundary(tmp_path):
    store = open_store(tmp_path / "digits", keep=Keep(last=1))
    store.save(snapshot(10))
    store.save(snapshot(10, healthy=False))
    assert [f.manifest.healthy for f in store.list()] == [False, True]


@pytest.mark.parametrize("last", [0, -1, 1.5, True, "2"])
def test_keeping_none_is_refused(last):
    with pytest.raises(ConfigError, match=r"keep\.last"):
        Keep(last=last)


@pytest.mark.parametrize("best", ["accuracy", "maximum:a", "max:", "", 3])
def test_a_best_without_direction_or_metric_is_refused(best):
    with pytest.raises(ConfigError, match=r"keep\.best"):
        Keep(best=best)


facts = st.tuples(st.integers(0, 9), st.booleans(), st.none() | st.floats())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(facts, min_size=1, unique_by=lambda fact: fact[0]),
    st.integers(1, 4),
    st.sampled_from([None, "max:a", "min:a"]),
    st.data(),
)
def test_no_rule_ever_drops_the_last_good_one(template, specs, last, best, data):
    items = []
    for seq, (step, healthy, value) in enumerate(specs, 1):
        metrics = {} if value is None else {"a": value}
        changes = {"position": Position(step), "seq": seq, "healthy": healthy, "metrics": metrics}
        items.append(Committed(Path(str(seq)), template.model_copy(update=changes)))
    items.sort(key=lambda item: item.manifest.key, reverse=True)
    keep, saved = Keep(last, best), data.draw(st.sampled_from(items))
    dropped = to_drop(items, keep, saved)
    left = [item for item in items if item not in dropped]
    assert saved in left
    assert any(item.manifest.healthy for item in left) == any(item.manifest.healthy for item in items)
    assert len(left) >= min(last, len(items))
    spare = expendable(items, keep)
    assert last_good(items) not in spare
    assert len(set(spare)) == len(spare) == len(items) - 1
    assert best_of(items, keep) in (None, last_good(items), spare[-1] if spare else None)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return open_store(tmp_path_factory.mktemp("template") / "digits").save(snapshot(1)).manifest
