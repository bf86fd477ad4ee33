"""Weights out of a checkpoint: bit for bit what was trained, by plain names, without the script and its GPU."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import perdure
from perdure.checkpoint.manifest import MANIFEST, dump_manifest
from perdure.checkpoint.reader import read_manifest
from perdure.core.errors import (
    CannotCarryError,
    ConfigError,
    CorruptError,
    NoCheckpointError,
)
from perdure.models.from_checkpoint import Weights, read_weights


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def train(model: nn.Module, *after: object, steps: int = 3) -> torch.optim.Optimizer:
    """Train for real; ``after`` are averages that look at the model after each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        for average in after:
            average.update_parameters(model)
    return optimizer


def only_one(path: Path, **choice: object) -> Weights:
    (weights,) = read_weights(path, **choice).weights
    return weights


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert set(got) == set(want)
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype, name
        assert got[name].stride() == tensor.stride(), name
        assert torch.equal(got[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


# ---------------------------------------------------------------- live weights


class Odd(nn.Module):
    """Everything that a state_dict can hold, and some that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        self.narrow = nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("hidden", torch.randn(2), persistent=False)
        self.register_parameter("absent", None)


def test_parameters_and_buffers_come_back_bit_for_bit_with_ties_and_layout(tmp_path: Path) -> None:
    model = Odd()
    perdure.save(tmp_path / "saved", model=model)
    weights = only_one(tmp_path / "saved")
    assert_same(weights.tensors, model.state_dict())
    assert weights.tensors["head.weight"].data_ptr() == weights.tensors["embed.weight"].data_ptr()
    assert_same(weights.hidden, {"hidden": model.hidden})
    assert (weights.module, weights.which, weights.notes) == ("model", "live", ())


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda m: torch.compile(nn.DataParallel(m))])
def test_names_are_plain_whatever_the_model_was_wrapped_in(tmp_path: Path, wrap) -> None:
    model = net()
    perdure.save(tmp_path / "saved", model=wrap(nn.Sequential(model, nn.Linear(2, 2))))
    assert list(only_one(tmp_path / "saved").tensors)[:2] == ["0.0.weight", "0.0.bias"]


def test_several_modules_are_given_each_under_its_name_or_as_chosen(tmp_path: Path) -> None:
    perdure.save(tmp_path / "saved", nets={"g": net(), "d": nn.Linear(2, 1)}, optimizer=train(net()))
    read = read_weights(tmp_path / "saved")
    assert [(each.module, each.name) for each in read.weights] == [("nets.g", "nets.g"), ("nets.d", "nets.d")]
    assert not read.alone
    assert set(only_one(tmp_path / "saved", only=["nets.d"]).tensors) == {"weight", "bias"}
    with pytest.raises(ConfigError, match="no module 'nets.q'"):
        read_weights(tmp_path / "saved", only=["nets.q"])


def test_a_checkpoint_without_a_model_says_what_it_holds(tmp_path: Path) -> None:
    perdure.save(tmp_path / "saved", history=[1, 2])
    with pytest.raises(ConfigError, match=r"no model in .*, which holds history"):
        read_weights(tmp_path / "saved")


def test_a_lazy_module_that_never_ran_is_refused_by_name(tmp_path: Path) -> None:
    perdure.save(tmp_path / "saved", model=nn.Sequential(nn.LazyLinear(2)))
    with pytest.raises(CannotCarryError, match=r"model has no shapes yet: 0\.weight, 0\.bias"):
        read_weights(tmp_path / "saved")


def test_what_a_gpu_wrote_opens_on_a_machine_without_one(tmp_path: Path) -> None:
    model = net()
    folder = perdure.save(tmp_path / "saved", model=model)
    manifest = read_manifest(folder)

    def on_card(value: object) -> object:
        if isinstance(value, dict):
            moved = {key: on_card(item) for key, item in value.items()}
            return {**moved, "device": "cuda:1"} if value.get("$") == "tensor" else moved
        return [on_card(item) for item in value] if isinstance(value, list) else value

    moved = manifest.model_copy(update={"values": on_card(manifest.values)})
    (folder / MANIFEST).write_bytes(dump_manifest(moved))
    weights = only_one(tmp_path / "saved")
    assert {tensor.device.type for tensor in weights.tensors.values()} == {"cpu"}
    assert_same(weights.tensors, model.state_dict())


# ---------------------------------------------------------------- which checkpoint


def run_of(root: Path, name: str, steps: int = 3) -> nn.Module:
    model = net()
    with perdure.Run(name, root, save_every="1 step", seed=0) as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        run.track(model=model, optimizer=optimizer)
        for _ in run.steps(steps):
            model[0].weight.grad = torch.full_like(model[0].weight, -1.0)
            optimizer.step()
            run.log(loss=0.5)
    return model


def flip_a_byte(checkpoint: Path, entry: str) -> None:
    found = next(each for each in read_manifest(checkpoint).entries if each.name == entry)
    path = checkpoint.parent.parent / found.file
    with open(path, "r+b") as file:
        file.seek(found.offset)
        byte = file.read(1)
        file.seek(found.offset)
        file.write(bytes([byte[0] ^ 1]))


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").iterdir())


def test_of_a_run_the_newest_is_read_and_of_a_checkpoint_that_one(tmp_path: Path) -> None:
    model = run_of(tmp_path, "digits")
    read = read_weights(tmp_path / "digits")
    assert (read.manifest.step, read.manifest.run, read.alone) == (3, "digits", True)
    assert_same(read.weights[0].tensors, model.state_dict())
    older = checkpoints(tmp_path / "digits")[0]
    assert read_weights(older).manifest.step == 2
    assert torch.equal(
        read_weights(older / MANIFEST).weights[0].tensors["0.weight"] + 1, read.weights[0].tensors["0.weight"]
    )


def test_a_damaged_newest_one_is_passed_over_and_that_is_said(tmp_path: Path) -> None:
    run_of(tmp_path, "digits")
    flip_a_byte(checkpoints(tmp_path / "digits")[-1], "model/0.weight")
    read = read_weights(tmp_path / "digits")
    assert read.manifest.step == 2
    assert read.notes[0].startswith("step-000000003 was passed over: ")
    with pytest.raises(CorruptError, match=r"entry model/0\.weight"):
        read_weights(checkpoints(tmp_path / "digits")[-1])


def test_damage_in_the_optimizer_does_not_take_the_model_along(tmp_path: Path) -> None:
    model = net()
    folder = perdure.save(tmp_path / "saved", model=model, optimizer=train(model))
    flip_a_byte(folder, next(e.name for e in read_manifest(folder).entries if e.name.startswith("optimizer")))
    assert_same(only_one(folder).tensors, model.state_dict())


@pytest.mark.parametrize("damage", ["missing", "short", "long", "header"])
def test_a_file_that_is_not_whole_is_damage_and_not_a_traceback(tmp_path: Path, damage: str) -> None:
    folder = perdure.save(tmp_path / "saved", model=net())
    (file,) = (tmp_path / "saved" / "tensors").iterdir()
    data = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes({"short": data[:-1], "long": data + b"!", "header": data[:20] + b"!" + data[21:]}[damage])
    with pytest.raises(CorruptError):
        read_weights(folder)


def test_nothing_there_and_two_runs_there_are_two_answers(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match="there is no checkpoint at"):
        read_weights(tmp_path / "nowhere")
    run_of(tmp_path, "one", steps=1)
    run_of(tmp_path, "two", steps=1)
    with pytest.raises(ConfigError, match="several runs: one, two"):
        read_weights(tmp_path)


def test_a_copied_checkpoint_reads_the_same_elsewhere(tmp_path: Path) -> None:
    model = run_of(tmp_path / "a", "digits")
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "kaggle" / "input")
    shutil.rmtree(tmp_path / "a")
    assert_same(only_one(tmp_path / "b").tensors, model.state_dict())


# ---------------------------------------------------------------- averages


class Shadow:
    """An average as Ultralytics and YOLOX keep it: an object with a state_dict in its state_dict."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow, self.updates = copy.deepcopy(model), 0

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        self.updates += 1
        for mine, new in zip(self.shadow.state_dict().values(), model.state_dict().values(), strict=True):
            mine.copy_(new) if not mine.is_floating_point() else mine.lerp_(new, 0.1)

    def state_dict(self) -> dict[str, object]:
        return {"ema": self.shadow.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.shadow.load_state_dict(state["ema"])


class Listed:
    """An average as diffusers and torch_ema keep it: tensors in the order of ``parameters()``."""

    def __init__(self, model: nn.Module, *, trained_only: bool = False) -> None:
        self.shadow = [p.detach().float() * 2 for p in model.parameters() if p.requires_grad or not trained_only]

    def state_dict(self) -> dict[str, object]:
        return {"decay": 0.9, "num_updates": 4, "shadow_params": self.shadow, "collected_params": None}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.shadow = state["shadow_params"]


class EmaPytorch(nn.Module):
    """An average as ema_pytorch keeps it: a module with the copy, counters, and the live model in it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online_model, self.ema_model = model, copy.deepcopy(model)
        self.register_buffer("initted", torch.tensor(True))
        with torch.no_grad():
            self.ema_model[0].weight += 1


def test_an_averaged_model_gets_plain_names_and_loses_its_counter_which_is_said(tmp_path: Path) -> None:
    model = net()
    swa = AveragedModel(model)
    train(model, swa)
    perdure.save(tmp_path / "saved", model=model, swa=swa)
    weights = only_one(tmp_path / "saved", average="swa")
    assert_same(weights.tensors, swa.module.state_dict())
    assert (weights.module, weights.which, weights.name) == ("model", "swa", "swa")
    assert weights.notes[0] == "swa is averaged over 3 updates"
    assert "BatchNorm statistics in swa are those of the live weights" in weights.notes[1]
    net().load_state_dict(weights.tensors)


def test_live_weights_and_the_average_are_kept_apart_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    model = net()
    swa = AveragedModel(model)
    train(model, swa)
    perdure.save(tmp_path / "saved", model=model, swa=swa)
    read = read_weights(tmp_path / "saved")
    assert [each.which for each in read.weights] == ["live"]
    assert_same(read.weights[0].tensors, model.state_dict())
    assert read.notes == ("the checkpoint also holds an average of model, left out: --average swa",)
    assert read.alone


def test_statistics_that_the_average_measured_itself_are_not_called_those_of_the_model(tmp_path: Path) -> None:
    model = net()
    swa = AveragedModel(model, use_buffers=True)
    train(model, swa)
    perdure.save(tmp_path / "saved", model=model, swa=swa)
    assert only_one(tmp_path / "saved", average="swa").notes == ("swa is averaged over 3 updates",)


def test_an_average_that_has_averaged_nothing_says_so(tmp_path: Path) -> None:
    model = net()
    perdure.save(tmp_path / "saved", model=model, swa=AveragedModel(model))
    (note,) = only_one(tmp_path / "saved", average="swa").notes
    assert note == "swa has averaged nothing yet: it is the model as it was when it was made"


def test_an_average_without_its_model_is_the_model(tmp_path: Path) -> None:
    swa = AveragedModel(net())
    perdure.save(tmp_path / "saved", swa=swa)
    read = read_weights(tmp_path / "saved")
    assert_same(read.weights[0].tensors, swa.module.state_dict())
    assert read.alone


def test_an_average_of_a_compiled_model_fits_the_plain_one(tmp_path: Path) -> None:
    model = net()
    swa = AveragedModel(torch.compile(model))
    train(model, swa)
    perdure.save(tmp_path / "saved", model=torch.compile(model), swa=swa)
    assert_same(only_one(tmp_path / "saved", average="swa").tensors, swa.module._orig_mod.state_dict())


def test_an_average_in_the_state_of_an_object_is_found_by_its_names(tmp_path: Path) -> None:
    model = net()
    ema = Shadow(model)
    train(model, ema)
    perdure.save(tmp_path / "saved", model=model, ema=ema)
    assert_same(only_one(tmp_path / "saved", average="ema").tensors, ema.shadow.state_dict())
    assert only_one(tmp_path / "saved", average="ema").notes == ()


@pytest.mark.parametrize("trained_only", [False, True])
def test_a_list_of_tensors_is_named_by_the_order_of_the_parameters(tmp_path: Path, trained_only: bool) -> None:
    model = net().bfloat16()
    model[0].requires_grad_(False)
    ema = Listed(model, trained_only=trained_only)
    perdure.save(tmp_path / "saved", model=model, ema=ema)
    weights = only_one(tmp_path / "saved", average="ema")
    held = [name for name, p in model.named_parameters() if p.requires_grad or not trained_only]
    assert_same({name: weights.tensors[name] for name in held}, dict(zip(held, ema.shadow, strict=True)))
    rest = {name: tensor for name, tensor in model.state_dict().items() if name not in held}
    assert_same({name: weights.tensors[name] for name in rest}, rest)
    assert "ema does not hold" in weights.notes[0]
    assert all(name in weights.notes[0] for name in rest)


def test_a_list_names_tied_parameters_once(tmp_path: Path) -> None:
    model = Odd()
    ema = Listed(model)
    perdure.save(tmp_path / "saved", model=model, ema=ema)
    tensors = only_one(tmp_path / "saved", average="ema").tensors
    assert torch.equal(tensors["head.weight"], model.embed.weight * 2)
    assert tensors["head.weight"].data_ptr() == tensors["embed.weight"].data_ptr()


def test_an_average_that_carries_the_live_model_along_gives_the_average(tmp_path: Path) -> None:
    model = net()
    ema = EmaPytorch(model)
    perdure.save(tmp_path / "saved", model=model, ema=ema)
    read = read_weights(tmp_path / "saved")
    assert [each.name for each in read.weights] == ["model"]
    assert_same(only_one(tmp_path / "saved", average="ema").tensors, ema.ema_model.state_dict())


def test_a_module_that_only_contains_a_copy_of_another_is_a_model_of_its_own(tmp_path: Path) -> None:
    model = net()
    pair = nn.ModuleDict({"teacher": copy.deepcopy(model), "student": net()})
    perdure.save(tmp_path / "saved", model=model, pair=pair)
    assert [each.name for each in read_weights(tmp_path / "saved").weights] == ["model", "pair"]


def test_a_tracked_copy_is_a_module_and_can_be_asked_for_as_an_average(tmp_path: Path) -> None:
    model, ema = net(), net()
    perdure.save(tmp_path / "saved", model=model, ema=ema)
    weights = only_one(tmp_path / "saved", average="ema")
    assert_same(weights.tensors, ema.state_dict())
    assert weights.which == "ema"
    assert len(read_weights(tmp_path / "saved").weights) == 2


def test_several_averages_in_one_object_are_told_apart_by_their_place(tmp_path: Path) -> None:
    model = net()
    emas = {decay: {k: v + i for k, v in model.state_dict().items()} for i, decay in enumerate(("0.99", "0.999"))}
    perdure.save(tmp_path / "saved", model=model, ema=emas)
    assert_same(only_one(tmp_path / "saved", average="ema.0.999").tensors, emas["0.999"])
    with pytest.raises(ConfigError, match=r"no average 'ema' in the checkpoint\n.*there are: ema.0.99, ema.0.999"):
        read_weights(tmp_path / "saved", average="ema")


def test_weights_of_another_size_are_no_average(tmp_path: Path) -> None:
    wide = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    perdure.save(tmp_path / "saved", model=net(), best={"weights": wide.state_dict()}, list=list(wide.parameters()))
    assert read_weights(tmp_path / "saved").notes == ()


def test_the_moments_of_an_optimizer_are_no_average(tmp_path: Path) -> None:
    model = net()
    perdure.save(tmp_path / "saved", model=model, optimizer=train(model))
    with pytest.raises(ConfigError, match="no average 'ema' in the checkpoint\nhint: it holds none"):
        read_weights(tmp_path / "saved", average="ema")
    assert read_weights(tmp_path / "saved").notes == ()


def test_an_average_asked_for_as_a_module_is_named_as_what_it_is(tmp_path: Path) -> None:
    model = net()
    perdure.save(tmp_path / "saved", model=model, swa=AveragedModel(model))
    with pytest.raises(ConfigError, match=r"no module 'swa' .*\nhint: it is an average: use --average swa"):
        read_weights(tmp_path / "saved", only=["swa"])


def test_the_average_of_one_of_several_modules_is_chosen_with_it(tmp_path: Path) -> None:
    nets = {"g": net(), "d": nn.Linear(2, 1)}
    swa = AveragedModel(nets["d"])
    perdure.save(tmp_path / "saved", nets=nets, swa=swa)
    assert only_one(tmp_path / "saved", average="swa", only=["nets.d"]).module == "nets.d"
    with pytest.raises(ConfigError, match="no average 'swa'"):
        read_weights(tmp_path / "saved", average="swa", only=["nets.g"])
