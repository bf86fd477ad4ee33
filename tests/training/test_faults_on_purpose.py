"""Each mechanism of exact resume, left out on purpose, turns a test red: the tests can fail."""

from __future__ import annotations

import pytest
import torch

from perdure.data import feed, seeds, source, standin
from perdure.data.book import LoaderBook
from perdure.training import loops, state
from perdure.training.world.world import World
from training import test_loaders, test_loops
from training.jobs import Job, check_exact


def over(kind, mode="main"):
    return test_loaders.run_over(lambda: test_loaders.KINDS[kind](**test_loaders.MODES[mode]))


def plain(run):
    job, loader = Job(), test_loops.shuffled()
    run.track(**job.tracked())
    for _ in run.epochs(3):
        for (x,) in run.batches(loader):
            job.step(x)
    return job


def drawing_head(run):
    job, loader = Job(), test_loops.shuffled()
    run.track(**job.tracked())
    for _ in run.epochs(3):
        noise = torch.randn(4)
        for (x,) in run.batches(loader):
            job.step(x + noise)
    return job


def scheduling_head(run):
    job, loader = Job(), test_loops.shuffled()
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 1, gamma=0.5)
    run.track(**job.tracked(), scheduler=scheduler)
    for epoch in run.epochs(3):
        if epoch:
            scheduler.step()
        scale = 1 + job.optimizer.param_groups[0]["lr"]
        for (x,) in run.batches(loader):
            job.step(x * scale)
    return job


def names_in_the_tail(run):
    job, loader = Job(), test_loops.shuffled()
    run.track(**job.tracked())
    for _ in run.epochs(3):
        for (x,) in run.batches(loader):
            job.step(x)
            last = float(x.sum())
        job.book["last"] = last
        del last
    return job


def nothing(*args, **kwargs):
    return None


def without_in(monkeypatch, module, function, owner, method):
    """``module.function`` does nothing while ``owner.method`` runs."""
    plain_function, plain_method = getattr(module, function), getattr(owner, method)

    def method_without(*args, **kwargs):
        setattr(module, function, nothing)
        try:
            return plain_method(*args, **kwargs)
        finally:
            setattr(module, function, plain_function)

    monkeypatch.setattr(owner, method, method_without)


def no_head_generators(monkeypatch):
    without_in(monkeypatch, state, "restore_global", state.RunState, "restore_head")


def no_boundary_generators(monkeypatch):
    without_in(monkeypatch, state, "restore_global", state.RunState, "restore_boundary")


def no_generators_at_the_start_of_a_call_or_sampler(monkeypatch):
    monkeypatch.setattr(source.Source, "restore", nothing)


def base_seed_not_undone(monkeypatch):
    monkeypatch.setattr(feed.Feed, "_undo_base_seed", nothing)


def no_generators_between_calls(monkeypatch):
    monkeypatch.setattr(LoaderBook, "_claim", nothing)


def no_generators_of_the_data_set(monkeypatch):
    monkeypatch.setattr(source.Source, "restore_dataset", nothing)


def workers_not_seeded(monkeypatch):
    monkeypatch.setattr(seeds, "_seed_light", nothing)


def no_lane_for_the_sampler(monkeypatch):
    plain_init = standin.StandIn.__init__
    monkeypatch.setattr(
        standin.StandIn, "__init__", lambda self, sampler, quiet: plain_init(self, sampler, quiet=True)
    )


def pending_indices_forgotten(monkeypatch):
    monkeypatch.setattr(standin.Deal, "pending", [])


def saved_after_the_last_batch(monkeypatch):
    monkeypatch.setattr(feed.Feed, "at_end", False)


def small_structure_at_the_head_left_out(monkeypatch):
    monkeypatch.setattr(World, "restore_head", nothing)


def reads_not_seeded(monkeypatch):
    monkeypatch.setattr(feed, "seed_global", nothing)


def trace_in_the_generators(monkeypatch):
    monkeypatch.setattr(loops, "_no_trace", lambda: nothing)


def two_passes(run):
    job, loader = Job(), test_loops.shuffled()
    run.track(**job.tracked())
    for _ in run.epochs(2):
        for _ in range(2):
            for (x,) in run.batches(loader):
                job.step(x)
    return job


def stream(run):
    job, loader = Job(), test_loops.shuffled()
    run.track(**job.tracked())
    batches = run.cycle(loader)
    for _ in run.steps(9):
        noise = torch.randn(4)
        (x,) = next(batches)
        job.step(x + noise)
    return job


FAULTS = [
    (no_head_generators, drawing_head, (2, 5)),
    (no_boundary_generators, plain, (2, 5)),
    (no_generators_at_the_start_of_a_call_or_sampler, two_passes, (6, 13)),
    (base_seed_not_undone, over("shuffle", "persistent"), (4, 8)),
    (no_generators_between_calls, over("shuffle_with_generator"), (4, 8)),
    (no_generators_of_the_data_set, over("dataset_with_generator"), (2, 5)),
    (workers_not_seeded, over("shuffle", "workers"), (2, 5)),
    (no_lane_for_the_sampler, over("lazy_global_sampler", "workers"), (2, 5)),
    (pending_indices_forgotten, over("live_sampler", "workers"), (2, 5)),
    (saved_after_the_last_batch, names_in_the_tail, (4, 8)),
    (small_structure_at_the_head_left_out, scheduling_head, (5, 6)),
    (reads_not_seeded, over("stream_with_buffer"), (2, 5)),
    (trace_in_the_generators, stream, (2, 5)),
]


@pytest.mark.parametrize(("fault", "script", "cuts"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
def test_left_out_on_purpose_it_turns_a_test_red(tmp_path, monkeypatch, capfd, fault, script, cuts):
    check_exact(script, tmp_path / "as it is", cuts[:1])
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_exact(script, tmp_path / "with the fault", cuts)
    capfd.readouterr()
