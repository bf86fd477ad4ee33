"""What a user can get wrong: a typed error that names what, where and what next; the last good checkpoint stays."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perdure
from perdure.checkpoint.store import Store
from perdure.core.errors import (
    AcceleratorError,
    CannotCarryError,
    ConfigError,
    CorruptError,
    DataOrderError,
    FormatVersionError,
    LoaderChangedError,
    LoopError,
    PlanChangedError,
    RunLockedError,
    StateMismatchError,
    UnreadableError,
)
from perdure.core.paths import RunPaths
from training.jobs import Job
from training.processes import in_new_process, let_land
from training.test_loops import dataset, shuffled


class Stop(Exception):
    pass


def train(root, *, epochs=3, stop_at=None, job=None, loader=None, extra=None, **kwargs):
    """A run that is left by an error at a step, as a crash would."""
    with perdure.Run("job", root=root, save_every="1 step", **kwargs) as run:
        job, loader = job or Job(), loader or shuffled()
        run.track(**job.tracked(), **(extra or {}))
        for _ in run.epochs(epochs):
            for (x,) in run.batches(loader):
                if run.step == stop_at:
                    raise Stop
                job.step(x)
    return run


def stopped(root, at=6, **kwargs):
    with pytest.raises(Stop):
        train(root, stop_at=at, **kwargs)


def newest_step(root):
    return Store(RunPaths(root / "job"), "job").newest().manifest.step


def test_a_name_with_a_slash(tmp_path):
    with pytest.raises(ConfigError, match="'a/b'") as caught:
        perdure.Run("a/b", root=tmp_path)
    assert "'a-b'" in caught.value.hint
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_writable(tmp_path):
    def work(folder):
        os.seteuid(65534)  # root may write everywhere
        with pytest.raises(UnreadableError, match="Permission denied") as caught:
            train(folder)
        return str(caught.value.path)

    folder = tmp_path / "locked"
    folder.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    assert str(folder) in in_new_process(work, folder)


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnreadableError, match="file"):
        train(tmp_path / "file")


def test_a_state_object_that_cannot_be_carried_is_named_when_it_is_tracked(tmp_path):
    with pytest.raises(CannotCarryError, match="lock") as caught, perdure.Run("job", root=tmp_path) as run:
        run.track(lock=open(os.devnull))  # noqa: SIM115
    assert caught.value.path == "lock"


def test_something_in_a_container_that_cannot_be_carried_is_named_after_the_first_step(tmp_path):
    history = {"items": [1, 2]}
    with pytest.raises(CannotCarryError) as caught, perdure.Run("job", root=tmp_path, save_every="1 h") as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked(), history=history)
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
                history["items"].append(lambda: 0)
    assert "items" in caught.value.path and "[2]" in caught.value.path
    assert run.step == 1


def test_a_loader_whose_length_changed(tmp_path):
    stopped(tmp_path)
    with pytest.raises(LoaderChangedError) as caught:
        train(tmp_path, loader=DataLoader(dataset(40), batch_size=8, shuffle=True))
    assert (caught.value.was, caught.value.now) == (4, 5)
    assert newest_step(tmp_path) == 6


def test_a_loader_of_another_kind_of_the_same_length(tmp_path):
    stopped(tmp_path)
    with pytest.raises(DataOrderError, match="another kind"):
        train(tmp_path, loader=[(x[0].repeat(8, 1),) for x in dataset(4)])
    assert newest_step(tmp_path) == 6


def test_a_loader_that_deals_other_samples(tmp_path):
    weights = torch.ones(32)

    def weighted():
        sampler = torch.utils.data.WeightedRandomSampler(weights, 32)
        return DataLoader(dataset(), batch_size=8, sampler=sampler)

    stopped(tmp_path, loader=weighted())
    weights[:16] = 0.01
    with pytest.raises(DataOrderError, match="other samples"):
        train(tmp_path, loader=weighted())
    assert newest_step(tmp_path) == 6


@pytest.mark.parametrize("at", [6, 4])
def test_a_split_that_is_made_anew_in_each_session(tmp_path, at):
    def split():
        part, _ = torch.utils.data.random_split(dataset(48), [32, 16])
        return DataLoader(part, batch_size=8, shuffle=True)

    stopped(tmp_path, at=at, loader=split())
    with pytest.raises(DataOrderError, match="another part") as caught:
        train(tmp_path, loader=split())
    assert "seed=0" in caught.value.hint
    assert newest_step(tmp_path) == at


def test_a_model_whose_shape_changed_lists_each_difference(tmp_path):
    stopped(tmp_path)
    job = Job()
    job.model = nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.3), nn.Tanh(), nn.Linear(9, 2))
    job.optimizer = torch.optim.Adam(job.model.parameters(), lr=1e-2)
    with pytest.raises(StateMismatchError) as caught:
        train(tmp_path, job=job)
    text = "\n".join(caught.value.differences)
    for name in ("model: 0.weight is shape (8, 4)", "0.bias is shape (8,)", "3.weight is shape (2, 8)"):
        assert name in text
    assert "3.bias" not in text
    assert newest_step(tmp_path) == 6


def test_another_optimizer(tmp_path):
    stopped(tmp_path)
    job = Job()
    job.optimizer = torch.optim.SGD(job.model.parameters(), lr=1e-2)
    with pytest.raises(StateMismatchError, match="Adam"):
        train(tmp_path, job=job)


def test_a_checkpoint_of_a_newer_format(tmp_path):
    stopped(tmp_path)
    for manifest in (tmp_path / "job" / "checkpoints").glob("*/manifest.json"):
        manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 9', 1))
    with pytest.raises(FormatVersionError) as caught:
        train(tmp_path)
    assert (caught.value.found, caught.value.supported) == (9, 1)
    assert len(list((tmp_path / "job" / "checkpoints").glob("*/manifest.json"))) == 2


def test_damaged_checkpoints_do_not_make_a_run_begin_anew(tmp_path):
    stopped(tmp_path)
    for file in (tmp_path / "job" / "tensors").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CorruptError):
        train(tmp_path)


def test_one_damaged_checkpoint_is_set_aside_and_the_older_one_used(tmp_path, capfd):
    stopped(tmp_path)
    newest = Store(RunPaths(tmp_path / "job"), "job").list()[0]
    (newest.folder / "manifest.json").write_text("{")
    assert train(tmp_path).resumed_from == 5
    assert "quarantine" in capfd.readouterr().err


def test_two_processes_on_one_run_the_second_is_refused_and_told_of_the_first(tmp_path):
    def second(root):
        with pytest.raises(RunLockedError) as caught:
            train(root)
        return caught.value.pid

    with pytest.raises(Stop), perdure.Run("job", root=tmp_path) as run:
        run.track(**Job().tracked())
        assert in_new_process(second, tmp_path) == os.getpid()
        raise Stop


def test_the_plan_is_part_of_the_run_and_changing_it_is_explicit(tmp_path):
    train(tmp_path, epochs=2)
    with pytest.raises(PlanChangedError, match="extend=True") as caught:
        train(tmp_path, epochs=3)
    assert (caught.value.planned, caught.value.asked) == (2, 3)
    with perdure.Run("job", root=tmp_path) as run:
        assert run.finished
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3, extend=True):
            for (x,) in run.batches(loader):
                job.step(x)
    assert (run.step, run.finished) == (12, True)
    with perdure.Run("whole", root=tmp_path) as whole:
        pass
    assert whole.step == 0


def test_steps_instead_of_epochs_is_another_plan(tmp_path):
    stopped(tmp_path)
    with pytest.raises(PlanChangedError, match="epochs"), perdure.Run("job", root=tmp_path) as run:
        next(run.steps(5))


def test_batches_inside_steps_names_cycle(tmp_path):
    with pytest.raises(LoopError, match="run.cycle"), perdure.Run("job", root=tmp_path) as run:
        for _ in run.steps(3):
            run.batches(shuffled())


def test_cycle_inside_the_loop_and_batches_outside_of_it(tmp_path):
    with pytest.raises(LoopError, match="above the loop"), perdure.Run("job", root=tmp_path) as run:
        for _ in run.steps(3):
            run.cycle(shuffled())
    with pytest.raises(LoopError, match="run.epochs"), perdure.Run("other", root=tmp_path) as run:
        run.batches(shuffled())


def test_a_second_loop_gets_a_run_of_its_own(tmp_path):
    with pytest.raises(LoopError, match="run of its own"), perdure.Run("job", root=tmp_path) as run:
        for _ in run.epochs(1):
            pass
        run.epochs(2)


def test_an_empty_stream(tmp_path):
    empty = DataLoader(TensorDataset(torch.zeros(0, 4)), batch_size=2)
    with pytest.raises(LoopError, match="gives no batch"), perdure.Run("job", root=tmp_path) as run:
        stream = run.cycle(empty)
        for _ in run.steps(1):
            next(stream)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"save_every": "often"}, "save_every"),
        ({"accelerator": "tpu"}, "accelerator"),
        ({"seed": -1}, "seed"),
        ({"seed": "a"}, "seed"),
        ({"name": ""}, "name"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_made(tmp_path, arguments, what):
    with pytest.raises(ConfigError, match=what):
        perdure.Run(**{"name": "job", "root": tmp_path, **arguments})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("count", [-1, 1.5, "3", True, None])
def test_a_wrong_number_of_epochs(tmp_path, count):
    with pytest.raises(ConfigError, match="whole number"), perdure.Run("job", root=tmp_path) as run:
        run.epochs(count)


@pytest.mark.parametrize("value", [torch.ones(3), "high", None, [1]])
def test_a_metric_that_is_not_one_number(tmp_path, value):
    with pytest.raises(ConfigError, match="loss"), perdure.Run("job", root=tmp_path) as run:
        run.log(loss=value)


def test_a_variable_that_was_never_set_says_what_there_is(tmp_path):
    with perdure.Run("job", root=tmp_path) as run:
        run.vars.best = 1
        with pytest.raises(AttributeError, match="run.vars.other = "):
            _ = run.vars.other


def test_a_gpu_that_was_asked_for_and_is_not_there(tmp_path):
    with pytest.raises(AcceleratorError, match="a GPU was asked for") as caught:
        perdure.Run("job", root=tmp_path, accelerator="gpu")
    assert "is built for the CPU only" in caught.value.what
    assert 'to train on the CPU, say accelerator="cpu"' in caught.value.hint


def test_a_gpu_that_the_platform_promised_and_does_not_work(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    with pytest.raises(AcceleratorError, match="expected here"):
        perdure.Run("job", root=tmp_path)
    assert perdure.Run("job", root=tmp_path, accelerator="cpu").device.type == "cpu"


def test_export_before_the_end_and_without_a_model(tmp_path):
    with perdure.Run("job", root=tmp_path) as run:
        with pytest.raises(LoopError, match="not finished"):
            run.export()
        for _ in run.epochs(0):
            pass
        with pytest.raises(ConfigError, match="no model"):
            run.export()


def test_nonsense_in_the_environment_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PERDURE_WINDOW", "soon")
    with pytest.raises(ConfigError, match="PERDURE_WINDOW"):
        perdure.Run("job", root=tmp_path)


def test_a_script_that_makes_fewer_calls_than_before(tmp_path):
    with pytest.raises(Stop), perdure.Run("job", root=tmp_path, save_every="1 step") as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(2):
            for (x,) in run.batches(loader):
                job.step(x)
            for (x,) in run.batches(loader):
                if run.step == 6:
                    raise Stop
                job.step(x)
    with pytest.raises(LoopError, match="made only 1 call"):
        train(tmp_path, epochs=2)
    assert json.loads((tmp_path / "job" / "session.json").read_text())["status"] == "failed"
    assert newest_step(tmp_path) == 6


def fill(path):
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("small file systems are mounted by root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def train_on_a_disk_that_fills(disk, at, stop_at=None):
    with perdure.Run("job", root=disk, save_every="1 step", keep=perdure.Keep(last=1)) as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                if run.step == at:
                    let_land(run)
                    fill(disk / "ballast")
                if run.step == stop_at:
                    raise Stop
                job.step(x)
    return run


def test_disk_full_at_a_save_costs_the_save_and_not_the_training(small_disk, capfd):
    with pytest.raises(Stop):
        train_on_a_disk_that_fills(small_disk, at=4, stop_at=7)
    err = capfd.readouterr().err
    assert "no checkpoint at step 5" in err and "training goes on" in err
    assert err.count("no checkpoint at step") == 2  # at the first and the second failure, not at each
    assert newest_step(small_disk) == 4
    (small_disk / "ballast").unlink()
    assert train(small_disk).resumed_from == 4


def test_disk_full_at_the_end_is_not_told_as_finished_and_the_model_can_still_be_exported(
    small_disk, tmp_path, monkeypatch
):
    monkeypatch.setenv("PERDURE_SESSION_REPORT", str(tmp_path / "report.json"))
    run = train_on_a_disk_that_fills(small_disk, at=11)
    assert run.finished
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "failed"
    (small_disk / "ballast").unlink()
    assert run.export()["pth"].exists()
    assert train(small_disk).resumed_from == 11
