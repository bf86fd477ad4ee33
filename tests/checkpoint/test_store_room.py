"""Where the room for a save comes from, and what happens when there is none."""

from __future__ import annotations

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
    flip,
    make_store,
    open_store,
    saved_run,
    snapshot,
    steps,
    tree,
)

from perdure.checkpoint.budget import used_bytes
from perdure.checkpoint.store import Keep
from perdure.core.errors import DiskFullError


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
