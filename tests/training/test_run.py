"""What a run promises besides exactness: variables, metrics, best, several runs, inputs, notes."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import perdure
import perdure.training.run
from perdure.checkpoint.store import Store
from perdure.core.errors import LoopError
from perdure.core.events import read_events
from perdure.core.paths import RunPaths
from training.jobs import Job, seed_all
from training.processes import in_new_process
from training.test_bad_input import Stop, stopped, train
from training.test_loops import dataset, shuffled


def newest(root, name="job"):
    return Store(RunPaths(root / name), name).newest()


def test_variables_survive_and_are_put_back_in_place(tmp_path):
    with pytest.raises(Stop), perdure.Run("job", root=tmp_path) as run:
        run.vars.best, run.vars.log, run.vars.grid = 0.5, [1, 2], np.arange(3)
        for epoch in run.epochs(5):
            if epoch == 2:
                raise Stop
            run.vars.best += 1
            run.vars.log.append(epoch)
            run.vars.grid += 1
            run.save()
    with perdure.Run("job", root=tmp_path) as run:
        assert (run.vars.best, run.vars.log, run.vars.grid.tolist()) == (2.5, [1, 2, 0, 1], [2, 3, 4])
        run.vars.best, log = 0.5, run.vars.log  # as the script has it above its loop
        for epoch in run.epochs(5):
            assert (epoch > 2) or (run.vars.best == 2.5 and run.vars.log is log)
    assert "best" in run.vars and "other" not in run.vars


def test_the_best_checkpoint_by_a_metric_stays(tmp_path):
    scores = [0.1, 0.9, 0.3, 0.2, 0.4]
    with perdure.Run("job", root=tmp_path, keep=perdure.Keep(last=1, best="max:score"), save_every="1 h") as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for epoch in run.epochs(5):
            for (x,) in run.batches(loader):
                job.step(x)
            run.log(score=scores[epoch])
    found = Store(RunPaths(tmp_path / "job"), "job").list()
    assert sorted(item.manifest.step for item in found) == [8, 20]
    assert {item.manifest.step: item.manifest.metrics["score"] for item in found}[8] == 0.9


def test_a_save_with_nan_does_not_push_out_the_last_healthy_one(tmp_path, capfd):
    with pytest.raises(Stop), perdure.Run("job", root=tmp_path, save_every="1 step") as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(9):
            for (x,) in run.batches(loader):
                if run.step == 12:
                    raise Stop
                job.step(x)
                if run.step == 5:
                    with torch.no_grad():
                        job.model[0].weight[0, 0] = float("nan")
    assert "NaN or Inf in model.0.weight" in capfd.readouterr().err
    healthy = [
        item.manifest.step for item in Store(RunPaths(tmp_path / "job"), "job").list() if item.manifest.healthy
    ]
    assert healthy == [5]


def test_metrics_and_events_are_in_order_and_superseded_after_a_resume(tmp_path):
    for stop in (7, None):
        with pytest.raises(Stop) if stop else open("/dev/null"):
            with perdure.Run("job", root=tmp_path, save_every="5 steps") as run:
                job, loader = Job(), shuffled()
                run.track(**job.tracked())
                for _ in run.epochs(3):
                    for (x,) in run.batches(loader):
                        if run.step == stop:
                            raise Stop
                        job.step(x)
                        run.log(loss=x.mean(), n=run.step)
    events = list(read_events(tmp_path / "job" / "events.jsonl"))
    assert [e["values"]["n"] for e in events if e["kind"] == "metrics"] == list(range(12))
    assert [e["event"] for e in events if e["kind"] == "event"][-1] == "finished"
    assert {e["session"] for e in events if "session" in e} == {1, 2}


def test_logging_does_not_read_tensors_and_keeps_their_value_of_that_moment(tmp_path):
    with perdure.Run("job", root=tmp_path) as run:
        loss = torch.ones((), requires_grad=True)
        run.log(loss=loss)
        with torch.no_grad():
            loss += 5
        for _ in run.epochs(0):
            pass
    assert next(read_events(tmp_path / "job" / "events.jsonl"))["values"]["loss"] == 1


def test_folds_a_finished_one_costs_nothing(tmp_path):
    built = []

    def folds(stop_in=None):
        for fold in range(3):
            run = perdure.Run(f"fold{fold}", root=tmp_path)
            if run.finished:
                continue
            built.append(fold)
            with run:
                job, loader = Job(), shuffled()
                run.track(**job.tracked())
                for _ in run.epochs(1):
                    for (x,) in run.batches(loader):
                        job.step(x)
                    if fold == stop_in:
                        raise Stop
            assert run.finished

    with pytest.raises(Stop):
        folds(stop_in=1)
    folds()
    folds()
    assert built == [0, 1, 1, 2]


def test_the_session_report_is_paused_if_any_run_is(tmp_path, monkeypatch):
    import os
    import signal

    report = tmp_path / "report.json"
    monkeypatch.setenv("PERDURE_SESSION_REPORT", str(report))
    for fold in range(3):
        with perdure.Run(f"fold{fold}", root=tmp_path) as run:
            job, loader = Job(), shuffled()
            run.track(**job.tracked())
            for _ in run.epochs(1):
                for (x,) in run.batches(loader):
                    job.step(x)
                    if fold == 1:
                        os.kill(os.getpid(), signal.SIGTERM)
    document = json.loads(report.read_text())
    assert document["status"] == "paused"
    assert [(r["name"], r["status"]) for r in document["runs"]] == [
        ("fold0", "finished"), ("fold1", "paused"), ("fold2", "paused"),
    ]  # fmt: skip


def test_a_loop_left_by_break_is_at_its_end(tmp_path):
    for _ in range(2):
        with perdure.Run("job", root=tmp_path) as run:
            job, loader = Job(), shuffled()
            run.track(**job.tracked())
            for epoch in run.epochs(100):
                for (x,) in run.batches(loader):
                    job.step(x)
                if epoch == 1:  # early stopping
                    break
            run.export()
        assert (run.finished, run.step) == (True, 8)
    state = torch.load(tmp_path / "job" / "export" / "job-step-000000008.pth", weights_only=True)
    assert all(torch.equal(state[name], value) for name, value in job.model.state_dict().items())


def test_run_again_after_the_end_it_makes_no_step_and_restores_the_final_state(tmp_path):
    def once(root, seed):
        seed_all(seed)
        with perdure.Run("job", root=root) as run:
            job, loader, bodies = Job(), shuffled(), 0
            run.track(**job.tracked())
            for _ in run.epochs(2):
                for (x,) in run.batches(loader):
                    bodies += 1
                    job.step(x)
        return job.result(), bodies, run.resumed_from, run.finished

    first = in_new_process(once, tmp_path, 0)
    again = in_new_process(once, tmp_path, 5)
    assert first[0] == again[0]
    assert (first[1:], again[1:]) == ((8, None, True), (0, 8, True))


def test_a_read_only_input_is_restored_from_directly(tmp_path, monkeypatch):
    monkeypatch.setenv("PERDURE_INPUTS", str(tmp_path / "input"))
    stopped(tmp_path / "earlier" / "perdure", at=6)
    target = tmp_path / "input" / "notebooks" / "me" / "leg-1"
    shutil.copytree(tmp_path / "earlier", target)
    run = train(tmp_path / "fresh")
    assert (run.resumed_from, run.finished) == (6, True)
    manifests = [newest(tmp_path / "fresh").manifest, newest(target / "perdure").manifest]
    assert manifests[0].run_id == manifests[1].run_id
    events = list(read_events(tmp_path / "fresh" / "job" / "events.jsonl"))
    assert [e["event"] for e in events if e["kind"] == "event"][-1] == "finished"


def test_resume_false_sets_the_earlier_run_aside_and_loses_nothing(tmp_path):
    stopped(tmp_path)
    run = train(tmp_path, resume=False)
    assert (run.resumed_from, run.step) == (None, 12)
    assert Store(RunPaths(tmp_path / "job.old-1"), "job").newest().manifest.step == 6


def test_resume_false_leaves_checkpoints_in_the_inputs_alone_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PERDURE_INPUTS", str(tmp_path / "input"))
    stopped(tmp_path / "input")
    stopped(tmp_path / "own", at=3, resume=False)
    assert train(tmp_path / "own").resumed_from == 3


def test_a_rerun_notebook_cell_takes_over_from_the_run_it_made_before(tmp_path):
    abandoned = perdure.Run("job", root=tmp_path)
    abandoned.track(**Job().tracked())
    assert train(tmp_path).finished


@pytest.mark.parametrize("resume", [True, False])
def test_a_cell_without_with_that_failed_and_was_run_again_leaves_nothing_behind(tmp_path, monkeypatch, resume):
    """The first run is not closed: its end, when the kernel ends, must not be told in place of the second's."""
    failed = perdure.Run("job", root=tmp_path)
    failed.track(**Job().tracked())
    loop = failed.epochs(3)
    next(loop)
    assert train(tmp_path, resume=resume).finished
    assert [thread.name for thread in threading.enumerate() if thread.name == "perdure-monitor"] == []
    monkeypatch.setattr(sys, "last_value", Stop(), raising=False)
    perdure.training.run._close_all()
    assert json.loads((tmp_path / "job" / "session.json").read_text())["status"] == "finished"
    assert "failed" not in (tmp_path / "job" / "events.jsonl").read_text()


def test_a_run_that_is_opened_a_second_time_in_its_own_loop_says_so_at_once(tmp_path):
    with pytest.raises(LoopError, match="has taken this run over"), perdure.Run("job", root=tmp_path) as run:
        for epoch in run.epochs(3):
            assert (epoch, perdure.Run("job", root=tmp_path).step) == (0, 0)


def test_a_seed_makes_what_the_script_draws_before_its_loop_the_same_in_each_session(tmp_path):
    splits = []
    for seed in (1, 2):
        seed_all(seed)
        with pytest.raises(Stop), perdure.Run("job", root=tmp_path, seed=7) as run:
            splits.append(torch.randperm(10).tolist())
            for epoch in run.epochs(9):
                run.save()
                if epoch == 3:
                    raise Stop
    assert splits[0] == splits[1]


def test_without_a_seed_nothing_is_seeded(tmp_path):
    seed_all(3)
    want = torch.rand(1)
    seed_all(3)
    perdure.Run("job", root=tmp_path)
    assert torch.equal(torch.rand(1), want)


def test_an_object_that_is_no_longer_tracked_is_kept_and_said(tmp_path, capfd):
    stopped(tmp_path, extra={"teacher": {"level": 3}})
    train(tmp_path)
    assert "holds 'teacher'" in capfd.readouterr().err
    book = {"level": 0}
    with perdure.Run("job", root=tmp_path) as run:
        run.track(**Job().tracked(), teacher=book)
        list(run.epochs(3))
    assert book == {"level": 3}


def test_the_length_of_batches_is_that_of_the_loader_also_after_a_resume_in_the_middle(tmp_path):
    stopped(tmp_path, at=6)
    with perdure.Run("job", root=tmp_path) as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            batches = run.batches(loader)
            assert len(batches) == 4
            for (x,) in batches:
                job.step(x)


def test_run_batch_counts_on_after_a_resume(tmp_path):
    stopped(tmp_path, at=6)
    seen = []
    with perdure.Run("job", root=tmp_path) as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                seen.append((run.epoch, run.batch, run.step))
                job.step(x)
    assert seen[:3] == [(1, 2, 6), (1, 3, 7), (2, 0, 8)]


def test_fast_forward_reads_no_skipped_sample(tmp_path):
    class Counting(torch.utils.data.Dataset):
        read = 0

        def __len__(self):
            return 400

        def __getitem__(self, i):
            Counting.read += 1
            return (torch.full((4,), float(i)),)

    def loader():
        return DataLoader(Counting(), batch_size=4, shuffle=True)

    stopped(tmp_path, at=90, epochs=1, loader=loader())
    Counting.read = 0
    train(tmp_path, epochs=1, loader=loader())
    assert Counting.read == 40


def test_the_start_says_where_what_survives_how_often_and_how_much_disk(tmp_path, capfd):
    train(tmp_path, limits=perdure.Limits(window="1 h", disk="1 GB"))
    err = capfd.readouterr().err
    for word in (
        "starts afresh on local",
        "cpu",
        "stays",
        "the window closes in",
        "saves every 1 step",
        "free",
        "1.0 GB",
    ):
        assert word in err


def test_the_user_is_told_of_a_scheduler_that_nobody_tracks(tmp_path, capfd):
    job = Job()
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 1)
    train(tmp_path, job=job)
    assert "StepLR" in capfd.readouterr().err
    del scheduler


def test_current_is_the_run_that_was_made_last(tmp_path):
    with perdure.Run("outer", root=tmp_path) as outer:
        with perdure.Run("inner", root=tmp_path) as inner:
            assert perdure.current() is inner
        assert perdure.current() is outer
    with pytest.raises(perdure.PerdureError, match="no run"):
        perdure.current()


def test_a_list_of_batches_is_indexed_and_not_replayed(tmp_path):
    batches = [(x[0].unsqueeze(0),) for x in dataset(8)]
    stopped(tmp_path, at=5, loader=batches)
    assert train(tmp_path, loader=batches).step == 24


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_validation_loader_with_persistent_workers_is_warned_of_or_exact(tmp_path, capfd, own_generator):
    from training.jobs import check_exact

    def script(run):
        job, loader = Job(), shuffled()
        generator = torch.Generator().manual_seed(0) if own_generator else None
        validation = DataLoader(
            dataset(16, salt=4), batch_size=8, num_workers=1, persistent_workers=True, generator=generator
        )
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
            job.book["score"] = sum(float(job.model(x).detach().sum()) for (x,) in validation)
        return job

    if own_generator:
        check_exact(script, tmp_path, (5, 8))
    else:
        with perdure.Run("job", root=tmp_path) as run:
            script(run)
    warned = capfd.readouterr().err.count("iterated outside of the run")
    assert warned == (0 if own_generator else 1)


@pytest.mark.parametrize("plain", [True, False])
def test_an_iterator_that_the_run_does_not_know_is_warned_of(tmp_path, capfd, plain):
    with perdure.Run("job", root=tmp_path) as run:
        job, loader, other = Job(), shuffled(), DataLoader(dataset(64, salt=4), batch_size=4)
        run.track(**job.tracked())
        stream = iter(other) if plain else run.cycle(other)
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x + next(stream)[0].repeat(2, 1))
            for (_,) in other:
                pass
    assert capfd.readouterr().err.count("run.cycle(loader)") == (1 if plain else 0)


def test_metrics_may_be_logged_from_a_thread_before_anything_else(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    for number in range(5):
        with perdure.Run(f"job{number}", root=tmp_path) as run, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: run.log(n=i), range(32)))
            for _ in run.epochs(0):
                pass
        events = [e for e in read_events(run.folder / "events.jsonl") if e["kind"] == "metrics"]
        assert sorted(e["values"]["n"] for e in events) == list(range(32))


def test_loaders_of_runs_that_are_still_referred_to_are_not_copied_again_by_the_next_run(tmp_path):
    import gc

    runs, counts = [], []
    for fold in range(6):
        run = perdure.Run(f"fold{fold}", root=tmp_path)
        with run:
            job, loader = Job(), shuffled()
            run.track(**job.tracked())
            for _ in run.epochs(1):
                for (x,) in run.batches(loader):
                    job.step(x)
        runs.append(run)
        gc.collect()
        counts.append(sum(issubclass(type(value), DataLoader) for value in gc.get_objects()))
    steps = [after - before for before, after in itertools.pairwise(counts[1:])]
    assert len(set(steps)) == 1 and steps[0] <= 3, counts
