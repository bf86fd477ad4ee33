"""``--model module:function``: the model is built anew, filled bit for bit, and every mistake is said in plain words."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import perdure
from perdure.core.errors import ConfigError, StateMismatchError
from perdure.models.builder import build
from perdure.models.filling import fill
from perdure.models.from_checkpoint import read_weights

HEAD = "import torch\nfrom torch import nn\n"


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Writes a module of a name of its own into the working folder; gives that name."""

    def write(code: str, name: str = "") -> str:
        name = name or f"script_{abs(hash(request.node.name))}"
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def build_here(name: str) -> nn.Module:
    return build(name, Path.cwd())


# ---------------------------------------------------------------- the function


def test_the_function_is_found_in_the_working_folder_and_its_prints_stay_off_stdout(script, capsys) -> None:
    name = script(
        f"{HEAD}print('loading')\ndef build_model():\n    print('building')\n    return nn.Linear(2, 1)\n"
    )
    path = list(sys.path)
    model = build_here(f"{name}:build_model")
    assert isinstance(model, nn.Linear)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loading\nbuilding\n")
    assert sys.path == path


def test_a_class_and_a_function_of_a_class_will_do(script) -> None:
    name = script(f"{HEAD}class Net(nn.Linear):\n    def __init__(self, n=3):\n        super().__init__(n, 1)\n"
                  "    @staticmethod\n    def small():\n        return Net(2)\n")  # fmt: skip
    assert build_here(f"{name}:Net").in_features == 3
    assert build_here(f"{name}:Net.small").in_features == 2


def test_wrappers_are_taken_off_at_any_depth(script) -> None:
    name = script(
        f"{HEAD}def build_model():\n    inner = nn.DataParallel(nn.Linear(2, 2))\n"
        "    return torch.compile(nn.DataParallel(nn.Sequential(inner, nn.Linear(2, 1))))\n"
    )
    assert list(build_here(f"{name}:build_model").state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_model_made_on_the_meta_device_gets_memory(script) -> None:
    name = script(f"{HEAD}def build_model():\n    with torch.device('meta'):\n        return nn.Linear(2, 1)\n")
    assert build_here(f"{name}:build_model").weight.device.type == "cpu"


@pytest.mark.parametrize(
    ("code", "what", "hint"),
    [
        ("def make():\n    return nn.Linear(1, 1)\n", "has no function 'build_model'", "there are: make"),
        ("def build_modle():\n    return 1\n", "has no function", "did you mean 'build_modle'?"),
        ("build_model = 3\n", "has no function 'build_model'", "write a function in"),
        ("def build_model():\n    return 3\n", "of type int and no torch.nn.Module", "return the model"),
        (
            "def build_model(size):\n    return 3\n",
            "failed: TypeError: build_model() missing 1 required",
            "without",
        ),
        (
            "def build_model():\n    raise RuntimeError('no CUDA\\nmore')\n",
            "failed: RuntimeError: no CUDA (",
            ".py:4)",
        ),
        ("import not_installed_here\n", "cannot be imported: ModuleNotFoundError: No module named", ".py:3)"),
        ("def build_model(:\n", "cannot be imported: SyntaxError: invalid syntax (", ".py:3)"),
        ("raise SystemExit(3)\n", "ends the program when it is imported (exit code 3)", "__main__"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(script, code: str, what: str, hint: str) -> None:
    name = script(HEAD + code)
    with pytest.raises(ConfigError) as caught:
        build_here(f"{name}:build_model")
    assert what in str(caught.value)
    assert hint in str(caught.value)
    assert "\n" not in caught.value.what


@pytest.mark.parametrize("name", ["train", "train:", ":build", "", "train.py"])
def test_a_name_without_a_function_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--model is module:function.*\n.*train:build_model"):
        build_here(name)


@pytest.mark.parametrize("name", ["nowhere:build", "nowhere.deep:build"])
def test_a_module_that_is_not_there_is_not_confused_with_one_that_fails(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no module 'nowhere.*\n.*in the folder of nowhere.py"):
        build_here(name)


RUNS = [
    "import perdure\nwith perdure.Run('digits') as run:\n    pass\n",
    "from perdure import Run\nfor _ in range(1):\n    run = Run('digits')\n",
    "import perdure as p\ndef train():\n    p.Run('digits')\ndef main():\n    train()\nmain()\n",
]


@pytest.mark.parametrize("code", RUNS)
def test_a_script_that_would_train_when_imported_is_refused_before_it_runs(script, code: str) -> None:
    name = script(f"{HEAD}open('ran', 'w').close()\ndef build_model():\n    return nn.Linear(1, 1)\n{code}")
    with pytest.raises(ConfigError, match=r"starts a run when it is imported\n.*__main__"):
        build_here(f"{name}:build_model")
    assert not Path("ran").exists()


def test_a_script_that_trains_as_a_program_only_is_fine(script) -> None:
    code = (
        f"import perdure\n{HEAD}def build_model():\n    return nn.Linear(1, 1)\ndef main():\n    perdure.Run('x')\n"
    )
    name = script(f"{code}if __name__ == '__main__':\n    main()\n    perdure.Run('y')\n")
    assert isinstance(build_here(f"{name}:build_model"), nn.Linear)
    assert not Path("runs").exists()


def test_a_run_of_another_library_is_none_of_ours(script) -> None:
    name = script(f"{HEAD}class Run: ...\nrun = Run()\ndef build_model():\n    return nn.Linear(1, 1)\n")
    assert isinstance(build_here(f"{name}:build_model"), nn.Linear)


# ---------------------------------------------------------------- filling it


def filled(model: nn.Module, fresh: nn.Module, **choice: object) -> nn.Module:
    """``fresh`` with the weights of ``model``, on the way through a checkpoint."""
    perdure.save("saved", model=model)
    fill(fresh, read_weights(Path("saved"), **choice).weights[0], "train:build_model")
    return fresh


def assert_alike(one: nn.Module, other: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        for got, want in zip(_tensors(one.eval()(*inputs)), _tensors(other.eval()(*inputs)), strict=True):
            assert torch.equal(got, want)


def _tensors(value: object) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for item in value for t in _tensors(item)]


def test_a_filled_model_computes_what_the_trained_one_does() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))

    model = make()
    model(torch.randn(8, 4) + 3)  # moves the statistics
    assert_alike(filled(model, make()), model, torch.randn(5, 4))


def test_types_and_layout_are_those_of_the_checkpoint() -> None:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last).bfloat16()
    fresh = filled(model, nn.Conv2d(2, 3, 3))
    assert fresh.weight.dtype == torch.bfloat16
    assert fresh.weight.is_contiguous(memory_format=torch.channels_last)


def test_recurrent_nets_use_the_filled_weights() -> None:
    model = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    assert_alike(filled(model, nn.LSTM(3, 4, num_layers=2, bidirectional=True)), model, torch.randn(5, 2, 3))


def test_lazy_modules_take_their_shapes_from_the_checkpoint() -> None:
    model = nn.Sequential(nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d())
    images = torch.randn(2, 1, 5, 5)
    model(images)
    assert_alike(filled(model, nn.Sequential(nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d())), model, images)


class Tied(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_stay_tied_where_the_function_ties_them(tied: bool) -> None:
    model, tokens = Tied(tied=True), torch.tensor([[0, 3]])
    fresh = filled(model, Tied(tied=tied))
    assert (fresh.head.weight is fresh.embed.weight) == tied
    assert_alike(fresh, model, tokens)


def test_weights_that_training_untied_do_not_go_into_a_tied_model() -> None:
    with pytest.raises(StateMismatchError, match=r"embed\.weight and head\.weight are one tensor in it and two in"):
        filled(Tied(tied=False), Tied(tied=True))


class Ramp(nn.Module):
    """A forward pass that sees more than a state_dict: an attribute, a hidden buffer, extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.own = 0.0, SimpleNamespace(shift=1.0)
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.alpha + self.hidden + self.own.shift

    def get_extra_state(self) -> dict[str, float]:
        return {"shift": self.own.shift}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.own.shift = state["shift"]


def test_what_training_changed_beside_the_weights_goes_into_the_model_too() -> None:
    model = Ramp()
    with perdure.Run("ramp", "runs") as run:
        run.track(model=model)
        for _ in run.steps(1):
            model.alpha, model.own.shift = 0.5, 3.0
            model.hidden += 2
    fresh = Ramp()
    fill(fresh, read_weights(Path("runs/ramp")).weights[0], "train:build_model")
    assert_alike(fresh, model, torch.tensor([1.0, 2.0]))


def test_another_model_is_refused_with_every_difference_and_left_as_it_was() -> None:
    fresh = nn.ModuleDict({"a": nn.Linear(2, 3), "c": nn.Linear(1, 1, bias=False)})
    before = fresh["a"].weight.detach().clone()
    with pytest.raises(StateMismatchError) as caught:
        filled(nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(1, 1, bias=False)}), fresh)
    assert caught.value.differences == (
        "b.weight is in the checkpoint ((1, 1)) and not in it",
        "c.weight is in it ((1, 1)) and not in the checkpoint",
        "a.weight is of shape (2, 2) in the checkpoint and (3, 2) in it",
        "a.bias is of shape (2,) in the checkpoint and (3,) in it",
    )
    assert "train:build_model" in caught.value.what
    assert torch.equal(fresh["a"].weight, before)
