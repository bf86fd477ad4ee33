"""The proof: it fails where a file or a graph is wrong, it disturbs nothing, and it says what it could not look at."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from zoo import Convolutions, DictOut, TiedTransformer, trained

from perdure.core.errors import CannotCarryError, CorruptError
from perdure.models import onnx_file
from perdure.models import prover as prover_module
from perdure.models.export import export_model
from perdure.models.formats import Example, Exported, Facts, Source
from perdure.models.live import as_example, signature_of
from perdure.models.proof import expected_of
from perdure.models.prover import Prover
from perdure.training.export import source_of


def export(source: Source, folder: Path, *formats: str) -> list[Exported]:
    return export_model(source, folder, "m", formats, Facts())


# -------------------------------------------------------------------- it fails where something is wrong


def test_the_process_sees_missing_foreign_and_changed_tensors(tmp_path: Path, prover: Prover, source) -> None:
    mine = source({"a": torch.zeros(3), "b": torch.zeros(2), "c": torch.zeros(2, 2), "d": torch.zeros(1)})
    other = {
        "a": torch.tensor([0.0, -0.0, 0.0]),
        "c": torch.zeros(4),
        "d": torch.zeros(1).double(),
        "e": torch.ones(1),
    }
    torch.save(other, tmp_path / "other.pth")
    answer = prover.ask({"kind": "pth", "path": str(tmp_path / "other.pth"), "expected": expected_of(mine)})
    assert answer["problems"] == [
        "a: other bytes",
        "b: not there",
        "c: torch.float32 [2, 2] became torch.float32 [4]",
        "d: torch.float32 [1] became torch.float64 [1]",
        "e: not in the model",
    ]
    assert answer["perdure"] is False


def test_a_pickle_that_runs_code_and_an_empty_file_are_refused(tmp_path: Path, prover: Prover) -> None:
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"a": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "empty.pth").touch()
    for name, says in {"evil": "UnpicklingError", "empty": "empty"}.items():
        (problem,) = prover.ask({"kind": "pth", "path": str(tmp_path / f"{name}.pth"), "expected": {}})["problems"]
        assert says in problem
    assert not (tmp_path / "ran").exists()


def test_a_process_that_dies_or_hangs_refuses_one_file_only(tmp_path: Path, monkeypatch) -> None:
    prover = Prover(tmp_path)
    torch.save({}, tmp_path / "fine.pth")
    threading.Timer(0.2, os.kill, (prover._process.pid, 9)).start()  # it loads torch for seconds
    (problem,) = prover.ask({"kind": "pth", "path": str(tmp_path / "fine.pth"), "expected": {}})["problems"]
    assert "was killed by SIGKILL" in problem
    with monkeypatch.context() as patch:
        patch.setattr(prover_module, "PROOF_S", 0.01)  # the new one is still loading: as good as hung
        (problem,) = prover.ask({"kind": "pth", "path": str(tmp_path / "fine.pth"), "expected": {}})["problems"]
    assert problem == "it was not proved within 10 ms"
    assert prover.ask({"kind": "pth", "path": str(tmp_path / "fine.pth"), "expected": {}})["problems"] == []
    prover.close()
    assert prover._process.poll() is not None


class AdaptedTransformer(TiedTransformer):
    """The fast path of ``TransformerEncoderLayer`` in eval mode reads weights and goes past what wraps its layers."""

    def __init__(self) -> None:
        super().__init__()
        from peft.tuners.lora import LoraConfig
        from peft.tuners.lora.layer import Linear

        layer = self.body.layers[0]
        layer.linear1 = Linear(layer.linear1, "default", LoraConfig(r=2, init_lora_weights=False), r=2)


def test_a_graph_that_computes_something_else_is_refused_with_the_largest_difference_and_weights_stay(
    tmp_path: Path, source, capsys
) -> None:
    model, ids = AdaptedTransformer(), torch.randint(0, 50, (2, 6))
    with pytest.raises(CorruptError, match=r"output output is off by [\d.]+, where [\d.e-]+ is allowed") as caught:
        export(source(model, ids), tmp_path, "onnx", "pth")
    assert "other numbers than the live model: m.onnx" in str(caught.value)
    assert not (tmp_path / "m.onnx").exists()
    assert set(torch.load(tmp_path / "m.pth", weights_only=True)) == set(model.state_dict())
    assert (
        "the weights are right, but the graph that torch.export makes of the model is not"
        in capsys.readouterr().err
    )


class Noisy(nn.Linear):
    """Draws numbers and counts its calls, also in eval mode."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) + torch.rand(1)


def test_a_model_that_draws_random_numbers_in_eval_is_told_so(tmp_path: Path, source) -> None:
    with pytest.raises(CorruptError, match="gives other numbers each time"):
        export(source(Noisy(), torch.ones(2, 2)), tmp_path, "pt2")


def test_a_model_that_writes_into_its_buffers_is_compared_as_it_was(tmp_path: Path, source) -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("calls", torch.full((1,), 7.0))

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    model = Counting()
    for made in export(source(model, torch.ones(2, 2)), tmp_path, "pth", "pt2", "onnx"):
        assert made.parity.batches == (2, 1, 3)
    assert torch.load(tmp_path / "m.pth", weights_only=True)["calls"] == model.calls == 7


# -------------------------------------------------------------------- it disturbs nothing


def test_an_export_in_the_middle_of_a_training_changes_nothing_of_it(tmp_path: Path, source) -> None:
    def train(exports: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        model = Convolutions(norm=True)
        model.conv.eval()  # a mode of its own
        noisy = Noisy()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 3, 8, 8)).square().mean() * random.random() * np.random.rand()
            loss.backward()
            if exports and step == 1:
                export(source(model, torch.ones(1, 3, 8, 8)), tmp_path, "pth", "pt2")
                export(source(noisy, torch.ones(1, 2)), tmp_path, "pth")
            optimizer.step()
        assert [m.training for m in (model, model.conv, model.norm, model.drop)] == [True, False, True, True]
        return [*model.state_dict().values(), noisy.calls, *(p.grad for p in model.parameters()), torch.rand(1)]

    straight, exported = train(False), train(True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(straight, exported, strict=True))


def test_the_copy_shares_the_parameters_and_leaves_data_sets_and_trainers_alone(source) -> None:
    from perdure.models.twin import make_twin

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
            self.loader = torch.utils.data.DataLoader(torch.zeros(5), batch_size=2)
            self.last = self.layer(torch.zeros(1, 2))  # the result of a computation, which python cannot copy
            self.act = self.double

        def double(self, x):
            return 2 * x * (1 if self.training else 10)

        def forward(self, x):
            return self.act(self.layer(x))

    model = Holder()
    twin = make_twin(model)
    assert [p.data_ptr() for p in twin.parameters()] == [p.data_ptr() for p in model.parameters()]
    assert twin.loader is model.loader
    x = torch.ones(1, 2)
    assert torch.equal(twin(x), 10 * model(x) / 1), "its bound methods are its own: it is in eval mode"


def test_wrappers_are_taken_off_at_any_depth_and_outputs_are_plain(tmp_path: Path, source) -> None:
    model = trained(DictOut(), x := torch.randn(2, 4))
    model.body = torch.compile(model.body)
    wrapped = nn.DataParallel(torch.compile(model))
    (made,) = export(source(wrapped, x), tmp_path, "pt2")
    assert made.parity.tensors == 4
    program = torch.export.load(made.path)
    assert set(program.state_dict) == {"body.weight", "body.bias", "logits.weight", "logits.bias"}
    assert program.module()(x[:1]).keys() == {"logits", "features"}


def test_what_cannot_be_copied_is_named_and_costs_only_the_graph(tmp_path: Path, source) -> None:
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()
    with pytest.raises(CannotCarryError, match=r"cannot be copied for its graph: cannot pickle '_thread.lock'"):
        export(source(model, torch.ones(1, 2)), tmp_path, "pt2", "pth")
    assert (tmp_path / "m.pth").exists()


# -------------------------------------------------------------------- what it says


def test_without_an_example_or_a_graph_it_says_what_was_not_looked_at(tmp_path: Path, source) -> None:
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    (bare,) = export(source(nn.Linear(2, 2)), tmp_path, "pth")
    assert (bare.parity.note, bare.parity.outputs) == ("no forward pass: no example was given", ())
    (here,) = export(source(Branching(2, 2), torch.ones(2, 2)), tmp_path, "safetensors")
    assert here.parity.note.startswith("the forward pass was in this process: torch.export cannot make a graph")
    assert here.parity.outputs[0].largest == 0
    assert here.parity.batches == (2, 1, 3)


def test_a_batch_that_the_model_fixes_is_said(tmp_path: Path, source) -> None:
    class Fixed(nn.Linear):
        def forward(self, x):
            return super().forward(x).reshape(4, 2)

    (made,) = export(source(Fixed(2, 2), torch.ones(4, 2)), tmp_path, "pt2")
    assert made.notes == ("the graph takes batches of 4 only: the model or torch.export fixes their size",)
    assert made.parity.batches == (4,)

    steps_first = nn.GRU(2, 2)  # its first axis is time; the live model takes any, the graph does not
    made = export(source(steps_first, (torch.ones(5, 3, 2), torch.zeros(1, 3, 2))), tmp_path, "pth", "pt2")
    assert [each.parity.batches for each in made] == [(5,), (5,)]


class AnyInputs(nn.Linear):
    def forward(self, *args, times=1, **kwargs):
        (first, second), rest = args[0], args[1:]
        out = super().forward(first) * times + second + kwargs["bias"]["value"]
        return out if not rest else out + rest[0]


def test_inputs_in_containers_by_name_and_plain_numbers_are_dynamic_too(tmp_path: Path, source) -> None:
    x = torch.ones(3, 2)
    example = Example(([x, x + 1], x), {"times": 2, "bias": {"value": x}})
    for made in export(source(AnyInputs(2, 2), example), tmp_path, "safetensors", "pt2", "onnx"):
        assert made.parity.batches == (3, 1, 4), made.format
    names = [port.name for port in signature_of(source(AnyInputs(2, 2), example)).inputs]
    assert names == ["args_0_0", "args_0_1", "args_1", "bias.value"]


def test_the_signature_names_inputs_and_outputs_and_the_axis_of_the_batch(source) -> None:
    mine = source(TiedTransformer(), {"ids": torch.zeros(2, 6, dtype=torch.int64)})
    signature = signature_of(mine)
    assert [(p.name, p.dtype, p.shape) for p in signature.inputs] == [("ids", "int64", ("batch", 6))]
    assert [(p.name, p.dtype, p.shape) for p in signature.outputs] == [("output", "float32", ("batch", 6, 50))]


def test_what_users_give_as_an_example() -> None:
    array, tensor = np.ones((2, 3), np.float32), torch.ones(2, 3)
    assert as_example(None) is None
    assert torch.equal(as_example(array).args[0], tensor)
    assert len(as_example([tensor, tensor]).args) == 2
    assert as_example({"x": array}).kwargs.keys() == {"x"}
    assert isinstance(as_example({"x": {"deep": array}}).kwargs["x"]["deep"], torch.Tensor)


# -------------------------------------------------------------------- the files themselves


def test_graphs_hold_no_data_of_the_user_and_no_paths_of_the_machine(tmp_path: Path, source) -> None:
    secret = torch.full((2, 3, 8, 8), 12345.678)
    for made in export(source(Convolutions(), secret), tmp_path, "pt2", "onnx"):
        data = made.path.read_bytes()
        assert str(Path(__file__).parent).encode() not in data, made.format
        assert b"zoo.py" not in data
        assert b"pkg.torch" not in data, "what the exporter notes of itself"
        assert secret[:1, 0, 0].numpy().tobytes() not in data


def test_onnx_names_its_axes_inputs_and_outputs_states_its_opset_and_prints_nothing(tmp_path: Path, source, capfd):
    import onnx

    (made,) = export(source(trained(DictOut(), x := torch.randn(2, 4)), x), tmp_path, "onnx")
    assert capfd.readouterr().out == ""
    model = onnx.load(made.path)
    onnx.checker.check_model(model, full_check=True)
    ports = {
        port.name: [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim]
        for port in (*model.graph.input, *model.graph.output)
    }
    assert ports == {"features": ["batch", 4], "logits": ["batch", 3], "features_out": ["batch", 6]}
    assert [opset.version for opset in model.opset_import if not opset.domain] == [18]
    assert "opset 18" in made.notes


def test_external_data_is_chosen_from_the_shapes_alone() -> None:
    with torch.device("meta"):
        large = nn.Linear(25_000, 25_000)  # 2.5 GB that nobody allocates
    assert onnx_file.external(source_of(large, None))
    assert not onnx_file.external(source_of(nn.Linear(10, 10), None))


def test_a_file_with_external_data_is_proved_with_it_and_both_have_digests(
    tmp_path: Path, source, monkeypatch
) -> None:
    monkeypatch.setattr(onnx_file, "EXTERNAL_BYTES", 0)
    model = nn.Linear(300, 300)
    (made,) = export(source(model, torch.ones(2, 300)), tmp_path, "onnx")
    (data,) = made.companions
    assert data == tmp_path / "m.onnx.data"
    assert data.stat().st_size >= model.weight.nbytes > made.path.stat().st_size
    assert made.digests.keys() == {"m.onnx", "m.onnx.data"}
    assert made.parity.tensors == 2
    assert export(source(model, torch.ones(2, 300)), tmp_path, "onnx")[0].reused
    data.write_bytes(b"")
    assert not export(source(model, torch.ones(2, 300)), tmp_path, "onnx")[0].reused


def test_a_class_of_a_notebook_is_proved_with_the_weights_of_the_file(tmp_path: Path) -> None:
    """The class lives in ``__main__`` of a process that is gone when the file is opened."""
    script = """
        import torch, perdure
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 2)
            def forward(self, x):
                return self.layer(x).softmax(1)
        print(sorted(perdure.export(Net(), "out", "net", example=torch.ones(2, 3)).items()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "'net.pth'" in done.stdout.replace("out/", "'")
    proved = r"net\.\w+: .*proved in a fresh process, 2 tensors bit for bit, outputs (equal|within)"
    lines = re.findall(proved, done.stderr)
    assert len(lines) == 2


def test_a_wrong_example_does_not_cost_the_weights(tmp_path: Path, source) -> None:
    batch = [torch.zeros(2, 2), torch.zeros(2)]  # images and labels, as a loader gives them
    (made,) = export(source(nn.Linear(2, 2), batch), tmp_path, "pth")
    assert made.parity.note.startswith("no forward pass: the model does not run on the CPU with this example")


def test_extra_state_that_is_left_out_is_said(tmp_path: Path, source) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            raise AssertionError

    model = nn.Sequential(Counting(2, 2))
    (made,) = export(source(model), tmp_path, "pth")
    assert made.notes == ("the extra state of 0 is not in it: load strict=False",)
    fresh = nn.Sequential(Counting(2, 2))
    fresh.load_state_dict(torch.load(made.path, weights_only=True), strict=False)
    assert torch.equal(fresh[0].weight, model[0].weight)


# -------------------------------------------------------------------- on a real card


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_model_on_a_gpu_is_proved_on_the_cpu_and_stays_where_it_is(tmp_path: Path, source, dtype) -> None:
    model = Convolutions(norm=True).cuda().to(dtype)
    images = torch.randn(2, 3, 8, 8, device="cuda", dtype=dtype)
    torch.manual_seed(5)
    generator = torch.cuda.get_rng_state()
    for made in export(source(torch.compile(model), images), tmp_path, "pth", "safetensors", "pt2", "onnx"):
        assert made.parity.outputs[0].largest <= made.parity.outputs[0].tolerance * made.parity.outputs[0].scale
    assert torch.equal(torch.cuda.get_rng_state(), generator)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cuda"}
    opened = torch.load(tmp_path / "m.pth", weights_only=True)
    assert {tensor.device.type for tensor in opened.values()} == {"cpu"}
