"""Models as people write them: operators of their own, empty buffers, outputs that are inputs, TorchScript."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from perdure.core.errors import CannotCarryError
from perdure.models.export import export_model
from perdure.models.formats import Exported, Facts, Source
from perdure.models.prover import Prover
from perdure.training.export import source_of


def export(source: Source, folder: Path, *formats: str) -> list[Exported]:
    return export_model(source, folder, "m", formats, Facts())


@torch.library.custom_op("perdure_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class OwnOperator(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return twice(super().forward(x))


def test_an_operator_of_the_user_costs_the_graphs_and_not_the_weights(tmp_path: Path, source, capsys) -> None:
    with pytest.raises(
        CannotCarryError, match="a pt2 file cannot hold the operator perdure_tests::twice"
    ) as caught:
        export(source(OwnOperator(2, 2), torch.ones(2, 2)), tmp_path, "pt2", "onnx", "pth", "safetensors")
    assert caught.value.hint == 'use "pth" or "safetensors", which hold the weights'
    assert "onnx has no word for the operator perdure_tests::twice" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("m*")) == ["m.pth", "m.safetensors", "model-card.json"]
    (card,) = json.loads((tmp_path / "model-card.json").read_text())["models"]
    for file in card["files"]:
        assert file["parity"]["note"] == (
            "the forward pass was in this process: its graph calls perdure_tests::twice, whose code a fresh process "
            "has not"
        )
        assert (file["parity"]["tensors"], file["parity"]["outputs"][0]["largest"]) == (2, 0)


def test_a_graph_that_kills_the_process_costs_the_forward_pass_and_not_the_weights(
    tmp_path: Path, source, monkeypatch
) -> None:
    ask = Prover.ask

    def killed_by_the_graph(self: Prover, job):
        if job.get("graph"):
            os.kill(self._process.pid, signal.SIGKILL)  # as the system does where there is no memory
        return ask(self, job)

    monkeypatch.setattr(Prover, "ask", killed_by_the_graph)
    (made,) = export(source(nn.Linear(2, 2), torch.ones(2, 2)), tmp_path, "pth")
    assert made.parity.tensors == 2
    assert "the process that opened it was killed by SIGKILL" in made.parity.note


def test_empty_buffers_are_proved_with_the_rest(tmp_path: Path, source) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("none", torch.empty(0))
    model.register_buffer("no_rows", torch.empty(0, 3))
    model.register_buffer("one", torch.zeros(1))
    model.register_buffer("count", torch.tensor(3))
    for made in export(source(model, torch.ones(2, 2)), tmp_path, "pth", "safetensors", "pt2", "onnx"):
        assert (made.parity.note, made.parity.outputs[0].name) == ("", "output"), made.format
    found = torch.load(tmp_path / "m.pth", weights_only=True)
    assert {n: tuple(found[n].shape) for n in ("none", "no_rows", "one", "count")} == {
        "none": (0,),
        "no_rows": (0, 3),
        "one": (1,),
        "count": (),
    }


def test_a_wrapped_forward_and_hooks_work_on_the_copy_and_not_on_the_live_model(tmp_path: Path, source) -> None:
    class Counting(nn.BatchNorm1d):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    def wrapped(forward):
        @functools.wraps(forward)
        def autocast(*args, **kwargs):
            return forward(*args, **kwargs) + 1

        return autocast

    def seeing(seen: list, of: nn.Module):
        return lambda module, inputs, output: (seen.append(output), of.extra.append(1))[:0] or None

    model, seen = Counting(2).train(), []
    model.extra = []
    model.forward = wrapped(wrapped(model.forward))
    model.register_forward_hook(seeing(seen, model))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for made in export(source(model, torch.randn(4, 2)), tmp_path, "pth", "pt2"):
        assert made.parity.outputs[0].largest == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.calls, seen, model.extra) == (0, [], [])
    assert torch.export.load(tmp_path / "m.pt2").module()(torch.zeros(3, 2)).tolist() == [[2, 2]] * 3


class Returns(nn.Module):
    """Inputs as outputs, one output twice, and names that values inside have too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.body(x)
        return {"x": x, "again": x, "linear": torch.relu(y), "relu": y, "body.bias": y}


def test_every_output_has_a_name_of_its_own_in_onnx(tmp_path: Path, source) -> None:
    (made,) = export(source(Returns(), torch.ones(2, 2)), tmp_path, "onnx")
    onnx.checker.check_model(made.path, full_check=True)
    graph = onnx.load(made.path).graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["x_out", "again", "linear", "relu", "body.bias_out"]
    assert {tensor.name for tensor in graph.initializer} == {"body.weight", "body.bias"}
    assert made.parity.batches == (2, 1, 3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_torchscript_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(CannotCarryError, match="^1 is a TorchScript program") as caught:
        source_of(model, None)
    assert "the module that it was made of" in caught.value.hint
