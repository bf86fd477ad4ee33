"""Stops: at the deadline, on signals, in the middle of a step; and what the rest of the script sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import perdure
import perdure.training.run
from perdure.checkpoint.store import Store
from perdure.core.paths import RunPaths
from perdure.testing.clock import FakeClock
from perdure.training.session import current_session
from training.jobs import Job, seed_all
from training.processes import in_new_process
from training.test_loops import shuffled


def newest(root, name="job"):
    return Store(RunPaths(root / name), name).newest().manifest


def loop(run, epochs=3, at=None, do=lambda: None):
    job, loader = Job(), shuffled()
    run.track(**job.tracked())
    for _ in run.epochs(epochs):
        for (x,) in run.batches(loader):
            if run.step == at:
                do()
            job.step(x)
        job.book["tails"] = job.book.get("tails", 0) + 1
    return job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_step_saves_at_the_next_boundary_and_the_run_goes_on_exactly(tmp_path, number):
    def first(root):
        seed_all(0)
        with perdure.Run("job", root=root) as run:
            loop(run, at=5, do=lambda: os.kill(os.getpid(), number))
        return run.step, run.finished

    def second(root, seed):
        seed_all(seed)
        with perdure.Run("job", root=root) as run:
            job = loop(run)
        return job.result(), job.book["tails"]

    assert in_new_process(first, tmp_path / "a") == (6, False)
    assert newest(tmp_path / "a").reason == "stop"
    status = json.loads((tmp_path / "a" / "job" / "session.json").read_text())
    assert status["status"] == "paused" and signal.Signals(number).name in status["reason"]
    assert in_new_process(second, tmp_path / "a", 99) == in_new_process(second, tmp_path / "b", 0)


def test_nothing_of_the_users_code_runs_on_half_an_epoch_but_finally_blocks_do(tmp_path):
    seen = []
    with perdure.Run("job", root=tmp_path) as run:
        try:
            loop(run, at=5, do=lambda: os.kill(os.getpid(), signal.SIGTERM))
        except Exception:
            seen.append("except Exception")
        else:
            seen.append("behind the loop")
        finally:
            seen.append("finally")
    assert seen == ["finally"]
    assert not run.finished


def test_without_with_the_pause_ends_the_script(tmp_path):
    run = perdure.Run("job", root=tmp_path)
    with pytest.raises(perdure.SessionPaused) as caught:
        loop(run, at=2, do=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert (caught.value.code, caught.value.step) == (75, 3)


def test_a_second_interrupt_stops_at_once_and_the_last_checkpoint_is_whole(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), perdure.Run("job", root=tmp_path, save_every="1 step") as run:
        loop(run, at=4, do=twice)
    assert newest(tmp_path).step == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_are_given_back_when_the_loop_ends(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with perdure.Run("job", root=tmp_path) as run:
        loop(run)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_inside_the_loop_of_another_leaves_it_the_signals(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with perdure.Run("outer", root=tmp_path) as outer:
        for epoch in outer.epochs(3):
            with perdure.Run("inner", root=tmp_path / str(epoch)) as inner:
                loop(inner, epochs=1)
            os.kill(os.getpid(), signal.SIGTERM)
    assert inner.finished and not outer.finished
    assert newest(tmp_path, "outer").position.epoch == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_child_that_the_user_forks_in_the_loop_ends_without_a_word_about_the_run(tmp_path, capfd):
    def script(root):
        with perdure.Run("job", root=root) as run:
            job = Job()
            run.track(**job.tracked())
            for epoch in run.epochs(2):
                if epoch == 1 and (pid := os.fork()) == 0:
                    sys.exit(0)  # leaves the block as well
        return os.waitpid(pid, 0)[1], run.finished

    def child_leaves_early(root):
        parent = os.getpid()
        try:
            return script(root)
        finally:
            if os.getpid() != parent:
                perdure.training.run._close_all()
                os._exit(0)

    assert in_new_process(child_leaves_early, tmp_path) == (0, True)
    assert json.loads((tmp_path / "job" / "session.json").read_text())["status"] == "finished"
    assert "failed" not in (tmp_path / "job" / "events.jsonl").read_text()


def test_a_handler_of_someone_else_is_called_too(tmp_path):
    called = []
    before = signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    try:
        with perdure.Run("job", root=tmp_path) as run:
            loop(run, at=2, do=lambda: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [1] and not run.finished


def test_a_run_made_after_the_stop_does_not_train(tmp_path):
    with perdure.Run("fold0", root=tmp_path) as run:
        loop(run, at=3, do=lambda: os.kill(os.getpid(), signal.SIGTERM))
    with perdure.Run("fold1", root=tmp_path) as other:
        job = loop(other)
    assert other.step == 0 and not other.finished
    with pytest.raises(NameError):
        job  # the loop was left before its function returned


SCRIPT = """
import os, sys, time
sys.path.insert(0, {tests!r})
from training.jobs import Job, seed_all
from training.test_loops import shuffled
import perdure
seed_all(0)
with perdure.Run("job", root={root!r}, limits=perdure.Limits(window={window!r})) as run:
    job, loader = Job(), shuffled()
    run.track(**job.tracked())
    for epoch in run.epochs({epochs}):
        for (x,) in run.batches(loader):
            job.step(x)
            time.sleep({sleep})
print("behind", run.finished, run.step)
{more}
"""


def script(tmp_path, *, window=None, epochs=3, sleep=0.0, more="", **env):
    tests = os.path.dirname(os.path.dirname(__file__))
    path = tmp_path / "script.py"
    text = textwrap.dedent(SCRIPT).format(
        tests=tests, root=str(tmp_path / "runs"), window=window, epochs=epochs, sleep=sleep, more=more
    )
    path.write_text(text)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    return done, time.monotonic() - began


@pytest.mark.slow
def test_three_sessions_in_a_row_use_their_window_and_never_pass_it(tmp_path):
    window_s, steps = 30.0, []
    for session in range(3):
        done, wall_s = script(tmp_path, window=f"{window_s} s", epochs=1000, sleep=0.02)
        assert done.returncode == 75, done.stderr
        assert 0.95 * window_s <= wall_s <= window_s
        manifest = newest(tmp_path / "runs")
        steps.append(manifest.step)
        assert manifest.session == session + 1
    assert steps[0] < steps[1] < steps[2]


def test_exit_code_75_also_after_with_has_swallowed_the_pause_and_exit_hooks_still_run_once(tmp_path):
    more = "import atexit; atexit.register(lambda: print('hook', flush=True))"
    done, _ = script(tmp_path, window="6 s", epochs=1000, sleep=0.02, more=more)
    assert done.returncode == 75
    assert done.stdout.splitlines()[0].startswith("behind False")
    assert done.stdout.splitlines()[1:] == ["hook"]


def test_exit_code_0_in_a_kaggle_batch_run_where_anything_else_marks_the_version_as_failed(tmp_path):
    done, _ = script(tmp_path, window="6 s", epochs=1000, sleep=0.02, KAGGLE_KERNEL_RUN_TYPE="Batch")
    assert done.returncode == 0, done.stderr
    assert "paused" in done.stderr


def test_the_scripts_own_failure_keeps_its_exit_code(tmp_path):
    done, _ = script(tmp_path, window="6 s", epochs=1000, sleep=0.02, more="raise ValueError('mine')")
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr


def test_a_finished_script_ends_with_0_and_is_finished_when_run_again(tmp_path):
    assert script(tmp_path)[0].returncode == 0
    done, _ = script(tmp_path)
    assert (done.returncode, done.stdout) == (0, "behind True 12\n")


def test_a_clock_set_back_between_sessions_changes_nothing(tmp_path):
    def go(wall_s):
        clock = FakeClock(wall_s=wall_s)
        current_session().clock = clock
        with perdure.Run("job", root=tmp_path, save_every="1 step") as run:
            loop(run, at=5, do=lambda: clock.set_wall(0))
        return run

    first = go(1_800_000_000.0)
    assert first.step == 12
    assert newest(tmp_path).step == 12
    assert go(1_000.0).resumed_from == 12


def test_the_deadline_counts_from_the_start_of_the_session_and_not_of_the_loop(tmp_path):
    session = current_session()
    session.clock = clock = FakeClock()
    session.started_s = clock.monotonic()
    clock.forward(50)  # installs, data
    with perdure.Run("job", root=tmp_path, limits=perdure.Limits(window="60 s")) as run:
        loop(run, epochs=100, at=20, do=lambda: clock.forward(9))
    assert not run.finished
    assert newest(tmp_path).step == run.step == 21


def test_the_session_clock_is_never_restored_but_training_time_is(tmp_path):
    for sessions in (1, 2):
        session = current_session()
        session.clock = clock = FakeClock()
        session.started_s = clock.monotonic()
        session.stop.reason = ""
        with perdure.Run("job", root=tmp_path, limits=perdure.Limits(window="100 s")) as run:
            loop(run, epochs=100, at=10 * sessions, do=lambda: clock.forward(99))
        assert newest(tmp_path).training_s == pytest.approx(99 * sessions)


def test_ctrl_c_reaches_the_loader_workers_too_and_the_run_still_stops_at_its_boundary(tmp_path):
    text = textwrap.dedent("""
        import sys, time
        sys.path.insert(0, {tests!r})
        from training.jobs import Job, seed_all
        from training.test_loops import shuffled
        import perdure
        with perdure.Run("job", root={root!r}, save_every="1 h") as run:
            job, loader = Job(), shuffled(num_workers=2)
            run.track(**job.tracked())
            for epoch in run.epochs(1000):
                for (x,) in run.batches(loader):
                    job.step(x)
                    time.sleep(0.05)
                    if run.step == 5:
                        print("going", flush=True)
    """).format(tests=os.path.dirname(os.path.dirname(__file__)), root=str(tmp_path / "runs"))
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == "going\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert err.count("SIGINT: saving at the next boundary") == 1
    assert "Traceback" not in err
    assert newest(tmp_path / "runs").reason == "stop"


@pytest.mark.parametrize(("run_type", "skipped"), [("Batch", True), ("Interactive", False)])
def test_in_a_notebook_that_the_platform_runs_as_a_batch_later_cells_are_skipped(tmp_path, run_type, skipped):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    tests = os.path.dirname(os.path.dirname(__file__))
    first = f"""
import os, signal, sys
os.environ["KAGGLE_KERNEL_RUN_TYPE"] = {run_type!r}
sys.path.insert(0, {tests!r})
from training.test_stopping import loop
import perdure
with perdure.Run("job", root={str(tmp_path)!r}, accelerator="cpu") as run:
    loop(run, at=5, do=lambda: os.kill(os.getpid(), signal.SIGTERM))
"""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in (first, "print('submission')")])
    nbclient.NotebookClient(book, timeout=120).execute()
    text = book.cells[1].outputs[0]["text"]
    if skipped:
        assert text.startswith("perdure: cell skipped: job is paused (SIGTERM was received)")
    else:
        assert text == "submission\n"


def test_a_bare_except_around_the_loop_cannot_make_a_paused_run_go_on(tmp_path):
    steps = []
    with perdure.Run("job", root=tmp_path) as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            try:
                for (x,) in run.batches(loader):
                    job.step(x)
                    steps.append(run.step)
                    if len(steps) == 2:
                        os.kill(os.getpid(), signal.SIGTERM)
            except:  # noqa: E722  what the test is about
                pass
    assert (steps, run.step, run.finished) == ([0, 1], 2, False)
    assert newest(tmp_path).position.epoch == 0
    assert len(Store(RunPaths(tmp_path / "job"), "job").list()) == 1


def test_resumed_in_the_middle_of_an_epoch_after_the_stop_it_does_not_train_another_step(tmp_path):
    for _ in range(2):
        with perdure.Run("job", root=tmp_path) as run:
            loop(run, at=1, do=lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert run.step == 2


@pytest.mark.parametrize(("first", "again"), [(5, 8), (2, 3)])
def test_a_run_left_by_break_can_be_extended(tmp_path, first, again):
    for count, extend in ((first, False), (again, True)):
        with perdure.Run("job", root=tmp_path) as run:
            job, loader, seen = Job(), shuffled(), []
            run.track(**job.tracked())
            for epoch in run.epochs(count, extend=extend):
                seen.append(epoch)
                for (x,) in run.batches(loader):
                    job.step(x)
                if epoch == 1 and not extend:
                    break
    assert (seen, run.step) == (list(range(2, again)), again * 4)


def test_an_interrupted_notebook_cell_can_be_run_again(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    tests = os.path.dirname(os.path.dirname(__file__))
    cell = f"""
import os, signal, sys
sys.path.insert(0, {tests!r})
from training.test_stopping import loop
import perdure
with perdure.Run("job", root={str(tmp_path)!r}) as run:
    loop(run, at=2, do=lambda: os.kill(os.getpid(), signal.SIGINT))
print(run.step, run.finished)
"""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell), nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(book, timeout=120).execute()
    texts = ["".join(o["text"] for o in c.outputs if o.get("name") == "stdout") for c in book.cells]
    assert texts == ["3 False\n", "12 True\n"]
