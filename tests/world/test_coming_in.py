"""What people have comes in by name, in whatever wrapping, and the statement says what came and what did not."""

import contextlib
import copy
import json
import os
import random
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign_makers import net
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import perdure
from perdure.core.errors import (
    ConfigError,
    CorruptError,
    LoopError,
    NoCheckpointError,
    StateMismatchError,
    UnsafeFileError,
)

ANEW = ("optimizer", "scheduler", "random generators", "position in the data")


def same(one, other):
    return repr(one.state_dict()) == repr(other.state_dict())


def trained(seed=0):
    """A model and its optimizer after some steps."""
    model = net(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01 * (seed + 1))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def saved(path, content):
    torch.save(content, path)
    return path


class Holder(nn.Module):
    """A bigger model that has another inside, and something beside it."""

    def __init__(self, inner, name="backbone"):
        super().__init__()
        self.add_module(name, inner)
        self.head = nn.Linear(2, 3)


# ---------------------------------------------------------------- wrappers, at any depth, on both sides

wrap = {
    "parallel": nn.DataParallel,
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "both": lambda m: torch.compile(nn.DataParallel(m), backend="eager"),
    "inside": lambda m: nn.Sequential(*(torch.compile(child, backend="eager") for child in m)),
    "plain": lambda m: m,
}


@pytest.mark.parametrize("there", wrap)
@pytest.mark.parametrize("here", wrap)
def test_wrappers_do_not_matter_on_either_side(tmp_path, here, there):
    old, new = net(0), net(1)
    saved(tmp_path / "c.pth", wrap[there](copy.deepcopy(old)).state_dict())
    restored = perdure.restore(tmp_path / "c.pth", model=wrap[here](new))
    assert same(old, new)
    assert restored.left == {}
    assert restored.notes == ()


@given(st.lists(st.sampled_from(["module", "_orig_mod"]), max_size=4), st.lists(st.integers(0, 5), max_size=4))
def test_the_words_of_wrappers_may_stand_anywhere_in_a_name(words, places):
    from perdure.training.foreign.matching import match
    from perdure.training.world.modules import ModulePart

    old, new = Holder(net(0)), Holder(net(1))
    state = {}
    for key, value in old.state_dict().items():
        parts = key.split(".")
        for word, place in zip(words, places):
            parts.insert(min(place, len(parts) - 1), word)
        state[".".join(parts)] = value
    found = match(ModulePart("model", new), state)
    given_names = {**found.saved["parameters"], **found.saved["buffers"]}
    assert {name: value.data_ptr() for name, value in given_names.items()} == {
        name: value.data_ptr() for name, value in old.state_dict().items()
    }
    assert found.differences == []


def test_a_child_that_is_called_module_keeps_its_name(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.fc = nn.Linear(2, 2), nn.Linear(2, 2)

    old, new = Own(), Own()
    for state in (old.state_dict(), nn.DataParallel(old).state_dict()):
        new = Own()
        perdure.restore(saved(tmp_path / "c.pth", state), model=new)
        assert same(old, new)


def test_an_average_of_torch_comes_in_as_a_plain_model_and_the_other_way_is_refused(tmp_path):
    old, new = net(0), net(1)
    average = torch.optim.swa_utils.AveragedModel(old)
    restored = perdure.restore(saved(tmp_path / "c.pth", average.state_dict()), model=new)
    assert same(old, new)
    assert list(restored.left) == ["n_averaged"]
    with pytest.raises(StateMismatchError, match="n_averaged is here"):
        perdure.restore(saved(tmp_path / "d.pth", old.state_dict()), model=torch.optim.swa_utils.AveragedModel(new))


def test_a_part_of_a_bigger_model_is_found_and_what_stands_beside_it_is_left(tmp_path):
    old, new = Holder(net(0)), net(1)
    restored = perdure.restore(saved(tmp_path / "c.pth", {"state_dict": old.state_dict(), "epoch": 3}), model=new)
    assert same(old.backbone, new)
    assert set(restored.left) == {"state_dict", "epoch"}
    assert set(restored.left["state_dict"]) == {"head.weight", "head.bias"}
    assert restored.notes == ("model: what the file calls backbone.*",)
    assert "; not taken: state_dict (head.weight, head.bias), epoch\n" in str(restored)


def test_a_file_of_the_part_fits_the_bigger_model_only_if_all_of_it_is_there(tmp_path):
    class Only(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.backbone = inner

    old, new = net(0), Only(net(1))
    restored = perdure.restore(saved(tmp_path / "c.pth", old.state_dict()), model=new)
    assert same(old, new.backbone)
    assert restored.notes == ("model: the file is one of backbone.*, by the names here",)
    bigger = Holder(net(1))
    before = repr(bigger.state_dict())
    with pytest.raises(StateMismatchError, match=r"head\.weight is here") as caught:
        perdure.restore(tmp_path / "c.pth", model=bigger)
    assert "model=model.backbone" in caught.value.hint
    assert repr(bigger.state_dict()) == before
    perdure.restore(tmp_path / "c.pth", model=bigger.backbone)
    assert same(old, bigger.backbone)


def test_a_tensor_that_is_twice_in_the_file_is_refused(tmp_path):
    state = net(0).state_dict()
    state["module.0.weight"] = torch.zeros(6, 4)
    new = net(1)
    with pytest.raises(StateMismatchError, match=r"0\.weight is twice in the file, once as module\.0\.weight"):
        perdure.restore(saved(tmp_path / "c.pth", state), model=new)
    assert same(new, net(1))


def test_a_stray_tensor_beside_the_model_is_not_taken_for_one_of_it(tmp_path):
    old, new = net(0), net(1)
    state = {"0.weight": torch.zeros(6, 4), **{f"model.{key}": value for key, value in old.state_dict().items()}}
    restored = perdure.restore(saved(tmp_path / "c.pth", state), model=new)
    assert same(old, new)
    assert list(restored.left) == ["0.weight"]


class Pair(nn.Module):
    def __init__(self, one, other):
        super().__init__()
        self.student, self.teacher = one, other


def test_of_two_parts_that_fit_the_one_of_the_same_name_is_meant_and_no_other_is_guessed(tmp_path):
    old = Pair(net(0), net(1))
    path = saved(tmp_path / "c.pth", {"state_dict": old.state_dict()})
    new = net(2)
    with pytest.raises(StateMismatchError, match=r"several parts of the file fit: student\.\*, teacher\.\*"):
        perdure.restore(path, model=new)
    assert same(new, net(2))
    restored = perdure.restore(path, teacher=new)
    assert same(new, old.teacher)
    assert {name.partition(".")[0] for name in restored.left["state_dict"]} == {"student"}
    one, other = net(3), net(4)
    assert perdure.restore(path, teacher=one, student=other).left == {}
    assert same(one, old.teacher) and same(other, old.student)
    bare = saved(tmp_path / "b.pth", old.state_dict())
    one, other = net(3), net(4)
    perdure.restore(bare, teacher=one, student=other)
    assert same(one, old.teacher) and same(other, old.student)


def test_an_emptied_section_counts_as_none(tmp_path):
    """Trainers strip the optimizer from their last file, and leave its key."""
    model, _ = trained()
    path = saved(tmp_path / "last.pt", {"model": model.state_dict(), "optimizer": None, "epoch": -1})
    new = net(1)
    with pytest.raises(StateMismatchError, match="optimizer is not in it; it has: model, optimizer, epoch"):
        perdure.restore(path, model=new, optimizer=torch.optim.AdamW(new.parameters()))
    restored = perdure.restore(path, model=new)
    assert restored.form == "a dict of states, epoch -1"
    assert restored.anew == ANEW


def test_a_tensor_that_belongs_to_nothing_here_is_an_error(tmp_path):
    state = net(0).state_dict()
    state["3.weight"] = torch.zeros(2)
    with pytest.raises(StateMismatchError, match=r"3\.weight is in the checkpoint \(shape \(2,\)\) and not here"):
        perdure.restore(saved(tmp_path / "c.pth", state), model=net(1))


# ---------------------------------------------------------------- ties, types, devices


class Tied(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_a_tie_is_kept_whichever_of_its_names_the_file_has(tmp_path):
    old = Tied(0)
    for key in ("embed.weight", "head.weight"):
        new = Tied(1)
        save_file({key: old.embed.weight.detach()}, tmp_path / "m.safetensors")
        perdure.restore(tmp_path / "m.safetensors", model=new)
        assert torch.equal(new.head.weight, old.embed.weight)
        assert new.head.weight is new.embed.weight


def test_a_tie_that_is_none_in_the_file_is_refused(tmp_path):
    state = {"embed.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)}
    new = Tied(1)
    with pytest.raises(StateMismatchError, match="are one tensor here and two of different values in the file"):
        perdure.restore(saved(tmp_path / "c.pth", state), model=new)
    assert same(new, Tied(1))


def test_numbers_become_wider_exactly_and_never_narrower(tmp_path):
    old, new = net(0).bfloat16(), net(1)
    saved(tmp_path / "half.pth", old.state_dict())
    restored = perdure.restore(tmp_path / "half.pth", model=new)
    assert torch.equal(new[0].weight, old[0].weight.float())
    assert restored.notes == ("model: 8 tensors turned from bfloat16 to float32, exactly",)
    saved(tmp_path / "full.pth", net(0).state_dict())
    with pytest.raises(
        StateMismatchError, match=r"is torch\.float32 in the checkpoint and torch\.bfloat16 here"
    ) as e:
        perdure.restore(tmp_path / "full.pth", model=net(1).bfloat16())
    assert "turn the live model" in e.value.hint


def test_a_file_of_a_second_card_opens_without_any(tmp_path):
    """The place of each tensor is a word in the file; here it is rewritten to a card that is not there."""
    old, new = net(0), net(1)
    path = saved(tmp_path / "cpu.pth", old.state_dict())
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "card.pth", "w") as target:
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith("data.pkl"):
                assert b"X\x03\x00\x00\x00cpu" in data
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:1")
            target.writestr(item.filename.replace("cpu/", "card/"), data)
    with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
        torch.load(tmp_path / "card.pth", weights_only=True)
    perdure.restore(tmp_path / "card.pth", model=new)
    assert same(old, new)


def test_a_model_on_the_meta_device_is_filled_and_its_optimizer_trains_it(tmp_path):
    old = net(0)
    with torch.device("meta"):
        new = net(1)
    optimizer = torch.optim.SGD(new.parameters(), 0.1)
    perdure.restore(saved(tmp_path / "c.pth", old.state_dict()), model=new)
    assert same(old, new)
    before = new[0].weight.clone()
    new(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, new[0].weight)


def test_old_files_without_counters_of_batch_norms_come_in(tmp_path):
    old, new = net(0), net(1)
    state = {k: v for k, v in old.state_dict().items() if not k.endswith("num_batches_tracked")}
    restored = perdure.restore(saved(tmp_path / "c.pth", state), model=new)
    assert torch.equal(new[1].running_mean, old[1].running_mean)
    assert restored.notes == ("1 counters of batch norms are not in it and stay as they are",)


# ---------------------------------------------------------------- optimizers and schedulers


def test_an_optimizer_with_parameters_in_another_order_is_refused_by_its_shapes(tmp_path):
    model, optimizer = trained()
    saved(tmp_path / "c.pth", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    new = net(1)
    swapped = torch.optim.AdamW([*list(new.parameters())[::-1]], 0.01)
    with pytest.raises(
        StateMismatchError, match=r"parameter 0 of group 0 is of shape \(2,\), its exp_avg"
    ) as caught:
        perdure.restore(tmp_path / "c.pth", model=new, optimizer=swapped)
    assert "other parameters, or another order" in str(caught.value)
    assert same(new, net(1))
    assert not swapped.state


def test_where_the_file_gives_names_the_order_does_not_matter(tmp_path):
    model = net(0)
    old = torch.optim.AdamW(nn.DataParallel(model).named_parameters(), 0.01)
    model(torch.randn(8, 4)).square().mean().backward()
    old.step()
    saved(tmp_path / "c.pth", {"model": model.state_dict(), "optimizer": old.state_dict()})
    new = net(1)
    optimizer = torch.optim.AdamW(list(new.named_parameters())[::-1], 0.01)
    perdure.restore(tmp_path / "c.pth", model=new, optimizer=optimizer)
    assert len(optimizer.state) == 6
    for (_, was), (name, now) in zip(model.named_parameters(), new.named_parameters()):
        assert torch.equal(old.state[was]["exp_avg"], optimizer.state[now]["exp_avg"]), name


def test_the_state_of_another_class_of_optimizer_is_refused(tmp_path):
    model, optimizer = trained()
    saved(tmp_path / "c.pth", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    new = net(1)
    with pytest.raises(
        StateMismatchError, match="optimizer is a SGD; the state in the file has betas and lacks momentum"
    ):
        perdure.restore(tmp_path / "c.pth", model=new, optimizer=torch.optim.SGD(new.parameters(), 0.1))


def test_the_state_of_another_class_of_scheduler_is_refused(tmp_path):
    _, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    saved(tmp_path / "c.pth", {"scheduler": scheduler.state_dict()})
    other = torch.optim.lr_scheduler.CosineAnnealingLR(trained()[1], 10)
    with pytest.raises(
        StateMismatchError, match="is a CosineAnnealingLR; the state in the file has gamma, step_size"
    ):
        perdure.restore(tmp_path / "c.pth", scheduler=other)


@pytest.mark.parametrize("late", [False, True], ids=["scheduler first", "optimizer stepped first"])
def test_the_rate_goes_on_as_it_would_have(tmp_path, late):
    def job(seed):
        model = net(seed)
        optimizer = torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}], 0.1
        )
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)

    def rates(optimizer, scheduler, steps):
        found = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            found.append([group["lr"] for group in optimizer.param_groups])
        return found

    _, optimizer, scheduler = job(0)
    straight = rates(optimizer, scheduler, 12)
    model, optimizer, scheduler = job(0)
    rates(optimizer, scheduler, 6)
    names = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
    saved(tmp_path / "c.pth", {f"{name}_state_dict": value.state_dict() for name, value in names.items()})
    model, optimizer, scheduler = job(1)
    if late:
        rates(optimizer, scheduler, 1)
    perdure.restore(tmp_path / "c.pth", scheduler=scheduler, optimizer=optimizer, model=model)
    assert rates(optimizer, scheduler, 6) == straight[6:]


# ---------------------------------------------------------------- safe, or trusted in so many words


def test_a_numpy_generator_in_a_file_needs_trust_and_is_never_dropped_without_a_word(tmp_path):
    model, _ = trained()
    content = {"model": model.state_dict(), "rng": {"numpy": np.random.get_state(), "python": random.getstate()},
               "out": Path("runs")}  # fmt: skip
    path = saved(tmp_path / "c.pth", content)
    new = net(1)
    with pytest.raises(UnsafeFileError, match="could run code when it is loaded: it holds a ") as caught:
        perdure.restore(path, model=new)
    assert "trust=True" in caught.value.hint
    assert same(new, net(1))
    restored = perdure.restore(path, trust=True, model=new)
    assert same(model, new)
    assert set(restored.left) == {"rng", "out"}
    assert "random generators" in restored.anew
    assert "it was read with trust=True: whatever code it carries has run" in restored.notes
    assert "not taken: rng, out" in str(restored)


def test_trust_is_not_used_where_it_is_not_needed(tmp_path):
    path = saved(tmp_path / "c.pth", net(0).state_dict())
    assert perdure.restore(path, trust=True, model=net(1)).notes == ()


def test_a_whole_pickled_model_comes_in_with_trust_only(tmp_path):
    old, new = net(0), net(1)
    path = saved(tmp_path / "c.pth", old)
    with pytest.raises(UnsafeFileError, match=r"it holds a torch\.nn\.modules\.container\.Sequential"):
        perdure.restore(path, model=new)
    restored = perdure.restore(path, trust=True, model=new)
    assert same(old, new)
    assert restored.form == "a whole Sequential, pickled"


def test_a_class_that_is_gone_is_said_and_is_no_trace(tmp_path, monkeypatch):
    module = types.ModuleType("their_project")
    exec("class Config: pass", vars(module))
    monkeypatch.setitem(sys.modules, "their_project", module)
    saved(tmp_path / "c.pth", {"model": {}, "config": module.Config()})
    monkeypatch.delitem(sys.modules, "their_project")
    with pytest.raises(UnsafeFileError, match="needs code that is not here: No module named 'their_project'"):
        perdure.restore(tmp_path / "c.pth", trust=True, model=net(1))


def test_what_is_no_model_is_told_as_what_it_is(tmp_path):
    for name in ("m.pth", "m.safetensors"):
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
        with pytest.raises(CorruptError, match="a pointer of Git LFS"):
            perdure.restore(tmp_path / name, model=net(1))
    (tmp_path / "m.pth").write_text("hello, I am a text")
    with pytest.raises(CorruptError, match="is no file of torch.save"):
        perdure.restore(tmp_path / "m.pth", model=net(1))


def test_a_shape_without_values_is_refused_and_changes_nothing(tmp_path):
    torch.save({name: value.to("meta") for name, value in net(0).state_dict().items()}, tmp_path / "m.pth")
    model, before = net(1), net(1).state_dict()
    with pytest.raises(StateMismatchError, match=r"is a shape without values in the file \(device meta\)"):
        perdure.restore(tmp_path / "m.pth", model=model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_file_without_checksums_comes_in_and_one_that_would_fill_the_memory_does_not(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(net(0).state_dict(), tmp_path / "m.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    model = net(1)
    perdure.restore(tmp_path / "m.pth", model=model)
    assert all(torch.equal(value, net(0).state_dict()[name]) for name, value in model.state_dict().items())
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/version", "3")
        archive.writestr("m/data.pkl", bytes(300 << 20))
    with pytest.raises(CorruptError, match="would unpack to 315 MB"):
        perdure.restore(tmp_path / "bomb.pth", model=model)


# ---------------------------------------------------------------- safetensors, indexes, programs


def test_a_torn_safetensors_file_is_corrupt(tmp_path):
    save_file(net(0).state_dict(), tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()
    for cut in (0, 5, 100, len(data) - 1):
        (tmp_path / "m.safetensors").write_bytes(data[:cut])
        with pytest.raises(CorruptError, match="cannot be read"):
            perdure.restore(tmp_path / "m.safetensors", model=net(1))


def shards(folder, state):
    """A model in two files, as transformers writes them, and the place of each tensor."""
    folder.mkdir(exist_ok=True)
    names = list(state)
    halves = {"a.safetensors": names[:4], "b.safetensors": names[4:]}
    for file, keys in halves.items():
        save_file({key: state[key] for key in keys}, folder / file)
    placed = {key: file for file, keys in halves.items() for key in keys}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return index


def test_a_model_in_several_files_needs_all_of_them_and_none_from_elsewhere(tmp_path):
    old, new = net(0), net(1)
    index = shards(tmp_path / "m", old.state_dict())
    assert perdure.restore(index, model=new).form == "a model in 2 files"
    assert same(old, new)
    placed = json.loads(index.read_text())
    placed["weight_map"]["9.weight"] = "a.safetensors"
    index.write_text(json.dumps(placed))
    with pytest.raises(CorruptError, match=r"no file holds 9\.weight"):
        perdure.restore(index, model=net(1))
    placed["weight_map"]["9.weight"] = "../a.safetensors"
    index.write_text(json.dumps(placed))
    with pytest.raises(CorruptError, match=r"names a file outside of its folder"):
        perdure.restore(index, model=net(1))
    index = shards(tmp_path / "m", old.state_dict())
    (tmp_path / "m" / "b.safetensors").unlink()
    with pytest.raises(CorruptError, match=r"b\.safetensors belongs to it and is not there"):
        perdure.restore(tmp_path / "m", model=net(1))
    index.write_text("{}")
    with pytest.raises(CorruptError, match="is no index"):
        perdure.restore(index, model=net(1))


def test_programs_are_told_apart_from_damage_and_the_way_out_is_named(tmp_path):
    model = nn.Linear(2, 2)
    torch.export.save(torch.export.export(model, (torch.zeros(1, 2),)), tmp_path / "m.pt2")
    torch.jit.save(torch.jit.trace(model, torch.zeros(1, 2)), tmp_path / "m.pt")
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"x")
    for file, words in {
        "m.pt2": "a program of torch.export",
        "m.pt": "a TorchScript program",
        "m.onnx": "an ONNX graph",
        "saved": "a SavedModel",
    }.items():
        with pytest.raises(
            ConfigError, match=f"is {words}.*, which holds no states to take over by name"
        ) as caught:
            perdure.restore(tmp_path / file, model=nn.Linear(2, 2))
        assert caught.value.hint


def test_an_empty_folder_and_nothing_at_all_are_no_checkpoint(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in ("empty", "nothing"):
        with pytest.raises(NoCheckpointError):
            perdure.restore(tmp_path / path, model=net(1))


# ---------------------------------------------------------------- Lightning


@pytest.fixture(scope="module")
def lightning(tmp_path_factory):
    """Checkpoints by the real trainer, which is loaded in a process of its own."""
    pytest.importorskip("lightning")
    folder = tmp_path_factory.mktemp("lightning")
    script = Path(__file__).with_name("foreign_makers.py")
    subprocess.run([sys.executable, str(script), "lightning", str(folder)], check=True, capture_output=True)
    return folder


def test_a_lightning_checkpoint_gives_model_optimizer_and_scheduler(lightning):
    model = net(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    restored = perdure.restore(lightning / "one.ckpt", model=model, optimizer=optimizer, scheduler=scheduler)
    raw = torch.load(lightning / "one.ckpt", weights_only=True)
    assert all(torch.equal(raw["state_dict"][f"net.{name}"], value) for name, value in model.state_dict().items())
    moment = raw["optimizer_states"][0]["state"][0]["exp_avg"]
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"], moment)
    assert moment.abs().sum() > 0
    assert optimizer.param_groups[0]["lr"] == 0.0025
    assert scheduler.last_epoch == 2
    assert restored.form == "a Lightning checkpoint, epoch 2, step 8"
    assert restored.anew == ("random generators", "position in the data")
    assert {"loops", "callbacks", "hyper_parameters"} <= set(restored.left)
    assert set(restored.left["state_dict"]) == {"teacher.weight", "teacher.bias"}


def test_several_optimizers_of_lightning_come_in_by_their_order(lightning):
    model, critic = net(1), nn.Linear(4, 1)
    optimizers = [torch.optim.AdamW(model.parameters(), 1e-2), torch.optim.Adam(critic.parameters(), 1e-9)]
    restored = perdure.restore(lightning / "two.ckpt", optimizers=optimizers)
    raw = torch.load(lightning / "two.ckpt", weights_only=True)["optimizer_states"]
    assert torch.equal(optimizers[1].state[critic.weight]["exp_avg"], raw[1]["state"][0]["exp_avg"])
    assert optimizers[1].param_groups[0]["lr"] == 3e-3
    assert restored.taken == ("optimizers",)
    with pytest.raises(StateMismatchError, match="optimizer is not in it"):
        perdure.restore(lightning / "two.ckpt", optimizer=optimizers[0])


# ---------------------------------------------------------------- transformers and PEFT


@pytest.fixture(scope="module")
def hf():
    return pytest.importorskip("transformers")


def gpt(hf, seed):
    """A language model with a tied head."""
    torch.manual_seed(seed)
    config = hf.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return hf.GPT2LMHeadModel(config)


def test_a_folder_of_transformers_comes_in_whole_or_in_shards_with_its_tie(tmp_path, hf):
    old = gpt(hf, 0)
    old.save_pretrained(tmp_path / "one")
    old.save_pretrained(tmp_path / "many", max_shard_size="2KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) == 3
    for path in ("one", "one/model.safetensors", "many", "many/model.safetensors.index.json"):
        new = gpt(hf, 1)
        restored = perdure.restore(tmp_path / path, model=new)
        assert same(old, new), path
        assert new.lm_head.weight is new.transformer.wte.weight
        assert restored.left == {}
        assert restored.anew == ANEW
    assert perdure.restore(tmp_path / "one", model=gpt(hf, 1)).form == "a model of transformers, model.safetensors"


def test_a_base_model_and_one_with_a_head_exchange_what_they_share(tmp_path, hf):
    config = hf.BertConfig(
        num_hidden_layers=1, num_attention_heads=2, hidden_size=8, intermediate_size=8, vocab_size=9
    )
    torch.manual_seed(0)
    old = hf.BertForSequenceClassification(config)
    (tmp_path / "m").mkdir()
    saved(tmp_path / "m" / "pytorch_model.bin", old.state_dict())
    base = hf.BertModel(config)
    restored = perdure.restore(tmp_path / "m", model=base)
    assert same(old.bert, base)
    assert "not taken: model (classifier.weight, classifier.bias)" in str(restored)
    gpt(hf, 0).transformer.save_pretrained(tmp_path / "base")
    new = gpt(hf, 1)
    perdure.restore(tmp_path / "base", model=new)  # the head is tied, so nothing is missing
    assert same(new, gpt(hf, 0))
    saved(tmp_path / "b.bin", hf.BertModel(config).state_dict())
    with pytest.raises(StateMismatchError, match=r"classifier\.weight is here"):
        perdure.restore(tmp_path / "b.bin", model=old)


def test_a_checkpoint_of_the_trainer_of_transformers_gives_its_optimizer_too(tmp_path, hf):
    old = gpt(hf, 0)
    optimizer = torch.optim.AdamW(old.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    old(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    scheduler.step()
    folder = tmp_path / "checkpoint-1"
    old.save_pretrained(folder)
    saved(folder / "optimizer.pt", optimizer.state_dict())
    saved(folder / "scheduler.pt", scheduler.state_dict())
    saved(folder / "rng_state.pth", {"numpy": np.random.get_state()})
    (folder / "trainer_state.json").write_text('{"global_step": 1, "epoch": 0.5}')
    new = gpt(hf, 1)
    second = torch.optim.AdamW(new.parameters(), 1e-3)
    again = torch.optim.lr_scheduler.LambdaLR(second, lambda step: 1 / (step + 1))
    restored = perdure.restore(folder, model=new, optimizer=second, scheduler=again)
    assert same(old, new)
    assert same(optimizer, second)
    assert restored.form == "a checkpoint of transformers, step 1, model.safetensors"
    assert set(restored.left) == {"trainer_state.json", "rng_state.pth"}
    with pytest.raises(NoCheckpointError) as caught:
        perdure.restore(tmp_path, model=new)
    assert caught.value.hint == "give one of the folders in it; checkpoint-1 is the newest"
    (folder / "optimizer.pt").rename(folder / "optimizer.bin")  # as accelerate calls it
    assert perdure.restore(folder, model=gpt(hf, 1), optimizer=second).taken == ("model", "optimizer")


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_an_adapter_of_peft_fills_the_adapter_and_leaves_the_base(tmp_path, hf):
    peft = pytest.importorskip("peft")

    def lora(seed, **options):
        config = peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True, **options)
        model = peft.get_peft_model(gpt(hf, 0), config)
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                nn.init.normal_(parameter)
        return model

    old = lora(1, modules_to_save=["ln_f"])
    nn.init.normal_(old.base_model.model.transformer.ln_f.weight)
    old.save_pretrained(tmp_path / "a")
    new = lora(2, modules_to_save=["ln_f"])
    restored = perdure.restore(tmp_path / "a", model=new)
    assert same(old, new)
    assert restored.form == "an adapter of PEFT, adapter_model.safetensors"
    assert restored.notes == ("model: the adapter 'default' only; the base model is as it was",)
    trainable = {name for name, parameter in new.named_parameters() if parameter.requires_grad}
    assert trainable == {name for name, parameter in old.named_parameters() if parameter.requires_grad}
    with pytest.raises(StateMismatchError, match=r"c_proj\.lora_A\.default\.weight is here"):
        perdure.restore(tmp_path / "a", model=peft.get_peft_model(gpt(hf, 0), peft.LoraConfig(
            target_modules=["c_attn", "c_proj"], r=2, fan_in_fan_out=True, modules_to_save=["ln_f"])))  # fmt: skip
    with pytest.raises(StateMismatchError, match=r"lora_A\.weight is in the checkpoint"):
        perdure.restore(tmp_path / "a", model=gpt(hf, 0))


# ---------------------------------------------------------------- Keras


@pytest.fixture(scope="module", params=["torch", "tensorflow"])
def keras(request, tmp_path_factory):
    """What happened to files of Keras on a backend, which is fixed at import: a process for each."""
    pytest.importorskip("keras")
    pytest.importorskip(request.param)
    folder = tmp_path_factory.mktemp(f"keras_{request.param}")
    environment = {
        **os.environ,
        "KERAS_BACKEND": request.param,
        "KERAS_HOME": str(folder),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    script = Path(__file__).with_name("foreign_makers.py")
    done = subprocess.run(
        [sys.executable, str(script), "keras", str(folder)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "backend": request.param}


@pytest.mark.parametrize("file", ["m.keras", "m.h5", "m.weights.h5"])
def test_files_of_keras_bring_weights_every_slot_and_the_step_count(keras, file):
    said = keras[file]
    assert (said["weights"], said["optimizer"], said["iterations"]) == (True, True, 8)
    assert said["taken"] == ["model", "model.optimizer"]
    assert said["anew"] == ["random generators", "position in the data"]
    assert said["named"] == ["model", "optimizer"]


def test_what_a_file_of_keras_does_not_hold_is_said(keras):
    assert keras["not compiled"] == {"weights": True, "anew": list(ANEW)}
    assert "begins anew: optimizer" in keras["weights only"]
    assert "optimizer is not in it, or does not fit" in keras["without optimizer"]
    assert "a file of Keras holds a model and its optimizer" in keras["strange optimizer"]
    assert "0 of the objects are models of Keras" in keras["no model"]


def test_a_keras_model_that_does_not_fit_is_refused_and_as_it_was(keras):
    assert keras["other shape"].startswith("StateMismatchError: the live model does not fit")
    assert "(4, 7)" in keras["other shape"]
    assert keras["untouched"] is True


def test_a_subclass_is_built_from_the_shapes_in_the_file_or_the_error_says_what_to_do(keras):
    assert keras["subclass"] == {"weights": True, "optimizer": True, "iterations": 1}
    assert "hint: call it once on a batch, then restore" in keras["unbuilt"]


def test_damaged_files_of_keras_are_corrupt(keras):
    assert "CorruptError" in keras["bad.keras"] and "checksum" in keras["bad.keras"]
    assert keras["torn.h5"].startswith("CorruptError")


def test_a_run_over_a_keras_model_starts_from_its_file(keras):
    assert keras.get("run", {"weights": True}) == {"weights": True}
    assert ("run" in keras) == (keras["backend"] == "torch")


# ---------------------------------------------------------------- a run that starts from a file


class Killed(Exception):
    """Ends a session in the middle of a step."""


def train(root, source, sessions, *, steps=4):
    """A run in so many sessions, each but the last killed in the middle; gives the model and the statements."""
    statements = []
    for session in range(sessions):
        with (
            contextlib.suppress(Killed),
            perdure.Run("r", root=root, accelerator="cpu", seed=1, save_every="1 steps") as run,
        ):
            model = net(5)
            optimizer = torch.optim.AdamW(model.parameters(), 0.5)
            run.track(model=model, optimizer=optimizer)
            statements.append(run.start_from(source))
            stream = run.cycle([torch.full((4, 4), float(i)) + torch.eye(4) for i in range(5)])
            for step in run.steps(steps):
                optimizer.zero_grad()
                model(next(stream) + torch.randn(4, 4)).square().mean().backward()
                optimizer.step()
                if session < sessions - 1 and step == 2 * session + 1:
                    raise Killed
    return model, statements


def test_a_fresh_run_starts_from_the_file_and_a_resumed_one_does_not_look_at_it(tmp_path, capsys):
    model, optimizer = trained()
    source = saved(
        tmp_path / "c.pth", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    )
    straight, (statement,) = train(tmp_path / "a", source, 1)
    assert statement.taken == ("model", "optimizer")
    said = capsys.readouterr().err
    assert (
        f"perdure: r: restored model, optimizer from {source}, a dict of states, epoch 3; not taken: epoch" in said
    )
    assert "perdure: r: begins anew: random generators, position in the data" in said
    broken, statements = train(tmp_path / "b", source, 2)
    assert [bool(one) for one in statements] == [True, False]
    assert same(straight, broken)
    events = (tmp_path / "a" / "r" / "events.jsonl").read_text()
    assert '"started_from"' in events


def test_only_what_is_named_is_filled_and_what_the_file_lacks_begins_as_it_is(tmp_path):
    model, optimizer = trained()
    both = saved(tmp_path / "c.pth", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    weights = saved(tmp_path / "w.pth", model.state_dict())
    for source, options in ((both, {"only": ["model"]}), (both, {"only": "model"}), (weights, {})):
        with perdure.Run("r", root=tmp_path / "runs", accelerator="cpu", resume=False) as run:
            new = net(5)
            second = torch.optim.AdamW(new.parameters(), 0.5)
            run.track(model=new, optimizer=second)
            statement = run.start_from(source, **options)
        assert statement.taken == ("model",)
        assert same(model, new)
        assert second.param_groups[0]["lr"] == 0.5


def test_every_tracked_object_that_the_file_lacks_is_named(tmp_path):
    one, _ = trained()
    source = saved(tmp_path / "c.pth", {"nets.g": one.state_dict(), "history": [1, 2]})
    with perdure.Run("r", root=tmp_path / "runs", accelerator="cpu") as run:
        nets, history = {"g": net(5), "d": net(6)}, []
        run.track(nets=nets, history=history, noise=torch.Generator(), best=[0.5])
        statement = run.start_from(source)
    assert statement.taken == ("nets.g", "history")
    assert statement.anew == ("nets.d", "noise", "best", "random generators", "position in the data")
    assert same(nets["g"], one) and history == [1, 2] and same(nets["d"], net(6))


def test_a_run_starts_from_the_checkpoint_of_another_run(tmp_path):
    source = saved(tmp_path / "c.pth", trained()[0].state_dict())
    old, _ = train(tmp_path / "a", source, 1)
    with perdure.Run("second", root=tmp_path / "b", accelerator="cpu") as run:
        new = net(9)
        run.track(model=new, noise=[1])
        statement = run.start_from(tmp_path / "a" / "r")
        assert (run.step, run.resumed_from) == (0, None)
    assert same(old, new)
    assert statement.taken == ("model",)
    assert statement.form == "a checkpoint of Perdure of the run 'r', step 4"
    assert list(statement.left) == ["optimizer"]
    assert statement.anew == ("noise", "random generators", "position in the data")


def test_starting_from_a_file_too_late_or_with_nothing_tracked_is_refused(tmp_path):
    source = saved(tmp_path / "c.pth", net(0).state_dict())
    with perdure.Run("r", root=tmp_path / "runs", accelerator="cpu") as run:
        with pytest.raises(ConfigError, match="nothing is tracked yet"):
            run.start_from(source)
        run.track(model=net(1))
        with pytest.raises(ConfigError, match="modle is not tracked; tracked are: model"):
            run.start_from(source, only=["modle"])
        with pytest.raises(NoCheckpointError):
            run.start_from(tmp_path / "nothing")
        with pytest.raises(StateMismatchError, match="model is not in it"):
            run.start_from(saved(tmp_path / "d.pth", {"epoch": 1}))
        for _ in run.epochs(1):
            with pytest.raises(LoopError, match="the run has begun already"):
                run.start_from(source)
