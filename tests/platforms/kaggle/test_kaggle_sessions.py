"""A session on Kaggle from its submission to its output, through the real client."""

import json

import pytest

from perdure.core.errors import NotThereError, RefusedError
from perdure.platforms.protocol import Handle
from platforms.kaggle.bundles import pack, until

WRITE = """
import os, pathlib, sys
pathlib.Path("sub").mkdir()
for name in ("a.txt", "sub/b.txt", "sub/ä c.txt"):
    pathlib.Path(name).write_text(name * 1000)
print("a line"); print("an error", file=sys.stderr)
print(os.environ["KAGGLE_KERNEL_RUN_TYPE"])
"""


def test_a_session_runs_its_bundle_and_leaves_its_output(kaggle, order, ended, tmp_path):
    handle = kaggle.submit(order(WRITE))
    assert handle == Handle("emulator", "emulated-user/perdure-test-1a2b3c4d-1", 1, handle.url)
    assert ended(handle).state == "complete"
    listed = {file.name: file.size_bytes for file in kaggle.files(handle)}
    assert listed["a.txt"] == 5000 and listed["sub/b.txt"] == 9000
    told = []
    paths = kaggle.fetch(handle, ["sub/ä c.txt", "a.txt"], tmp_path / "out", lambda *bytes: told.append(bytes))
    assert [path.read_text() for path in paths] == ["sub/ä c.txt" * 1000, "a.txt" * 1000]
    assert told[-1] == (listed["sub/ä c.txt"] + 5000,) * 2
    log = kaggle.logs(handle)
    assert log.complete and {"a line", "an error", "Batch"} <= set(log.lines)


def test_what_is_pushed_is_what_was_asked_for(kaggle, emulator, order, ended):
    (emulator.folder / "competitions/titanic").mkdir(parents=True)
    handle = kaggle.submit(order(accelerator="t4x2", internet=True, competitions=("titanic",), window_s=17.0))
    pushed = emulator.store.world.kernels["perdure-test-1a2b3c4d-1"].versions["1"]
    assert pushed["machineShape"] == "NvidiaTeslaT4" and pushed["enableGpu"] is True
    assert pushed["enableInternet"] is True and pushed["isPrivate"] is True
    assert pushed["competitionDataSources"] == ["titanic"]
    assert pushed["sessionTimeoutSeconds"] == 17
    assert pushed["newTitle"] == "perdure-test-1a2b3c4d-1"
    ended(handle)


def test_the_longest_window_is_kaggles_own_and_goes_without_a_time_out(kaggle, emulator, order, ended):
    assert kaggle.window_s("t4x2") == 60.0
    handle = kaggle.submit(order(window_s=60.0))
    assert "sessionTimeoutSeconds" not in emulator.store.world.kernels["perdure-test-1a2b3c4d-1"].versions["1"]
    ended(handle)


def test_the_next_session_sees_the_output_of_the_one_before(kaggle, order, ended, tmp_path):
    first = kaggle.submit(order("open('state.txt', 'w').write('seven')"))
    ended(first)
    read = """
import os, pathlib
found = [p for root in os.environ["PERDURE_INPUTS"].split(os.pathsep) for p in pathlib.Path(root).rglob("state.txt")]
open("seen.txt", "w").write(found[0].read_text())
"""
    second = kaggle.submit(order(read, slug="perdure-test-1a2b3c4d-2", sessions=(first,)))
    assert ended(second).state == "complete"
    (path,) = kaggle.fetch(second, ["seen.txt"], tmp_path)
    assert path.read_text() == "seven"


def test_a_large_bundle_travels_as_a_private_data_set_that_is_waited_for(
    kaggle, emulator, order, ended, cargo, tmp_path
):
    pack(cargo, more_bytes=1_200_000)
    emulator.switch(dataset_forbidden_s=0.3)
    handle = kaggle.submit(order("open('ran.txt', 'w').write('yes')"))
    assert ended(handle).state == "complete"
    assert kaggle.fetch(handle, ["ran.txt"], tmp_path)[0].read_text() == "yes"
    (source,) = emulator.store.world.kernels["perdure-test-1a2b3c4d-1"].versions["1"]["datasetDataSources"]
    assert source.startswith("emulated-user/perdure-code-")
    uploads = sum(call.call == "upload" for call in emulator.calls())
    again = kaggle.submit(order(slug="perdure-test-1a2b3c4d-2"))
    assert sum(call.call == "upload" for call in emulator.calls()) == uploads, "it was there already"
    ended(again)


def test_a_failed_session_is_failed_and_its_log_tells_why(kaggle, order, ended):
    handle = kaggle.submit(order("raise ValueError('no such layer')"))
    assert ended(handle).state == "failed"
    assert any("no such layer" in line for line in kaggle.logs(handle).lines)


def test_the_log_can_be_read_while_it_runs(kaggle, order):
    handle = kaggle.submit(order("import time; print('step 1'); time.sleep(60)"))
    until(lambda: kaggle.logs(handle).lines)
    log = kaggle.logs(handle)
    assert "step 1" in log.lines and not log.complete
    assert kaggle.observe(handle).state == "running"
    assert kaggle.files(handle) == ()
    kaggle.stop(handle, now=True)


def test_a_session_is_found_by_its_slug_and_by_nothing_else(kaggle, order, ended):
    assert kaggle.find("perdure-test-1a2b3c4d-1") is None
    handle = kaggle.submit(order())
    found = kaggle.find("perdure-test-1a2b3c4d-1")
    assert (found.platform, found.ref, found.version) == (handle.platform, handle.ref, 1)
    assert kaggle.find("perdure-test-1a2b3c4d") is None
    ended(found)


def test_what_is_not_there_is_missing_and_never_failed(kaggle):
    handle = Handle("emulator", "emulated-user/perdure-nothing-1", 1)
    assert kaggle.observe(handle).state == "missing"
    with pytest.raises(NotThereError):
        kaggle.files(handle)


def test_the_hours_are_told_with_what_is_reserved(kaggle, emulator, order):
    handle = kaggle.submit(order("import time; time.sleep(60)", accelerator="t4x2", window_s=50.0))
    until(lambda: kaggle.observe(handle).state == "running")
    gpu, tpu = kaggle.quota()
    assert (gpu.resource, gpu.allowed_s, tpu.resource) == ("gpu", 108000.0, "tpu")
    assert 0 <= gpu.used_s < 40 and 10 < gpu.reserved_s <= 50
    assert gpu.left_s == pytest.approx(108000 - gpu.used_s - gpu.reserved_s)
    assert gpu.refresh_at_s == pytest.approx(emulator.store.world.born_s + 7 * 24 * 3600, abs=1)
    kaggle.stop(handle, now=True)


def test_a_retired_accelerator_is_refused_before_anything_is_sent(kaggle, emulator, order):
    with pytest.raises(RefusedError) as caught:
        kaggle.submit(order(accelerator="p100"))
    assert caught.value.code == "accelerator"
    assert emulator.calls() == ()


def test_a_handle_can_be_stored(kaggle, order, ended):
    handle = kaggle.submit(order())
    assert Handle.from_dict(json.loads(json.dumps(handle.as_dict()))) == handle
    ended(handle)
