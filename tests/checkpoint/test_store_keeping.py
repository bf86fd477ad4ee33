"""Which checkpoints stay, where the room comes from, and which one a run goes on from."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snapshots import (
    assert_holds,
    assert_no_debris,
    data_of,
    flip,
    make_store,
    open_store,
    saved_run,
    snapshot,
    tree,
    u8,
)

from perdure.checkpoint.budget import used_bytes
from perdure.checkpoint.reader import open_checkpoint
from perdure.checkpoint.retention import Committed, best_of, expendable, last_good, to_drop
from perdure.checkpoint.search import find_checkpoints
from perdure.checkpoint.snapshot import Snapshot
from perdure.checkpoint.store import Keep
from perdure.core.errors import ConfigError, DiskFullError
from perdure.core.progress import Position


def steps(folder: Path, **options) -> list[int]:
    return [item.manifest.step for item in make_store(folder, **options).list()]


# ---- retention


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


# ---- room


def test_the_budget_covers_the_checkpoint_that_is_being_written(tmp_path):
    root = tmp_path / "out"
    root.mkdir()
    (root / "other.bin").write_bytes(bytes(100_000))
    budget = 500_000
    store = open_store(root / "digits", keep=Keep(last=9), disk_bytes=budget)
    for step in range(10, 200, 10):
        store.save(snapshot(step, frozen=0, moving=80_000))
        assert used_bytes(root) <= budget
    assert steps(root / "digits")[0] == 190
    assert 3 <= len(steps(root / "digits")) <= 4
    store.close()
    assert_no_debris(root / "digits")


def test_over_the_budget_is_an_error_that_costs_nothing(tmp_path):
    store = open_store(tmp_path / "digits", keep=Keep(last=9), disk_bytes=400_000)
    for step in (10, 20, 30):
        store.save(snapshot(step, frozen=0, moving=80_000))
    before = tree(tmp_path / "digits")
    with pytest.raises(DiskFullError) as caught:
        store.save(snapshot(40, frozen=0, moving=500_000))
    assert caught.value.needed_bytes > 500_000
    assert caught.value.free_bytes < 400_000
    assert "step 40" in str(caught.value)
    assert tree(tmp_path / "digits") == before, "older ones are not given up for a save that fits in no case"
    assert_holds(store.newest(), snapshot(30, frozen=0, moving=80_000))
    store.save(snapshot(50, frozen=0, moving=80_000))


def test_the_last_good_one_is_not_given_up_for_room(tmp_path):
    store = open_store(tmp_path / "digits", keep=Keep(last=9), disk_bytes=250_000)
    store.save(snapshot(10, frozen=0, moving=80_000))
    store.save(snapshot(20, frozen=0, moving=80_000, healthy=False))
    store.save(snapshot(30, frozen=0, moving=80_000, healthy=False))
    assert steps(tmp_path / "digits") == [30, 10]
    with pytest.raises(DiskFullError):
        store.save(snapshot(40, frozen=0, moving=170_000))
    assert 10 in steps(tmp_path / "digits")


def test_what_was_set_aside_goes_before_a_checkpoint_does(tmp_path):
    folder = tmp_path / "digits"
    saved_run(folder, [10, 20])
    flip(folder / list(make_store(folder).list()[0].manifest.files)[-1], -1)
    store = open_store(folder, disk_bytes=used_bytes(tmp_path) + 20_000)
    assert store.newest().manifest.step == 10
    store.save(snapshot(30, moving=15_000))
    assert not (folder / "quarantine").exists()
    assert steps(folder) == [30, 10]


FULL_DISK = textwrap.dedent(
    """
    import os, sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from snapshots import *
    from perdure.core.errors import DiskFullError
    disk = Path({disk!r})
    store = open_store(disk / "digits", keep=Keep(last=2))
    for step in range(1, 9):
        store.save(snapshot(step, frozen=0, moving=1_200_000))   # two fit, three do not
        assert_holds(store.newest(), snapshot(step, frozen=0, moving=1_200_000))
    state = os.statvfs(disk)
    (disk / "hog").write_bytes(bytes(state.f_bavail * state.f_frsize - 300_000))
    before = store.newest().manifest.step
    try:
        store.save(snapshot(9, frozen=0, moving=1_900_000))
    except DiskFullError as error:
        assert error.needed_bytes > 1_900_000 and error.free_bytes < 1_900_000, vars(error)
    else:
        raise SystemExit("no error")
    assert_holds(store.newest(), snapshot(before, frozen=0, moving=1_200_000))
    (disk / "hog").unlink()
    store.save(snapshot(10, frozen=0, moving=1_200_000))
    # full to the last byte: not even the manifest fits
    hog = os.open(disk / "hog", os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(hog, bytes(4096)):
            pass
    except OSError:
        os.close(hog)
    for size in (0, 5, 4000, 1_200_000):
        try:
            store.save(snapshot(11, frozen=0, moving=size))
        except DiskFullError:
            pass
        assert store.newest().manifest.step in (10, 11)
    (disk / "hog").unlink()
    store.save(snapshot(12, frozen=0, moving=1_200_000))
    store.close()
    assert_no_debris(disk / "digits")
    print("survived")
    """
)


def on_small_disk(tmp_path: Path, mount: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = tmp_path / "full.py"
    script.write_text(FULL_DISK.format(tests=str(Path(__file__).parent), disk=str(disk)))
    command = f"{mount.format(disk=disk, image=tmp_path / 'image')} && exec {sys.executable} {script}"
    done = subprocess.run(
        ["unshare", "-Urm" if os.geteuid() else "-m", "sh", "-c", command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "survived"


def can_unshare() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "-Urm" if os.geteuid() else "-m", "true"], capture_output=True
        ).returncode
    )


@pytest.mark.skipif(not can_unshare(), reason="needs unshare")
def test_a_full_tmpfs_leaves_the_last_good_one_and_the_next_save_works(tmp_path):
    on_small_disk(tmp_path, "mount -t tmpfs -o size=4M tmpfs {disk}")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mkfs.ext4"), reason="needs root, for a loop mount")
def test_a_full_ext4_that_keeps_what_a_failed_reservation_got(tmp_path):
    on_small_disk(
        tmp_path,
        "truncate -s 5M {image} && mkfs.ext4 -q -F -m 0 -O ^has_journal {image} && mount -o loop {image} {disk}",
    )


def test_a_file_size_limit_counts_as_a_full_disk(tmp_path):
    script = textwrap.dedent(
        f"""
        import sys, resource, signal
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from snapshots import *
        from perdure.core.errors import DiskFullError
        store = open_store(Path("digits"))
        store.save(snapshot(1)); store.save(snapshot(2))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        try:
            store.save(snapshot(3, moving=90_000))
        except DiskFullError:
            assert [f.manifest.step for f in store.list()] == [2, 1]
            store.save(snapshot(4))
            print("survived")
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "survived", done.stderr


# ---- inputs


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


# ---- begun afresh, identity


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


# ---- searching below an input


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
