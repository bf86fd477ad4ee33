"""How a checkpoint is taken up: what is used is what was proven, nothing is in memory twice, no file is held."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import torch._dynamo  # seconds to import; otherwise every forked session would pay for it with its first optimizer

import perdure
import perdure.training.run
from perdure.checkpoint.store import Store
from perdure.core.errors import CorruptError
from perdure.core.paths import RunPaths
from perdure.training import adopting
from training.processes import in_new_process

torch.set_num_threads(1)

WIDTH = 512  # a weight and a moment are 1 MiB each: large enough to be kept


def built(layers: int = 4) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    model(torch.full((2, WIDTH), 0.01 * (number + 1))).square().mean().backward()
    optimizer.step()


def begun(root: Path, model, optimizer, *, after_track=lambda: None):
    """The run and its loop, at its first boundary."""
    run = perdure.Run("job", root=root, save_every="1000 steps", accelerator="cpu")
    run.track(model=model, optimizer=optimizer)
    after_track()
    loop = run.steps(6)
    next(loop)
    return run, loop


def trained(root: Path, *, at: int = 3) -> None:
    """A session that saves at a step and is left there."""
    model, optimizer = built()
    run, loop = begun(root, model, optimizer)
    for number in range(at):
        step(model, optimizer, number)
        if number == at - 1:
            run.save()
        next(loop)
    run._engine._saver.settle()


def bits(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[bytes]:
    tensors = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
    return [t.detach().numpy().tobytes() for t in tensors]


def straight(steps: int) -> list[bytes]:
    model, optimizer = built()
    for number in range(steps):
        step(model, optimizer, number)
    return bits(model, optimizer)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    in_new_process(trained, root)
    return root


@pytest.fixture
def root(saved, tmp_path) -> Path:
    copy = tmp_path / "runs"
    shutil.copytree(saved, copy)
    return copy


def tensor_file(root: Path) -> Path:
    (found,) = (root / "job" / "tensors").glob("*.safetensors")
    return found


def spoil(path: Path) -> None:
    """Other bytes in the same file, its size the same."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(size // 4)
        file.write(b"\x3f" * (size // 2))


def goes_on(root: Path, after_track=lambda model, optimizer: None) -> list[bytes]:
    model, optimizer = built()
    _run, loop = begun(root, model, optimizer, after_track=lambda: after_track(model, optimizer))
    step(model, optimizer, 3)
    next(loop)
    step(model, optimizer, 4)
    return bits(model, optimizer)


def test_what_was_read_is_what_the_optimizer_goes_on_with_bit_for_bit(root):
    assert in_new_process(goes_on, root) == in_new_process(straight, 5)


def test_what_is_changed_between_track_and_the_loop_is_put_back(root):
    def meddles(model, optimizer):
        step(model, optimizer, 17)
        for state in optimizer.state.values():
            state["exp_avg"].data.mul_(3)

    assert in_new_process(goes_on, root, meddles) == in_new_process(straight, 5)


def _swaps(state):
    state["exp_avg"], state["exp_avg_sq"] = state["exp_avg_sq"], state["exp_avg"]


def _puts_other_memory_behind(state):
    state["exp_avg"].data = torch.zeros_like(state["exp_avg"])


def _casts(state):
    state["exp_avg"].data = state["exp_avg"].data.to(torch.bfloat16)


def _turns(state):
    state["exp_avg"].t_()


def _makes_one_of_two(state):
    state["exp_avg_sq"] = state["exp_avg"]


@pytest.mark.parametrize("meddle", [_swaps, _puts_other_memory_behind, _casts, _turns, _makes_one_of_two])
def test_state_that_is_moved_about_between_track_and_the_loop_is_put_back(meddle, root):
    def meddles(model, optimizer):
        for weight in (p for p in model.parameters() if p.dim() == 2):
            meddle(optimizer.state[weight])

    assert in_new_process(goes_on, root, meddles) == in_new_process(straight, 5)


def test_states_that_are_given_to_other_parameters_are_put_back(root):
    def meddles(model, optimizer):
        weights = [p for p in model.parameters() if p.dim() == 2]
        states = [optimizer.state[weight] for weight in weights]
        optimizer.state.update(zip(weights, reversed(states), strict=True))

    assert in_new_process(goes_on, root, meddles) == in_new_process(straight, 5)


def test_an_optimizer_that_is_made_and_tracked_anew_shares_no_memory_with_the_one_before(root):
    def twice(root):
        model, first = built()
        run = perdure.Run("job", root=root, save_every="1000 steps", accelerator="cpu")
        run.track(model=model, optimizer=first)
        second = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run.track(optimizer=second)
        loop = run.steps(6)
        next(loop)
        for state in first.state.values():
            state["exp_avg"].fill_(float("nan"))
        step(model, second, 3)
        return bits(model, second)

    assert in_new_process(twice, root) == in_new_process(straight, 4)


def test_a_file_that_is_overwritten_after_it_was_proven_is_never_used(root):
    def kept_only(root):
        checkpoint = Store(RunPaths(root / "job"), "job").newest(adopting.to_keep)
        before = {name: bytes(memory) for name, memory in checkpoint.kept.items()}
        spoil(tensor_file(root))
        same = all(bytes(checkpoint.buffer(name)) == data for name, data in before.items())
        return len(before), same, checkpoint.kept_is_as_proven()

    def through(root):
        with pytest.raises(CorruptError):
            goes_on(root, lambda model, optimizer: spoil(tensor_file(root)))
        return True

    assert in_new_process(kept_only, root) == (8, True, True)
    assert in_new_process(through, root)


def test_a_forked_child_that_writes_to_what_was_kept_does_not_change_it_here(root):
    def parent(root):
        checkpoint = Store(RunPaths(root / "job"), "job").newest(adopting.to_keep)
        child = os.fork()
        if child == 0:
            for memory in checkpoint.kept.values():
                memory[:8] = b"spoiled!"
            os._exit(0)
        os.waitpid(child, 0)
        return len(checkpoint.kept), checkpoint.kept_is_as_proven()

    assert in_new_process(parent, root) == (8, True)


def test_a_resume_holds_no_file_so_that_a_pruned_one_gives_its_room_back(root):
    def held(root):
        model, optimizer = built()
        _run, _loop = begun(root, model, optimizer)
        maps = Path("/proc/self/maps").read_text()
        links = [path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [name for name in (tensor_file(root).name,) if name in maps or name in links]

    assert in_new_process(held, root) == []


def test_state_that_is_kept_is_in_memory_once(root):
    """As the kernel counts it: what is not a file's. A copy of the moments would be as much again."""

    def taken(root):
        model, optimizer = built()
        torch.ones(1).add_(1)
        begin = anonymous()
        held = begun(root, model, optimizer)
        moments = sum(v.nbytes for s in optimizer.state.values() for v in s.values())
        return (anonymous() - begin) / moments, held is None

    assert in_new_process(taken, root)[0] < 1.7


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def test_where_memory_is_short_nothing_is_kept_and_the_resume_is_as_exact(root, monkeypatch):
    checkpoint = Store(RunPaths(root / "job"), "job").newest()
    assert len(list(adopting.to_keep(checkpoint.manifest))) >= 8
    little = namedtuple("little", "available_bytes")(1 << 20)
    monkeypatch.setattr(adopting, "memory", lambda: little)
    assert list(adopting.to_keep(checkpoint.manifest)) == []
    assert in_new_process(goes_on, root) == in_new_process(straight, 5)


def test_a_tensor_that_shares_its_memory_with_another_is_not_lent(tmp_path):
    def shared(root):
        model, optimizer = built(1)
        step(model, optimizer, 0)
        moment = optimizer.state[next(model.parameters())]["exp_avg"]
        run = perdure.Run("job", root=root, accelerator="cpu")
        run.track(model=model, optimizer=optimizer, moments={"first": moment})
        loop = run.steps(4)
        next(loop)
        run.save()
        next(loop)
        run._engine._saver.settle()
        manifest = Store(RunPaths(root / "job"), "job").newest().manifest
        names = {entry.name for entry in manifest.entries if entry.name.endswith("weight/exp_avg")}
        return len(names), names & set(adopting.to_keep(manifest)), len(adopting.to_keep(manifest))

    assert in_new_process(shared, tmp_path)[0:2] == (1, set())
