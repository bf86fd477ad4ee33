"""Saves beside the training: consistent or thrown away, and nothing is left out that somebody still needs."""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import threading

import pytest
import torch
from torch import nn

import perdure
from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.search import list_run
from perdure.core.events import read_events
from perdure.core.paths import RunPaths
from perdure.hardware.host import Memory
from perdure.tensors import arena, copying
from perdure.tensors.encoding import unflatten
from perdure.training import flight, gradients, overlap

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(16, 1100).requires_grad_(False)  # above the size that is always copied at once
        self.norm = nn.BatchNorm1d(1100)
        self.head = nn.Linear(1100, 16)

    def forward(self, x):
        return self.head(self.norm(self.frozen(x)))


class Job:
    def __init__(self, make=OPTIMIZERS["adamw"]):
        torch.manual_seed(0)
        self.model = Net()
        self.ema = [p.detach().clone() for p in self.model.head.parameters()]
        self.optimizer = make([p for p in self.model.parameters() if p.requires_grad])

    def tracked(self):
        return {"model": self.model, "optimizer": self.optimizer, "ema": self.ema}

    def forward_backward(self):
        loss = self.model(torch.randn(4, 16)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()

    def step(self):
        self.forward_backward()
        self.optimizer.step()
        for mean, parameter in zip(self.ema, self.model.head.parameters(), strict=True):
            mean.mul_(0.9).add_(parameter.detach(), alpha=0.1)

    def state(self):
        return {k: v.clone() for k, v in self.model.state_dict().items()} | {
            f"{i}.{k}": v.clone() for i, s in self.optimizer.state_dict()["state"].items() for k, v in s.items()
        }


def slow(monkeypatch, seconds=0.01):
    """Copies that take long enough for the forward and backward to run under them."""
    real = copying.copy_bytes

    def copy(source, target):
        threading.Event().wait(seconds)
        return real(source, target)

    monkeypatch.setattr(copying, "copy_bytes", copy)


def saved(root):
    """Step to tree of each checkpoint."""
    found = {}
    for item in list_run(RunPaths(root / "job")):
        checkpoint = open_checkpoint(item.folder)
        found[checkpoint.manifest.step] = unflatten(checkpoint.values, checkpoint.buffer)
    return found


def same_as_model(tree, state):
    module = tree["objects"]["model"]["model"]
    parts = {**module["parameters"], **module["buffers"]}
    return all(torch.equal(parts[name], state[name]) for name in parts)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_checkpoint_holds_the_boundary_though_training_went_on(kind, tmp_path, monkeypatch):
    slow(monkeypatch)
    job, states = Job(OPTIMIZERS[kind]), {}
    with perdure.Run("job", root=tmp_path, save_every="2 steps", keep=perdure.Keep(last=9)) as run:
        run.track(**job.tracked())
        for step in run.steps(11):
            states[step] = job.state()
            job.step()
    trees = saved(tmp_path)
    assert set(trees) == {2, 4, 6, 8, 10, 11}
    for step in (2, 4, 6, 8, 10):
        assert same_as_model(trees[step], states[step]), step
        state = trees[step]["objects"]["optimizer"]["optimizer"]["layers"][""]["state"]
        flat = [value for entry in state.values() for value in entry.values() if isinstance(value, torch.Tensor)]
        live = [value for name, value in states[step].items() if name[0].isdigit()]
        assert len(flat) == len(live)
        assert all(torch.equal(a, b) for a, b in zip(flat, live, strict=True))


def test_a_script_that_writes_to_its_weights_before_the_step_is_caught(tmp_path, monkeypatch, capfd):
    slow(monkeypatch)
    job, states = Job(), {}
    with perdure.Run("job", root=tmp_path, save_every="3 steps", keep=perdure.Keep(last=9)) as run:
        run.track(**job.tracked())
        for step in run.steps(10):
            states[step] = job.state()
            job.model.head.weight.data.mul_(0.5)  # no version counter sees it
            job.step()
    said = capfd.readouterr().err
    assert "model/head.weight changed between a boundary and optimizer.step()" in said
    assert said.count("changed between a boundary") == 1
    trees = saved(tmp_path)
    assert 3 not in trees  # thrown away ...
    assert min(trees) in (4, 5, 6)  # ... made again at the first boundary at which that is known, and right since
    assert {6, 9, 10} <= set(trees)
    for step in (min(trees), 6, 9):
        assert same_as_model(trees[step], states[step]), step


def test_a_write_that_begins_later_is_seen_by_the_version_counter(tmp_path, monkeypatch, capfd):
    slow(monkeypatch)
    job, states = Job(), {}
    with perdure.Run("job", root=tmp_path, save_every="1 step", keep=perdure.Keep(last=20)) as run:
        run.track(**job.tracked())
        for step in run.steps(12):
            states[step] = job.state()
            if step == 7:
                with torch.no_grad():
                    job.model.head.weight.mul_(0.5)
            job.step()
    assert "model/head.weight changed between" in capfd.readouterr().err
    trees = saved(tmp_path)
    assert set(range(1, 12)) - set(trees) == {7}
    assert all(same_as_model(trees[step], states[step]) for step in trees if step < 12)


def test_what_had_not_changed_for_a_while_and_then_does_is_not_torn(tmp_path, monkeypatch, capfd):
    slow(monkeypatch)
    job, states = Job(), {}
    with perdure.Run("job", root=tmp_path, save_every="1 step", keep=perdure.Keep(last=20)) as run:
        run.track(**job.tracked())
        for step in run.steps(14):
            states[step] = job.state()
            if step in (7, 8):
                job.model.frozen.weight.data.add_(1.0)
            job.step()
    trees = saved(tmp_path)
    assert all(same_as_model(trees[step], states[step]) for step in trees if step < 14)
    assert {5, 6, 12, 13} <= set(trees)
    assert "changed between" not in capfd.readouterr().err


class TestGradients:
    @pytest.fixture(autouse=True)
    def _always_worth_it(self, monkeypatch):
        monkeypatch.setattr(gradients, "WORTH_BYTES", 1)

    def left_out(self, tree):
        return not tree["objects"]["model"]["model"]["gradients"]

    def test_those_that_are_dropped_before_the_step_are_left_out(self, tmp_path, monkeypatch):
        slow(monkeypatch)
        job = Job()
        with perdure.Run("job", root=tmp_path, save_every="4 steps", keep=perdure.Keep(last=9)) as run:
            run.track(**job.tracked())
            for _ in run.steps(13):
                job.step()
        trees = saved(tmp_path)
        assert {step: self.left_out(tree) for step, tree in trees.items()} == {
            4: True,
            8: True,
            13: False,
        }  # 12: nobody could say any more

    def test_those_that_are_accumulated_over_a_boundary_are_saved(self, tmp_path):
        job, grads = Job(), {}
        with perdure.Run("job", root=tmp_path, save_every="1 step", keep=perdure.Keep(last=20)) as run:
            run.track(**job.tracked())
            for step in run.steps(12):
                grads[step] = None if job.model.head.weight.grad is None else job.model.head.weight.grad.clone()
                job.model(torch.randn(4, 16)).square().mean().backward()
                if step % 3 == 2:
                    job.optimizer.step()
                    job.optimizer.zero_grad()
        trees = saved(tmp_path)
        for step in (1, 2, 4, 5, 7, 8, 10, 11):
            assert torch.equal(trees[step]["objects"]["model"]["model"]["gradients"]["head.weight"], grads[step])

    def test_those_of_a_step_at_the_top_of_the_body_are_saved(self, tmp_path):
        job = Job()
        with perdure.Run("job", root=tmp_path, save_every="1 step", keep=perdure.Keep(last=20)) as run:
            run.track(**job.tracked())
            for step in run.steps(10):
                if step:
                    job.optimizer.step()
                job.forward_backward()
        assert not any(self.left_out(tree) for tree in saved(tmp_path).values())

    def test_a_habit_that_changes_costs_the_snapshot_and_not_the_truth(self, tmp_path):
        job = Job()
        with perdure.Run("job", root=tmp_path, save_every="1 step", keep=perdure.Keep(last=20)) as run:
            run.track(**job.tracked())
            for step in run.steps(14):
                if step < 8:
                    job.step()
                else:  # from here on gradients live over boundaries
                    job.model(torch.randn(4, 16)).square().mean().backward()
                    job.optimizer.step()
        trees = saved(tmp_path)
        assert 8 not in trees  # left out what was needed: thrown away
        assert self.left_out(trees[7])
        assert not any(self.left_out(trees[step]) for step in range(9, 14))


def test_without_memory_for_a_copy_training_waits_and_is_told_so(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(overlap, "memory", lambda: Memory(0, 0))
    job = Job()
    with perdure.Run("job", root=tmp_path, save_every="2 steps", keep=perdure.Keep(last=9)) as run:
        run.track(**job.tracked())
        for _ in run.steps(5):
            job.step()
    assert set(saved(tmp_path)) == {2, 4, 5}
    assert capfd.readouterr().err.count("no memory for a copy of the state") == 1


def test_memory_that_is_not_there_after_all_costs_the_snapshot_and_not_the_training(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(arena.Arena, "lay_out", lambda *_: mmap.mmap(-1, 1 << 62))
    job = Job()
    with perdure.Run("job", root=tmp_path, save_every="2 steps", keep=perdure.Keep(last=9)) as run:
        run.track(**job.tracked())
        for _ in run.steps(6):
            job.step()
    assert {4, 6} <= set(saved(tmp_path)) <= {3, 4, 6}  # made again at the boundary after it is known
    assert capfd.readouterr().err.count("no memory for a copy of the state") == 1


def test_a_script_that_spoils_every_snapshot_is_waited_for_after_three(tmp_path, monkeypatch):
    slow(monkeypatch)
    job, states = Job(), {}
    with perdure.Run("job", root=tmp_path, save_every="1 step", keep=perdure.Keep(last=20)) as run:
        run.track(**job.tracked())
        for step in run.steps(9):
            states[step] = job.state()
            for parameter in job.model.head.parameters():
                with torch.no_grad():
                    parameter.mul_(0.5)
                parameter.data = parameter.data.clone()  # another place each time: nothing can be learned
            job.step()
    trees = saved(tmp_path)
    assert {4, 8} <= set(trees)
    assert all(same_as_model(trees[step], states[step]) for step in trees if step < 9)


def test_metrics_of_steps_that_come_again_are_superseded_though_the_save_ended_after_them(tmp_path, monkeypatch):
    slow(monkeypatch, 0.02)

    def session(stop_at):
        job = Job()
        with perdure.Run("job", root=tmp_path, save_every="3 steps") as run:
            run.track(**job.tracked())
            for step in run.steps(9):
                job.step()
                run.log(at=step)
                run._engine._journal.flush()
                if step == stop_at:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session(4)
    session(None)
    lines = list(read_events(tmp_path / "job" / "events.jsonl"))
    assert [line["values"]["at"] for line in lines if line["kind"] == "metrics"] == [
        float(step) for step in range(9)
    ]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_save_is_begun_without_a_collection_and_leaves_the_collector_as_it_was(wanted, tmp_path, monkeypatch):
    real, during, after = overlap.encode, [], []
    monkeypatch.setattr(overlap, "encode", lambda tree: (during.append(gc.isenabled()), real(tree))[1])
    job = Job()
    (gc.enable if wanted else gc.disable)()
    try:
        with perdure.Run("job", root=tmp_path, save_every="2 steps") as run:
            run.track(**job.tracked())
            for _ in run.steps(5):
                job.step()
                after.append(gc.isenabled())
    finally:
        gc.enable()
    assert during
    assert not any(during)
    assert set(after) == {wanted}


def test_the_hooks_are_gone_when_the_loop_is(tmp_path):
    job = Job()
    with perdure.Run("job", root=tmp_path, save_every="2 steps") as run:
        run.track(**job.tracked())
        for _ in run.steps(5):
            job.step()
            hooked = len(job.optimizer._optimizer_step_pre_hooks)
    assert hooked == 1
    assert not job.optimizer._optimizer_step_pre_hooks


def test_a_kill_while_a_save_is_under_way_leaves_the_one_before(tmp_path):
    child = os.fork()
    if child == 0:
        real = copying.copy_bytes

        def copy(source, target):
            if len(list((tmp_path / "job" / "checkpoints").glob("*/manifest.json"))) >= 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(source, target)

        copying.copy_bytes = copy
        job = Job()
        with perdure.Run("job", root=tmp_path, save_every="2 steps", keep=perdure.Keep(last=9)) as run:
            run.track(**job.tracked())
            for _ in run.steps(40):
                job.step()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert len(saved(tmp_path)) == 2
    assert json.loads((tmp_path / "job" / "session.json").read_text())["status"] == "running"


def test_a_wait_that_is_interrupted_leaves_no_save_under_way_behind_the_run(tmp_path, monkeypatch):
    slow(monkeypatch)
    job, waited = Job(), []
    real = flight.Flight.result

    def result(self):
        if not waited:
            waited.append(self)
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(flight.Flight, "result", result)
    with pytest.raises(KeyboardInterrupt), perdure.Run("job", root=tmp_path, save_every="1 step") as run:
        run.track(**job.tracked())
        for _ in run.steps(5):
            job.step()
    assert waited[0].landed


def test_a_child_made_by_fork_does_not_wait_for_a_copy_of_its_parent(tmp_path, monkeypatch):
    go_on = threading.Event()
    real = copying.copy_bytes
    monkeypatch.setattr(copying, "copy_bytes", lambda *args: (go_on.wait(60), real(*args)))
    job = Job()
    with perdure.Run("job", root=tmp_path, save_every="1 step") as run:
        run.track(**job.tracked())
        for step in run.steps(2):
            if step == 1:
                job.forward_backward()
                child = os.fork()
                if child == 0:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(20)
                    job.optimizer.step()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                go_on.set()
            job.step()
