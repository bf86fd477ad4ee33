"""Which checkpoint a run goes on from: inputs, identity, search."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from snapshots import (
    assert_holds,
    assert_no_debris,
    can_unshare,
    data_of,
    flip,
    make_store,
    open_store,
    saved_run,
    snapshot,
    steps,
    tree,
    u8,
)

from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.search import find_checkpoints
from perdure.checkpoint.snapshot import Snapshot
from perdure.checkpoint.store import Keep
from perdure.core.progress import Position


def mounted(folder: Path) -> Path:
    """As hosts mount it: nested, and read-only."""
    target = folder.parent / "input" / "notebooks" / "someone" / "train-digits" / "perdure" / folder.name
    target.parent.mkdir(parents=True)
    folder.rename(target)
    for path in [*target.rglob("*"), target]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder.parent / "input"


def test_a_run_goes_on_from_an_input_without_copying_it(tmp_path):
    saved_run(tmp_path / "digits", [100, 200])
    root = mounted(tmp_path / "digits")
    before = tree(root)
    store = open_store(tmp_path / "working" / "digits", inputs=[root])
    assert store.peek().step == 200
    assert_holds(store.newest(), snapshot(200))
    assert tree(tmp_path / "working").keys() == {"digits/run.json", "digits/lock"}
    saved = store.save(snapshot(300))
    assert saved.manifest.run_id == find_checkpoints(root)[0].manifest.run_id == store.run_id
    assert saved.manifest.seq == 3
    assert [item.manifest.step for item in store.list()] == [300, 200, 100]
    assert store.reports == []
    assert tree(root) == before
    store.close()
    subprocess.run(["chmod", "-R", "u+w", root], check=True)
    shutil.rmtree(root)
    assert_holds(make_store(tmp_path / "working" / "digits").newest(), snapshot(300))
    assert_no_debris(tmp_path / "working" / "digits")


@pytest.mark.skipif(not can_unshare(), reason="needs unshare")
def test_a_read_only_mount_is_restored_from(tmp_path):
    saved_run(tmp_path / "input" / "a" / "digits", [100, 200])
    script = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from snapshots import *
        from perdure.core.errors import UnreadableError
        try:
            open_store(Path("input/a/digits"))
        except UnreadableError as error:
            assert "Read-only" in str(error), error
        store = open_store(Path("working/digits"), inputs=[Path("input")])
        assert_holds(store.newest(), snapshot(200))
        store.save(snapshot(300))
        assert_holds(make_store(Path("input/a/digits")).newest(), snapshot(200))
        print("restored")
        """
    )
    (tmp_path / "go.py").write_text(script)
    command = f"mount --bind input input && mount -o remount,ro,bind input && exec {sys.executable} go.py"
    namespace = "-Urm" if os.geteuid() else "-m"
    done = subprocess.run(["unshare", namespace, "sh", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "restored", done.stderr


def test_a_damaged_input_is_skipped_and_an_older_one_used(tmp_path):
    saved_run(tmp_path / "input" / "two" / "digits", [100, 200])
    saved_run(tmp_path / "other", [100])
    newest = find_checkpoints(tmp_path / "input")[0]
    flip(newest.folder.parent.parent / list(newest.manifest.files)[-1], -1)
    before = tree(tmp_path / "input")
    store = open_store(tmp_path / "digits", inputs=[tmp_path / "input"])
    assert_holds(store.newest(), snapshot(100))
    assert "skipped" in store.reports[0]
    assert tree(tmp_path / "input") == before


def test_an_input_run_of_another_name_or_identity_does_not_count(tmp_path):
    saved_run(tmp_path / "input" / "one" / "digits", [100])
    saved_run(tmp_path / "input" / "two" / "digits", [50])
    (tmp_path / "input" / "one" / "digits").rename(tmp_path / "input" / "one" / "renamed")
    store = open_store(tmp_path / "digits", inputs=[tmp_path / "input", tmp_path / "missing"])
    assert store.newest().manifest.step == 100
    assert "another run" in store.reports[0]
    assert [item.manifest.step for item in store.list()] == [100]
    store.save(snapshot(110))
    assert [item.manifest.step for item in store.list()] == [110, 100]
    assert find_checkpoints(tmp_path / "input", "letters") == []


def test_the_own_folder_is_no_input_even_if_it_lies_below_one(tmp_path):
    saved_run(tmp_path / "digits", [100, 200])
    assert steps(tmp_path / "digits", inputs=[tmp_path]) == [200, 100]


def test_a_copy_in_an_input_helps_where_the_own_one_is_damaged(tmp_path):
    saved_run(tmp_path / "digits", [100, 200])
    shutil.copytree(tmp_path / "digits", tmp_path / "input" / "digits")
    flip(tmp_path / "digits" / list(make_store(tmp_path / "digits").list()[0].manifest.files)[-1], -1)
    store = open_store(tmp_path / "digits", inputs=[tmp_path / "input"])
    assert_holds(store.newest(), snapshot(200))


def test_the_best_one_is_brought_over_from_the_input(tmp_path):
    keep = Keep(last=1, best="max:accuracy")
    first = open_store(tmp_path / "one" / "digits", keep=keep)
    for step, accuracy in [(100, 0.5), (200, 0.9), (300, 0.6)]:
        first.save(snapshot(step, metrics={"accuracy": accuracy}))
    first.close()
    second = open_store(tmp_path / "two" / "digits", keep=keep, inputs=[tmp_path / "one"])
    assert second.newest().manifest.step == 300
    second.save(snapshot(400, metrics={"accuracy": 0.7}))
    shutil.rmtree(tmp_path / "one")  # once is enough
    for step in (500, 600):
        second.save(snapshot(step, metrics={"accuracy": 0.7}))
    assert steps(tmp_path / "two" / "digits") == [600, 200]
    assert second.reports == []
    second.close()
    assert_no_debris(tmp_path / "two" / "digits")
    (best,) = [f for f in make_store(tmp_path / "two" / "digits").list() if f.manifest.step == 200]
    assert_holds(open_checkpoint(best.folder), snapshot(200))


def test_the_last_healthy_one_is_brought_over_from_the_input(tmp_path):
    saved_run(tmp_path / "one" / "digits", [100])
    second = open_store(tmp_path / "two" / "digits", keep=Keep(last=1), inputs=[tmp_path / "one"])
    second.save(snapshot(200, healthy=False))
    second.save(snapshot(300, healthy=False))
    assert steps(tmp_path / "two" / "digits") == [300, 100]
    second.save(snapshot(400))
    assert steps(tmp_path / "two" / "digits") == [400]


def test_a_best_one_that_cannot_be_brought_over_is_reported_once(tmp_path):
    first = open_store(tmp_path / "one" / "digits", keep=Keep(1, "max:accuracy"))
    first.save(snapshot(100, metrics={"accuracy": 0.9}))
    found = first.list()[0]
    first.close()
    for file in found.manifest.files:
        flip(tmp_path / "one" / "digits" / file, -1)
    second = open_store(tmp_path / "two" / "digits", keep=Keep(1, "max:accuracy"), inputs=[tmp_path / "one"])
    for step in (200, 300):
        second.save(snapshot(step, metrics={"accuracy": 0.1}))
    assert len(second.reports) == 1
    assert steps(tmp_path / "two" / "digits") == [300, 200]


def test_a_run_begun_afresh_does_not_count_what_was_there_and_keeps_it_until_its_first_save(tmp_path):
    folder = tmp_path / "digits"
    saved_run(folder, [100, 200])
    old = make_store(folder).list()[0].manifest.run_id
    store = open_store(folder)
    store.close()
    fresh = make_store(folder, inputs=[tmp_path])
    fresh.open({}, fresh=True)
    assert fresh.newest() is None
    assert fresh.run_id != old
    assert len(list(folder.glob("checkpoints/*/manifest.json"))) == 2
    saved = fresh.save(snapshot(5))
    assert saved.manifest.seq == 1
    assert steps(folder) == [5]
    fresh.close()
    assert_no_debris(folder)
    again = open_store(folder)
    assert_holds(again.newest(), snapshot(5))


def test_run_json_says_what_the_run_is_and_stays(tmp_path):
    store = make_store(tmp_path / "digits")
    store.open({"code": "abc", "keep": 2})
    about = json.loads((tmp_path / "digits" / "run.json").read_text())
    assert (about["format_version"], about["name"], about["run_id"]) == (1, "digits", store.run_id)
    assert about["settings"] == {"code": "abc", "keep": 2}
    store.close()
    again = make_store(tmp_path / "digits")
    again.open({"code": "other"})
    assert json.loads((tmp_path / "digits" / "run.json").read_text()) == about
    assert again.run_id == store.run_id


def test_saves_are_counted_over_sessions(tmp_path):
    for session in (1, 2, 3):
        store = open_store(tmp_path / "digits")
        assert store.save(snapshot(session)).manifest.seq == session
        store.close()


def test_a_search_finds_runs_at_any_depth_and_follows_no_circle(tmp_path):
    saved_run(tmp_path / "a" / "b" / "c" / "d" / "digits", [10])
    saved_run(tmp_path / "digits", [20])
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    (tmp_path / "a" / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "checkpoints" / "yolo").mkdir(parents=True)
    assert [f.manifest.step for f in find_checkpoints(tmp_path)] == [20, 10]
    assert [f.manifest.step for f in find_checkpoints(tmp_path / "digits" / "checkpoints")] == [20]
    assert find_checkpoints(tmp_path / "missing") == []


def test_a_search_ends_at_a_depth_and_reads_no_files(tmp_path):
    deep = tmp_path.joinpath(*"abcdefghijkl")
    deep.mkdir(parents=True)
    images = tmp_path / "images"
    images.mkdir()
    for i in range(3000):
        (images / f"{i}.jpg").touch()
    saved_run(images / "digits", [10])
    assert [f.manifest.step for f in find_checkpoints(tmp_path)] == [10]


def test_a_torn_manifest_in_an_input_counts_by_the_name_of_its_run(tmp_path):
    saved_run(tmp_path / "input" / "digits", [10])
    (manifest,) = (tmp_path / "input").rglob("manifest.json")
    os.truncate(manifest, 10)
    (found,) = find_checkpoints(tmp_path / "input", "digits")
    assert found.problem
    assert found.manifest is None
    assert find_checkpoints(tmp_path / "input", "letters") == []
    (tmp_path / "input" / "digits").rename(tmp_path / "input" / "copy")
    assert len(find_checkpoints(tmp_path / "input", "digits")) == 1


def test_the_newest_is_found_by_number_and_not_by_name(tmp_path):
    saved_run(tmp_path / "digits", [9_000, 10_000])
    folder = tmp_path / "digits" / "checkpoints"
    (folder / "step-000009000").rename(folder / "step-9000")
    (folder / "step-000010000").rename(folder / "step-10000")
    assert steps(tmp_path / "digits") == [10_000, 9_000]


def test_a_checkpoint_may_hold_values_only(tmp_path):
    store = open_store(tmp_path / "digits")
    store.save(Snapshot(Position(1), {"a": 1}, []))
    assert store.newest().values == {"a": 1}
    store.save(Snapshot(Position(2), {"a": 2}, [u8("w", data_of("w", 1, 10))]))
    store.save(Snapshot(Position(3), {"a": 3}, []))
    assert [f.manifest.step for f in store.list()] == [3, 2]
