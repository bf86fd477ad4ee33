"""Several processes on one run folder: one writer, any number of readers."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from snapshots import assert_holds, assert_no_debris, make_store, open_store, saved_run, snapshot

from perdure.checkpoint import search
from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.retention import Keep
from perdure.checkpoint.verify import verify
from perdure.core.errors import NoCheckpointError, RunLockedError, UnreadableError


def child(script: str, cwd: Path) -> subprocess.Popen:
    head = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom snapshots import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(script)], cwd=cwd, stdout=subprocess.PIPE, text=True
    )


HOLD = """
import os, time
store = open_store(Path("digits"))
store.save(snapshot(100))
loader_worker = os.fork()      # as a data loader does; it outlives the trainer
if loader_worker == 0:
    time.sleep(60)
    os._exit(0)
print(loader_worker, flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_naming_the_first_and_a_killed_one_frees_the_run_at_once(tmp_path):
    holder = child(HOLD, tmp_path)
    worker = int(holder.stdout.readline())
    try:
        store = make_store(tmp_path / "digits")
        with pytest.raises(RunLockedError) as caught:
            store.open({})
        assert (caught.value.pid, caught.value.host) == (holder.pid, socket.gethostname())
        assert str(holder.pid) in str(caught.value)
        assert caught.value.hint
        assert store.peek().step == 100, "reading needs no lock"
        with pytest.raises(RunLockedError):
            store.save(snapshot(200))
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(worker, 0)  # the forked worker is still there
        store.open({})
        assert_holds(store.newest(), snapshot(100))
        store.save(snapshot(200))
    finally:
        os.kill(worker, signal.SIGKILL)
        holder.kill()
        holder.wait()


def test_a_closed_run_can_be_opened_by_another_process(tmp_path):
    store = open_store(tmp_path / "digits")
    store.save(snapshot(1))
    store.close()
    store.close()
    other = child('open_store(Path("digits")).save(snapshot(2)); print("saved")', tmp_path)
    assert other.communicate()[0].strip() == "saved"
    with pytest.raises(RunLockedError):
        store.save(snapshot(3))


def test_a_second_store_in_the_same_process_takes_over(tmp_path):
    first = open_store(tmp_path / "digits")
    first.save(snapshot(1))
    second = open_store(tmp_path / "digits")
    second.save(snapshot(2))
    with pytest.raises(RunLockedError, match="no longer open"):
        first.save(snapshot(3))
    first.close()
    other = child('open_store(Path("digits"))', tmp_path)
    other.communicate()
    assert other.returncode == 1, "the lock is still ours after the first one was closed"
    second.save(snapshot(4))
    assert [item.manifest.step for item in second.list()] == [4, 2]


def test_a_lock_that_was_lost_by_closing_a_copy_of_its_file_is_taken_again(tmp_path):
    store = open_store(tmp_path / "digits")
    shutil.copytree(tmp_path / "digits", tmp_path / "copy")  # opens and closes the lock file: POSIX drops the lock
    store.save(snapshot(1))
    other = child('open_store(Path("digits"))', tmp_path)
    other.communicate()
    assert other.returncode == 1


def test_a_lock_that_somebody_else_took_meanwhile_stops_the_save(tmp_path):
    store = open_store(tmp_path / "digits")
    (tmp_path / "digits" / "lock").read_bytes()
    other = child(
        's = open_store(Path("digits")); print("open", flush=True); import time; time.sleep(60)', tmp_path
    )
    other.stdout.readline()
    try:
        with pytest.raises(RunLockedError) as caught:
            store.save(snapshot(1))
        assert caught.value.pid == other.pid
        assert store.peek() is None
    finally:
        other.kill()
        other.communicate()


def test_a_forked_child_cannot_save_for_its_parent(tmp_path):
    store = open_store(tmp_path / "digits")
    pid = os.fork()
    if pid == 0:
        try:
            store.save(snapshot(1))
        except RunLockedError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    store.save(snapshot(2))


def test_the_holder_is_written_down(tmp_path):
    open_store(tmp_path / "digits")
    assert json.loads(os.pread(os.open(tmp_path / "digits" / "lock", os.O_RDONLY), 999, 0))["pid"] == os.getpid()


WRITE = """
import time
store = open_store(Path("digits"), keep=Keep(last=2))
print("go", flush=True)
step, end = 1, time.monotonic() + %f
while time.monotonic() < end:
    step += 1
    store.save(snapshot(step, frozen=step // 5 * 1000, moving=50_000))
print(step)
"""


def read_while_it_writes(tmp_path: Path, seconds: float) -> tuple[int, int]:
    """Look at a run in every way while another process saves and prunes; returns looks and saves."""
    folder = tmp_path / "digits"
    saved_run(folder, [1])
    writer = child(WRITE % seconds, tmp_path)
    writer.stdout.readline()
    seen, looks = 0, 0
    while writer.poll() is None:
        reader = make_store(folder)
        newest = reader.newest()
        step = newest.manifest.step
        assert step >= seen, "time does not run backwards"
        if step > 1:
            assert_holds(newest, snapshot(step, frozen=step // 5 * 1000, moving=50_000))
        assert reader.reports == []
        assert reader.peek().step >= step
        for found in reader.list():
            assert not found.problem
            try:
                assert verify(found.folder).problems == ()
                open_checkpoint(found.folder)
            except NoCheckpointError:
                pass  # pruned meanwhile: gone, and not damaged
        seen, looks = step, looks + 1
    saves = int(writer.stdout.read())
    assert writer.wait() == 0
    assert_no_debris(folder)
    return looks, saves


def test_a_reader_sees_old_or_new_and_never_half_while_a_writer_saves_and_prunes(tmp_path):
    looks, saves = read_while_it_writes(tmp_path, 1.5)
    assert looks
    assert saves


@pytest.mark.parametrize("often", [1, 3])
def test_a_reader_whose_listing_is_pruned_before_it_looks_does_not_say_that_there_is_none(
    tmp_path, monkeypatch, often
):
    writer = open_store(tmp_path / "digits", keep=Keep(last=2))
    writer.save(snapshot(1))
    step_folders, steps = search.step_folders, iter(range(2, 2 + 2 * often))

    def overtaken(checkpoints: Path) -> list[Path]:
        listed = step_folders(checkpoints)
        with monkeypatch.context() as undone:
            undone.setattr(search, "step_folders", step_folders)  # for the writer, who looks too
            for step in itertools.islice(steps, 2):
                writer.save(snapshot(step))
        return listed

    monkeypatch.setattr(search, "step_folders", overtaken)
    assert make_store(tmp_path / "digits").newest().manifest.step == 1 + 2 * often


def test_a_reader_says_so_if_it_is_always_overtaken(tmp_path, monkeypatch):
    saved_run(tmp_path / "digits", [1])
    names = itertools.count(1)
    monkeypatch.setattr(search, "step_folders", lambda checkpoints: [checkpoints / f"step-{next(names)}"])
    with pytest.raises(UnreadableError, match="replaced faster than they can be read"):
        make_store(tmp_path / "digits").peek()


@pytest.mark.slow
def test_a_reader_sees_old_or_new_for_half_a_minute(tmp_path):
    looks, saves = read_while_it_writes(tmp_path, 30)
    assert looks > 100
    assert saves > 100


@pytest.mark.slow
def test_killed_at_random_moments_a_hundred_times(tmp_path):
    saved_run(tmp_path / "digits", [1])
    script = """
    store = open_store(Path("digits"), keep=Keep(last=2))
    step = store.newest().manifest.step
    print("go", flush=True)
    while True:
        step += 1
        store.save(snapshot(step, frozen=step // 5 * 1000, moving=200_000))
    """
    step = 1
    for moment in range(100):
        writer = child(script, tmp_path)
        writer.stdout.readline()
        time.sleep(moment * 7919 % 100 / 1000)
        writer.kill()
        writer.communicate()
        newest = make_store(tmp_path / "digits").newest()
        assert newest.manifest.step >= step
        step = newest.manifest.step
        if step > 1:
            assert_holds(newest, snapshot(step, frozen=step // 5 * 1000, moving=200_000))
    assert step > 100
    open_store(tmp_path / "digits").close()
    assert_no_debris(tmp_path / "digits")
