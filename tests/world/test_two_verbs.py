"""``perdure.save`` and ``perdure.restore``: whole or not at all, and hand-written ``.pth`` files."""

import argparse
import os
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import perdure
from perdure.checkpoint.store import Store
from perdure.checkpoint.verify import verify
from perdure.core.errors import (
    CannotCarryError,
    ConfigError,
    CorruptError,
    NoCheckpointError,
    StateMismatchError,
    UnsafeFileError,
)
from perdure.core.paths import RunPaths


def trained(seed=0):
    """A model, its optimizer, scheduler and scaler, after some steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + seed)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0 + seed)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}


def same(old, new, *names):
    """Whether these are equal, bit for bit."""
    return all(repr(old[name].state_dict()) == repr(new[name].state_dict()) for name in names)


# ---------------------------------------------------------------- our own format


def test_what_was_saved_is_restored_in_place(tmp_path):
    old, new = trained(), trained(1)
    folder = perdure.save(tmp_path / "state", **old, history=[1, 2])
    assert verify(folder).problems == ()
    history = []
    report = perdure.restore(tmp_path / "state", **new, history=history)
    assert same(old, new, *old)
    assert history == [1, 2]
    assert report.taken == (*old, "history")
    assert report.left == {}


def test_a_second_save_replaces_the_first(tmp_path):
    for value in (1, 2):
        perdure.save(tmp_path / "state", x=[value])
    got = []
    perdure.restore(tmp_path / "state", x=got)
    assert got == [2]
    assert len(list((tmp_path / "state" / "checkpoints").iterdir())) == 1


@pytest.mark.slow
def test_a_save_that_is_killed_leaves_the_one_before(tmp_path):
    """The store's own tests kill at every file event; here, that ``save`` goes that way."""
    perdure.save(tmp_path / "state", x=[1])
    script = (
        "import perdure, os, signal\n"
        "perdure.save('other', x=[1])  # everything is imported by now\n"
        "os.rename = os.replace = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"perdure.save({str(tmp_path / 'state')!r}, x=[2])\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    got = []
    perdure.restore(tmp_path / "state", x=got)
    assert got == [1]
    perdure.save(tmp_path / "state", x=[3])
    perdure.restore(tmp_path / "state", x=got)
    assert got == [3]


def test_restoring_some_says_what_was_left(tmp_path):
    old, new = trained(), trained(1)
    perdure.save(tmp_path / "state", **old)
    report = perdure.restore(tmp_path / "state", model=new["model"])
    assert same(old, new, "model")
    assert not same(old, new, "optimizer")
    assert set(report.left) == {"optimizer", "scheduler", "scaler"}
    assert "not taken: optimizer, scheduler, scaler" in repr(report)


def test_the_checkpoint_of_a_run_can_be_restored_by_folder_and_by_run(tmp_path):
    old = trained()
    folder = perdure.save(tmp_path / "state", **old)
    for path in (folder, tmp_path / "state", str(tmp_path)):
        new = trained(1)
        perdure.restore(path, **new)
        assert same(old, new, *old)


def test_a_flipped_byte_is_found(tmp_path):
    perdure.save(tmp_path / "state", **trained())
    (file,) = (tmp_path / "state" / "tensors").iterdir()
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    new = trained(1)
    before = repr(new["model"].state_dict())
    with pytest.raises(CorruptError):
        perdure.restore(tmp_path / "state", **new)
    assert repr(new["model"].state_dict()) == before


def test_what_cannot_be_saved_leaves_no_folder_and_what_was_there_untouched(tmp_path):
    perdure.save(tmp_path / "state", x=[1])
    for path in ("state", "new"):
        with pytest.raises(CannotCarryError, match=r"x\[0\]"):
            perdure.save(tmp_path / path, x=[lambda: 0])
    got = []
    perdure.restore(tmp_path / "state", x=got)
    assert got == [1]
    assert not (tmp_path / "new").exists()


def test_nothing_there_no_object_a_file_and_the_folder_of_a_run_are_told_apart(tmp_path):
    with pytest.raises(NoCheckpointError, match="there is no checkpoint at"):
        perdure.restore(tmp_path / "nothing", x=[1])
    with pytest.raises(ConfigError, match="no objects were given"):
        perdure.save(tmp_path / "state")
    (tmp_path / "file.pth").write_bytes(b"x")
    with pytest.raises(ConfigError, match="is a file"):
        perdure.save(tmp_path / "file.pth", x=[1])
    perdure.save(tmp_path / "a", x=[1])
    manifest = next((tmp_path / "a").glob("checkpoints/*/manifest.json"))
    assert b'"perdure.save"' in manifest.read_bytes()


def test_an_object_called_trust_is_refused_where_it_could_not_come_back(tmp_path):
    with pytest.raises(ConfigError, match="an object called trust"):
        perdure.save(tmp_path / "state", trust=[1])
    with pytest.raises(ConfigError, match="trust is a switch"):
        perdure.restore(tmp_path / "state", trust=[1], x=[1])


def test_the_folder_of_a_run_is_not_saved_into(tmp_path):
    from perdure.checkpoint.snapshot import Snapshot
    from perdure.core.progress import Position

    store = Store(RunPaths(tmp_path / "digits"), "digits")
    store.open({})
    store.save(Snapshot(Position(step=3), {"objects": {}}, []))
    store.close()
    with pytest.raises(ConfigError, match="holds checkpoints of the run 'digits'"):
        perdure.save(tmp_path / "digits", x=[1])
    perdure.save(tmp_path / "other", x=[1])
    with pytest.raises(ConfigError, match=r"holds checkpoints of several runs: digits, perdure\.save"):
        perdure.restore(tmp_path, x=[1])


# ---------------------------------------------------------------- files of torch.save


def styles(old):
    """The ways in which people write them."""
    states = {name: value.state_dict() for name, value in old.items()}
    prefixed = {f"module.{k}": v for k, v in states["model"].items()}
    compiled = {f"_orig_mod.{k}": v for k, v in states["model"].items()}
    both = {f"module._orig_mod.{k}": v for k, v in states["model"].items()}
    return {
        "tutorial": ({"epoch": 3, "model_state_dict": states["model"], "optimizer_state_dict": states["optimizer"],
                      "val_loss": 0.5}, ("model", "optimizer"), {"epoch", "val_loss"}),
        "bare names": ({**states, "step": 7, "args": {"lr": 0.1}}, tuple(old), {"step", "args"}),
        "pth.tar": ({"epoch": 1, "state_dict": prefixed, "optimizer": states["optimizer"]},
                    ("model", "optimizer"), {"epoch"}),
        "states": ({**{f"{k}_state": v for k, v in states.items()}, "best_acc": 0.9}, tuple(old), {"best_acc"}),
        "bare state_dict": (states["model"], ("model",), set()),
        "module": (prefixed, ("model",), set()),
        "_orig_mod": (compiled, ("model",), set()),
        "both": ({"model": both}, ("model",), set()),
        "lightning": ({"state_dict": {f"model.{k}": v for k, v in states["model"].items()}}, ("model",), set()),
    }  # fmt: skip


@pytest.mark.parametrize("style", styles(trained()))
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_the_usual_key_styles_are_understood(tmp_path, style, legacy):
    old, new = trained(), trained(1)
    content, names, left = styles(old)[style]
    torch.save(content, tmp_path / "c.pth", _use_new_zipfile_serialization=not legacy)
    report = perdure.restore(tmp_path / "c.pth", **{name: new[name] for name in names})
    assert same(old, new, *names)
    assert set(report.left) == left
    assert report.taken == names


def test_a_file_loads_into_a_wrapped_model(tmp_path):
    old, new = trained(), trained(1)
    torch.save(old["model"].state_dict(), tmp_path / "c.pth")
    perdure.restore(tmp_path / "c.pth", model=nn.DataParallel(torch.compile(new["model"], backend="eager")))
    assert same(old, new, "model")


def test_the_optimizer_state_of_a_file_is_not_cast(tmp_path):
    old, new = (nn.Linear(2, 2).bfloat16() for _ in range(2))
    opts = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (old, new)]
    for p in old.parameters():
        opts[0].state[p]["momentum_buffer"] = torch.full(p.shape, 1 / 3)
    torch.save({"model": old.state_dict(), "optimizer": opts[0].state_dict()}, tmp_path / "c.pth")
    perdure.restore(tmp_path / "c.pth", model=new, optimizer=opts[1])
    assert opts[1].state[new.weight]["momentum_buffer"].dtype is torch.float32


def test_what_the_file_lacks_is_named_and_nothing_is_changed(tmp_path):
    old, new = trained(), trained(1)
    torch.save({"model": old["model"].state_dict(), "epoch": 1}, tmp_path / "c.pth")
    with pytest.raises(StateMismatchError, match="optimizer is not in it; it has: model, epoch"):
        perdure.restore(tmp_path / "c.pth", model=new["model"], optimizer=new["optimizer"])
    assert not same(old, new, "model")


def test_a_model_of_another_shape_is_refused_line_by_line_and_nothing_is_changed(tmp_path):
    old = trained()
    torch.save({"model": old["model"].state_dict(), "optimizer": old["optimizer"].state_dict()}, tmp_path / "c.pth")
    other = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 9))
    before = repr(other.state_dict())
    with pytest.raises(
        StateMismatchError, match=r"2\.weight is shape \(2, 5\) in the checkpoint and shape \(9, 5\) here"
    ):
        perdure.restore(tmp_path / "c.pth", model=other)
    optimizer = torch.optim.Adam(
        [{"params": old["model"][0].parameters()}, {"params": old["model"][2].parameters()}]
    )
    with pytest.raises(StateMismatchError, match=r"groups of \[6\] parameters in the file and \[2, 2\] here"):
        perdure.restore(tmp_path / "c.pth", model=trained(1)["model"], optimizer=optimizer)
    assert repr(other.state_dict()) == before


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        (argparse.Namespace(lr=1), "argparse.Namespace"),
        (np.float64(0.5), "numpy"),
        (nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
    ],
    ids=["namespace", "numpy", "model"],
)
def test_a_file_that_could_run_code_is_refused_with_its_class_and_the_way_out(tmp_path, extra, name):
    new = trained(1)
    torch.save({"model": new["model"].state_dict(), "args": extra}, tmp_path / "c.pth")
    with pytest.raises(UnsafeFileError, match="could run code when it is loaded: it holds a ") as caught:
        perdure.restore(tmp_path / "c.pth", model=new["model"])
    assert name in str(caught.value)
    assert "trust=True" in caught.value.hint
    assert "perdure.save" in caught.value.hint


def test_a_plain_pickle_is_refused_and_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    for protocol in (2, 4):
        (tmp_path / "c.pth").write_bytes(pickle.dumps({"model": Evil()}, protocol))
        with pytest.raises((UnsafeFileError, CorruptError)):
            perdure.restore(tmp_path / "c.pth", model=nn.Linear(1, 1))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_torn_file_is_corrupt_wherever_it_is_torn(tmp_path, legacy, part):
    path = tmp_path / "c.pth"
    torch.save({"model": trained()["model"].state_dict()}, path, _use_new_zipfile_serialization=not legacy)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(CorruptError, match="cannot be read"):
        perdure.restore(path, model=trained(1)["model"])


def test_a_flipped_bit_in_a_tensor_of_a_zip_file_is_found(tmp_path):
    path = tmp_path / "c.pth"
    model = nn.Linear(30, 30)
    torch.save(model.state_dict(), path)
    data = bytearray(path.read_bytes())
    at = data.index(model.weight.detach().numpy().tobytes())
    data[at + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="checksum"):
        perdure.restore(path, model=nn.Linear(30, 30))


@pytest.mark.parametrize(
    "data",
    [b"<html>not found</html>", bytes(1000), random.Random(1).randbytes(1000)],
    ids=["html", "zeros", "random"],
)
def test_what_is_no_file_of_torch_is_corrupt(tmp_path, data):
    (tmp_path / "c.pth").write_bytes(data)
    with pytest.raises(CorruptError):
        perdure.restore(tmp_path / "c.pth", model=nn.Linear(1, 1))


def test_a_file_that_holds_no_dict_is_corrupt(tmp_path):
    torch.save([1, 2], tmp_path / "c.pth")
    with pytest.raises(CorruptError, match="it holds a list and no dict of states"):
        perdure.restore(tmp_path / "c.pth", model=nn.Linear(1, 1))
