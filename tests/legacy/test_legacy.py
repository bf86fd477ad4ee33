"""What earlier releases wrote still loads."""

from __future__ import annotations

import math
import shutil
import struct

import pytest
from make_sample import HERE, VALUES, snapshot

from perdure.checkpoint.manifest import FORMAT_VERSION
from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.store import Store
from perdure.checkpoint.values import decode
from perdure.checkpoint.verify import verify
from perdure.core.paths import RunPaths

VERSIONS = sorted(path.name for path in HERE.glob("v*") if path.is_dir())


def test_there_is_a_sample_of_every_version():
    assert VERSIONS == [f"v{version}" for version in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("step", [10, 20])
def test_a_sample_loads_with_everything_in_it(version, step):
    folder = HERE / version / "sample" / "checkpoints" / f"step-{step:09d}"
    assert verify(folder).problems == ()
    checkpoint = open_checkpoint(folder)
    made = snapshot(step)
    manifest = checkpoint.manifest
    assert [e.name for e in manifest.entries] == [b.name for b in made.buffers]
    for buffer, entry in zip(made.buffers, manifest.entries, strict=True):
        assert (entry.kind, entry.dtype, entry.shape) == (buffer.kind, buffer.dtype, buffer.shape)
        assert checkpoint.buffer(buffer.name) == buffer.data
    assert (manifest.position, manifest.session, manifest.reason) == (made.position, 2, "stop")
    assert (manifest.healthy, manifest.training_s) == (step == 10, 1.5 * step)
    assert math.isnan(manifest.metrics["loss"])
    assert manifest.created == "2023-11-14T22:13:20+00:00"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_values_of_a_sample_come_back_exactly(version):
    checkpoint = open_checkpoint(HERE / version / "sample" / "checkpoints" / "step-000000020")
    values = decode(checkpoint.values, dict)
    assert list(values) == list(VALUES)
    for name, value in VALUES.items():
        found = values[name]
        assert type(found) is type(value), name
        if name == "odd nan":
            assert struct.pack(">d", found) == struct.pack(">d", value)
        else:
            assert repr(found) == repr(value), name


@pytest.mark.parametrize("version", VERSIONS)
def test_a_sample_is_gone_on_from(version, tmp_path):
    folder = shutil.copytree(HERE / version / "sample", tmp_path / "sample")
    store = Store(RunPaths(folder), "sample")
    store.open({})
    assert store.newest().manifest.step == 20
    assert store.save(snapshot(30)).manifest.seq == 3
    assert [item.manifest.step for item in store.list()] == [30, 20]
