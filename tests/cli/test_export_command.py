"""``perdure export``: what comes out of a checkpoint is what the live run would have given, on any machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

import perdure
from models.places import HuggingFace, Place
from perdure.checkpoint.reader import read_manifest
from perdure.cli.main import main

PERDURE = [sys.executable, "-c", "import sys; from perdure.cli.main import main; sys.exit(main())"]

BUILDER = """
import torch
from torch import nn


class Net(nn.Sequential):
    def forward(self, x):
        print("forward")
        return super().forward(x)


def build_model():
    print("building")
    return Net(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))


if __name__ == "__main__":
    raise SystemExit("this is the training")
"""


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))


class Trained:
    """A finished run, and what it left in memory."""

    def __init__(self, root: Path | None = None, *, averaged: bool = True, steps: int = 3) -> None:
        torch.manual_seed(1)
        self.model = net()
        self.swa = AveragedModel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        with perdure.Run("digits", root, save_every="1 step", seed=0) as self.run:
            self.run.track(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
            if averaged:
                self.run.track(swa=self.swa)
            for _ in self.run.steps(steps):
                self.optimizer.zero_grad()
                self.model(torch.randn(8, 4)).square().mean().backward()
                self.optimizer.step()
                self.scheduler.step()
                self.swa.update_parameters(self.model)
                self.run.log(loss=0.25)

    def outputs(self, inputs: torch.Tensor, model: nn.Module | None = None) -> torch.Tensor:
        with torch.no_grad():
            return (model or self.model).eval()(inputs)


def command(*arguments: object) -> int:
    return main(["export", *map(str, arguments)])


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


CARD = {"model-card.json", "README.md"}


# ---------------------------------------------------------------- what is made


def test_a_run_gives_the_very_files_that_the_live_run_gives(tmp_path: Path, capsys) -> None:
    trained = Trained()
    live = {key: path.read_bytes() for key, path in trained.run.export().items()}
    assert list(live) == ["pth", "safetensors", "swa.pth", "swa.safetensors"]
    capsys.readouterr()
    assert command("digits", "--out", tmp_path / "out") == 0
    captured = capsys.readouterr()
    for line, format in zip(captured.out.splitlines(), ("pth", "safetensors"), strict=True):
        path = tmp_path / "out" / f"digits-step-000000003.{format}"
        assert line.startswith(f"{path}: ")
        assert "proved in a fresh process, 9 tensors bit for bit" in line
        assert path.read_bytes() == live[format]
    assert "model: live weights of step 3" in captured.err
    assert "proved" not in captured.err  # said once, on stdout
    assert "the checkpoint also holds an average of model, left out: --average swa" in captured.err
    assert names_in(tmp_path / "out") == CARD | {"digits-step-000000003.pth", "digits-step-000000003.safetensors"}
    assert command("digits", "--average", "swa", "--format", "pth", "--out", tmp_path / "swa") == 0
    assert (tmp_path / "swa/digits-swa-step-000000003.pth").read_bytes() == live["swa.pth"]


def test_a_second_export_finds_the_proved_files_of_the_first(capsys) -> None:
    perdure.save("saved", model=net())
    assert command("saved", "--format", "pth") == 0
    stamp = Path("export/model.pth").stat().st_mtime_ns
    assert "proved in a fresh process" in capsys.readouterr().out
    assert command("saved", "--format", "pth") == 0
    assert "was there already, proved" in capsys.readouterr().out
    assert Path("export/model.pth").stat().st_mtime_ns == stamp


def test_graphs_come_from_a_script_in_the_working_folder_and_stdout_is_one_document(tmp_path: Path) -> None:
    trained = Trained(tmp_path / "elsewhere")
    (tmp_path / "train.py").write_text(BUILDER)
    inputs = torch.randn(5, 4)
    torch.save((inputs,), "example.pt")
    done = subprocess.run(
        [*PERDURE, "export", "elsewhere/digits", "--model", "train:build_model", "--example",
         "example.pt", "--average", "swa", "--name", "net", "--json",
         *(word for format in ("pth", "pt2", "onnx") for word in ("--format", format))],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["run"], document["step"], document["published"]) == ("digits", 3, None)
    (model,) = document["models"]
    assert (model["module"], model["weights"]) == ("model", "swa")
    assert model["notes"][0] == "swa is averaged over 3 updates"
    files = {file["format"]: file for file in model["files"]}
    folder = Path("runs/digits/export")
    assert {name: file["path"] for name, file in files.items()} == {
        name: str(tmp_path / folder / f"digits-net-swa-step-000000003.{name}") for name in ("pth", "pt2", "onnx")
    }
    want = trained.outputs(inputs, trained.swa.module)
    program = torch.export.load(files["pt2"]["path"]).module()
    torch.testing.assert_close(program(inputs), want)
    torch.testing.assert_close(program(inputs[:2]), want[:2])
    assert files["onnx"]["parity"]["outputs"][0]["largest"] < 1e-5
    assert files["pth"]["parity"]["batches"]
    card = json.loads((tmp_path / document["card"]).read_text())["models"][0]
    assert (card["run"], card["step"], card["weights"], card["metrics"]) == ("digits", 3, "swa", {"loss": 0.25})


def test_one_of_several_models_is_named_in_the_middle(tmp_path: Path, capsys) -> None:
    nets = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}
    perdure.save("saved", nets=nets)
    assert command("saved", "--format", "safetensors", "--out", "all") == 0
    assert names_in(Path("all")) == CARD | {"model-nets.g.safetensors", "model-nets.d.safetensors"}
    assert torch.equal(load_file("all/model-nets.d.safetensors")["weight"], nets["d"].weight)
    assert command("saved", "--format", "safetensors", "--only", "nets.d") == 0
    assert names_in(Path("export")) == CARD | {"model-nets.d.safetensors"}


def test_files_of_a_checkpoint_from_elsewhere_go_below_our_own_folder_of_runs(tmp_path: Path) -> None:
    Trained(tmp_path / "input")
    older = sorted((tmp_path / "input/digits/checkpoints").iterdir())[0]
    assert command(older, "--format", "pth", "--root", tmp_path / "mine") == 0
    assert names_in(tmp_path / "mine/digits/export") == CARD | {"digits-step-000000002.pth"}
    assert not (tmp_path / "input/digits/export").exists()


def test_the_classic_dict_lets_a_hand_written_loop_go_on(tmp_path: Path) -> None:
    trained = Trained(averaged=False)
    assert command("digits", "--format", "pth-classic", "--out", "out") == 0
    found = torch.load("out/digits-step-000000003-classic.pth", weights_only=True)
    live = trained.run.export("live", formats=["pth-classic"])["pth-classic"]
    of_live = torch.load(live, weights_only=True)
    assert list(found) == list(of_live)
    assert found["optimizer_state_dict"]["param_groups"] == of_live["optimizer_state_dict"]["param_groups"]
    assert list(found["optimizer_state_dict"]["state"]) == list(of_live["optimizer_state_dict"]["state"])
    assert (found["epoch"], found["step"], found["metrics"]) == (0, 3, {"loss": 0.25})
    model = net()
    model.load_state_dict(found["model_state_dict"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(found["optimizer_state_dict"])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scheduler.load_state_dict(found["scheduler_state_dict"])
    inputs = torch.randn(8, 4)
    for each, trainer, plan in (
        (model, optimizer, scheduler),
        (trained.model, trained.optimizer, trained.scheduler),
    ):
        torch.manual_seed(3)
        trainer.zero_grad()
        each.train()(inputs).square().mean().backward()
        trainer.step()
        plan.step()
    assert all(map(torch.equal, model.state_dict().values(), trained.model.state_dict().values()))
    assert scheduler.get_last_lr() == trained.scheduler.get_last_lr()


def test_a_damaged_newest_checkpoint_is_passed_over_and_the_name_says_which_was_taken(capsys) -> None:
    Trained()
    newest = Path("runs/digits/checkpoints/step-000000003")
    entry = next(each for each in read_manifest(newest).entries if each.name == "model/0.weight")
    data = bytearray(Path("runs/digits", entry.file).read_bytes())
    data[entry.offset] ^= 1
    Path("runs/digits", entry.file).write_bytes(data)
    assert command("digits", "--format", "pth") == 0
    captured = capsys.readouterr()
    assert "note: step-000000003 was passed over" in captured.err
    assert "digits-step-000000002.pth: " in captured.out
    assert command(newest) == 1
    assert "entry model/0.weight" in capsys.readouterr().err


def test_what_one_format_cannot_hold_costs_neither_the_others_nor_the_exit_code(capsys) -> None:
    Path("mod_complex.py").write_text("import torch\ndef build():\n    return torch.nn.Linear(2, 2).double()\n")
    model = nn.ParameterDict({"wave": torch.zeros(3, dtype=torch.complex128)})
    perdure.save("saved", model=model)
    assert command("saved", "--format", "pth", "--format", "safetensors") == 1
    error = capsys.readouterr().err
    assert "cannot hold wave: it is a complex128 tensor" in error
    assert "hint: " in error


# ---------------------------------------------------------------- what is refused


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    perdure.save("saved", model=net())
    (tmp_path / "small.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(4, 2)\n")
    return tmp_path


MISTAKES: dict[str, tuple[list[str], int, str]] = {
    "no such run": (["digts"], 1, "there is no run 'digts'"),
    "no checkpoint": (["empty"], 1, "there is no checkpoint at empty"),
    "no such format": (["saved", "--format", "onnxx"], 2, "no such model format: 'onnxx'"),
    "a graph without a builder": (["saved", "--format", "onnx"], 2, "--model train:build_model"),
    "a graph without an example": (["saved", "--format", "pt2", "--model", "small:build"], 1, "the model of small:build is not"),
    "another model": (["saved", "--model", "small:build"], 1, "weight is in it ((2, 4)) and not in the checkpoint"),
    "no such builder": (["saved", "--model", "smal:build"], 2, "there is no module 'smal' here"),
    "two examples": (["saved", "--example", "x.npy", "--input-shape", "1,2"], 2, "say the same thing"),
    "no shape": (["saved", "--input-shape", "1x2"], 2, "no input shape: '1x2'"),
    "no example there": (["saved", "--example", "x.npy"], 2, "the example x.npy cannot be read: No such file"),
    "no such module": (["saved", "--only", "modle"], 2, "did you mean 'model'?"),
    "no such average": (["saved", "--average", "ema"], 2, "there is no average 'ema'"),
    "no place": (["saved", "--push", "ftp://x"], 2, "'ftp://x' is no place to publish to"),
    "no name": (["saved", "--name", "../up"], 2, "the stem of a file name"),
    "nothing": ([], 2, "missing argument"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_in_a_line_with_a_hint_and_nothing_is_written(saved: Path, capsys, mistake: str) -> None:
    arguments, code, words = MISTAKES[mistake]
    (saved / "empty").mkdir()
    before = sorted(saved.rglob("*"))
    assert command(*arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "error: " in captured.err
    assert "hint: " in captured.err
    assert "Traceback" not in captured.err
    assert [path for path in sorted(saved.rglob("*")) if "__pycache__" not in path.parts] == before


def test_a_builder_and_several_models_want_a_choice(tmp_path: Path, capsys) -> None:
    perdure.save("saved", a=nn.Linear(4, 2), b=nn.Linear(4, 2))
    Path("one.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(4, 2)\n")
    assert command("saved", "--model", "one:build") == 2
    assert "hint: choose one: --only a" in capsys.readouterr().err


def test_the_help_loads_no_framework() -> None:
    code = (
        "import sys\nfrom perdure.cli.main import main\nassert main(['export', '--help']) == 0\n"
        "print({'torch', 'numpy', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "--input-shape" in done.stdout


def test_without_torch_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from perdure.cli.main import main; sys.exit(main(['export', 'x']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: perdure export needs torch, which is not installed\nhint: install PyTorch"
    )


# ---------------------------------------------------------------- publishing


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    place = Place(HuggingFace)
    monkeypatch.setenv("HF_ENDPOINT", place.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")  # a storage service that is not there
    yield place
    place.close()


def test_published_files_are_listed_back_with_their_card(hub: Place, tmp_path: Path) -> None:
    perdure.save("saved", model=net())
    done = subprocess.run(
        [*PERDURE, "export", "saved", "--format", "safetensors", "--push", "hf://user/repo"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(hub.files) == {"model.safetensors", "model-card.json"}
    assert hub.files["model.safetensors"] == Path("export/model.safetensors").read_bytes()
    assert "2 files" in done.stdout.splitlines()[-1]
    assert "hf_secret" not in done.stdout + done.stderr


# ---------------------------------------------------------------- Keras


KERAS_SCRIPT = """
import keras


def build_model():
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    return keras.Sequential(layers)
"""
KERAS_TRAINING = """
import numpy as np, perdure, train
model = train.build_model()
model.compile("adam", "mse")
model.fit(np.random.rand(20, 4), np.random.rand(20, 2), verbose=0)
perdure.save("saved", model=model)
inputs = np.random.rand(3, 4).astype("float32")
np.savez("inputs.npz", inputs)
print(abs(model.predict(inputs, verbose=0)).max())
"""


@pytest.mark.slow
def test_a_keras_model_on_torch_comes_out_as_a_keras_file(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.py").write_text(KERAS_SCRIPT)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    export = ["export", "saved", "--model", "train:build_model", "--example", "inputs.npz", "--format", "keras"]
    said = []
    for words in ([PERDURE[0], "-c", KERAS_TRAINING], [*PERDURE, *export, "--json"]):
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(json.loads(done.stdout))
    (file,) = said[1]["models"][0]["files"]
    assert (file["format"], file["path"]) == ("keras", "export/model.keras")
    assert file["parity"]["tensors"] == 8
    assert file["parity"]["outputs"][0]["scale"] == pytest.approx(said[0], rel=1e-3)
