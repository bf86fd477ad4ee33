"""Shapes of loops that a resume must not change (exact), or must refuse or warn of."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training.jobs import Job, check_exact, check_killed

CUTS = (2, 4, 5, 8)


def dataset(n=32, width=4, salt=0):
    g = torch.Generator().manual_seed(5 + salt)
    return TensorDataset(torch.randn(n, width, generator=g))


def shuffled(**kwargs):
    return DataLoader(dataset(), batch_size=8, shuffle=True, **kwargs)


def test_the_plain_loop_over_epochs_and_batches(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
        return job

    check_killed(script, tmp_path, CUTS)


def test_saving_only_at_the_end_of_an_epoch_loses_at_most_that_epoch(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
        return job

    check_killed(script, tmp_path, (5, 7, 8, 11), save_every="1 epoch")


def test_code_at_the_head_of_the_epoch_that_draws(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            noise = torch.randn(4) + random.random()
            for (x,) in run.batches(loader):
                job.step(x + noise)
        return job

    check_exact(script, tmp_path, CUTS)


def test_code_at_the_head_that_steps_the_scheduler(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 1, gamma=0.5)
        run.track(**job.tracked(), scheduler=scheduler)
        for epoch in run.epochs(3):
            if epoch:
                scheduler.step()
            for (x,) in run.batches(loader):
                job.step(x)
        return job

    check_exact(script, tmp_path, CUTS)


@pytest.mark.parametrize("each_epoch", [False, True])
def test_code_at_the_head_that_unfreezes_and_adds_a_parameter_group(tmp_path, each_epoch):
    def script(run):
        job, loader, scales = Job(), shuffled(), nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(3)])
        scales.requires_grad_(False)
        run.track(**job.tracked(), scales=scales)
        for epoch in run.epochs(3):
            if epoch == 1 or (each_epoch and epoch > 0):
                scales[epoch].requires_grad_(True)
                job.optimizer.add_param_group({"params": [scales[epoch]], "lr": 1e-3 * (epoch + 1)})
            for (x,) in run.batches(loader):
                job.step(x * sum(scales))
        return job

    check_exact(script, tmp_path, CUTS)


def test_names_and_sums_used_in_the_tail(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            run.vars.total = 0.0
            for (x,) in run.batches(loader):
                job.step(x)
                last = float(x.sum())
                run.vars.total += last
            job.book["tail"] = [last, run.vars.total]
            job.book["seen"] ^= hash((last, run.vars.total)) & 0xFFFF
        return job

    check_exact(script, tmp_path, CUTS)


@pytest.mark.parametrize("workers", [0, 2])
def test_zip_of_two_loaders(tmp_path, workers):
    def script(run):
        job = Job()
        a, b = shuffled(num_workers=workers), DataLoader(dataset(salt=1), batch_size=8, shuffle=True)
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,), (y,) in zip(run.batches(a), run.batches(b)):
                job.step(x + y)
        return job

    check_exact(script, tmp_path, (1, 3, 4, 6))


def test_two_passes_in_one_epoch(tmp_path):
    def script(run):
        job, loader, other = Job(), shuffled(), DataLoader(dataset(16, salt=2), batch_size=8, shuffle=True)
        run.track(**job.tracked())
        for _ in run.epochs(2):
            for (x,) in run.batches(loader):
                job.step(x)
            job.book["between"] = float(torch.rand(1))
            for (x,) in run.batches(other):
                job.step(x * job.book["between"])
            for (x,) in run.batches(loader):
                job.step(x)
        return job

    check_exact(script, tmp_path, (1, 4, 6, 9, 10, 13))


def test_a_nested_pass_runs_whole_and_counts_no_step(tmp_path):
    def script(run):
        job, loader, inner = Job(), shuffled(), DataLoader(dataset(16, salt=2), batch_size=8, shuffle=True)
        run.track(**job.tracked())
        for _ in run.epochs(2):
            for (x,) in run.batches(loader):
                extra = sum(y.sum() for (y,) in run.batches(inner))
                job.step(x + extra * 0.01)
        assert run.step == 8
        return job

    check_exact(script, tmp_path, (1, 3, 4, 6))


def test_break_counts_the_batch_that_is_out_and_ends_the_call(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(4):
            for (x,) in run.batches(loader):
                job.step(x)
                if run.batch == 2:
                    break
        assert run.step == 12
        return job

    check_exact(script, tmp_path, (1, 2, 3, 4, 7, 9))


def test_steps_with_a_stream(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        stream = run.cycle(loader)
        for step in run.steps(10):
            assert step == run.step
            (x,), (y,) = next(stream), next(stream)
            job.step(x + y * torch.rand(1))
        assert run.epoch == 4
        return job

    check_exact(script, tmp_path, (1, 2, 3, 4, 5, 8))


def test_steps_where_something_is_drawn_before_the_stream_is_asked(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        stream = run.cycle(loader)
        for _ in run.steps(9):
            noise = torch.randn(4)
            (x,) = next(stream)
            job.step(x + noise)
        return job

    check_exact(script, tmp_path, (1, 3, 4, 5, 8))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_beside_epochs(tmp_path, workers):
    def script(run):
        job, loader = Job(), shuffled(num_workers=workers)
        run.track(**job.tracked())
        stream = run.cycle(DataLoader(dataset(24, salt=3), batch_size=8, shuffle=True))
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                (y,) = next(stream)
                job.step(x + y)
        return job

    check_exact(script, tmp_path, (1, 3, 4, 5, 6, 9))


def test_steps_sampled_by_hand(tmp_path):
    def script(run):
        job, (data,) = Job(), dataset().tensors
        run.track(**job.tracked())
        for _ in run.steps(8):
            job.step(data[torch.randint(0, 32, (8,))])
        return job

    check_exact(script, tmp_path, (1, 4, 7))


def test_a_plain_validation_loader_is_left_alone(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        validation = DataLoader(dataset(16, salt=4), batch_size=8, shuffle=True)
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
            job.model.eval()
            with torch.no_grad():
                job.book["score"] = sum(float(job.model(x).sum()) for (x,) in validation)
            job.model.train()
        return job

    check_exact(script, tmp_path, CUTS)


def test_a_counter_attribute_in_a_module(tmp_path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.log = []

        def forward(self, x):
            self.calls += 1
            self.log.append(self.calls)
            return x * (1 + 0.1 * (self.calls % 3)) + 0.01 * len(self.log)

    def script(run):
        job, loader = Job(), shuffled()
        job.model = nn.Sequential(Counting(), *job.model)
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
        return job

    check_exact(script, tmp_path, CUTS)


def test_an_alias_into_a_tracked_container_stays_one(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        log = {"losses": [], "tensor": torch.zeros(4)}
        run.track(**job.tracked(), log=log)
        losses, tensor = log["losses"], log["tensor"]
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                tensor += x.mean(0)
                losses.append(float(x.sum()))
                job.step(x + 0.01 * log["tensor"] + 0.001 * len(log["losses"]))
        assert losses is log["losses"] and len(losses) == 12
        return job

    check_exact(script, tmp_path, CUTS)


def test_a_loss_head_that_nobody_tracked(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        head = nn.Linear(4, 4)
        job.optimizer = torch.optim.Adam([*job.model.parameters(), *head.parameters()], lr=1e-2)
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(head(x).detach())
                head.weight.grad = torch.full_like(head.weight, 0.1)
        return job

    check_exact(script, tmp_path, CUTS)


def test_the_optimizer_tracked_first(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(optimizer=job.optimizer)
        run.track(book=job.book)
        run.track(model=job.model)
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
        return job

    check_exact(script, tmp_path, CUTS)


def test_train_and_eval_switched_in_the_tail(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for epoch in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
            if epoch == 0:
                job.model[1].eval()
        return job

    check_exact(script, tmp_path, CUTS)


def test_a_loop_in_a_function_that_was_not_handed_the_run(tmp_path):
    import perdure

    def train_one_epoch(job, loader):
        for (x,) in perdure.current().batches(loader):
            job.step(x)

    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            train_one_epoch(job, loader)
        return job

    check_exact(script, tmp_path, (3, 6))


def test_gradients_accumulated_over_steps(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                loss = job.model(x).square().mean()
                loss.backward()
                if (run.batch + 1) % 3 == 0:
                    job.optimizer.step()
                    job.optimizer.zero_grad()
                job.see(x + loss)
        return job

    check_exact(script, tmp_path, (1, 2, 3, 5, 7, 8))


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("enumerate", enumerate),
        ("islice", lambda batches: zip(range(9), itertools.islice(batches, 9))),
        ("zip(range(...), ...)", lambda batches: zip(range(9), batches)),
    ],
)
def test_what_counts_batches_from_outside_is_warned_of(tmp_path, capfd, name, wrap):
    def script(run):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(2):
            for _, (x,) in wrap(run.batches(loader)):
                job.step(x)
        return job

    check_exact(script, tmp_path, (2,))
    assert f"{name} over run.batches(...) counts from 0 again" in capfd.readouterr().err


def test_a_validation_loader_with_a_generator_of_its_own_goes_on_by_itself(tmp_path):
    def script(run):
        job, loader = Job(), shuffled()
        validation = DataLoader(dataset(16, 4), 8, shuffle=True, generator=torch.Generator().manual_seed(3))
        run.track(**job.tracked())
        for _ in run.epochs(4):
            for (x,) in run.batches(loader):
                job.step(x)
            for (x,) in validation:
                job.see(x * 1.0)
                job.book["steps"] -= 1
        return job

    check_exact(script, tmp_path, (2, 4, 5, 8))
