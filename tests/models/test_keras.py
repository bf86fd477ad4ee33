"""Keras models as files, from both backends: real Keras, real TensorFlow, real onnxruntime, fresh processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.main import main
from perdure.core.errors import CorruptError, UnsafeFileError
from perdure.models import keras_process, keras_worker
from perdure.models.card import find_entry
from perdure.models.check import check_model

BACKENDS = ("tensorflow", "torch")
JOBS = ("all_formats", "classes", "refused", "names_and_state", "caught")

STRANGER = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np

card, inputs, expected = json.load(open("model-card.json")), np.load("../inputs.npz"), np.load("../outputs.npz")
gaps = {}
for file in card["models"][0]["files"]:
    words = {name: inputs[name] for name in inputs.files}
    exec("\\n".join(file["load"]), words)
    outputs = words["outputs"]
    if isinstance(outputs, list):
        outputs = dict(zip([port["name"] for port in card["models"][0]["signature"]["outputs"]], outputs))
    gaps[file["format"]] = max(float(np.abs(np.asarray(outputs[n]) - expected[n]).max()) for n in expected.files)
json.dump(gaps, open("../gaps.json", "w"))
"""


def run(backend: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process under a backend; Perdure and the helpers of these tests can be imported in it."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


class Made:
    """What the jobs of one backend left."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        jobs = JOBS if backend == "torch" else JOBS[:3]
        done = run(backend, folder, str(Path(__file__).with_name("keras_jobs.py")), str(folder), *jobs)
        self.stdout, self.stderr = done.stdout, done.stderr

    def __getitem__(self, job: str) -> Any:
        return json.loads((self.folder / f"{job}.json").read_text())


@pytest.fixture(scope="module", params=BACKENDS)
def made(request, tmp_path_factory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp(request.param))


only_torch = pytest.mark.parametrize("made", ["torch"], indirect=True)
only_tensorflow = pytest.mark.parametrize("made", ["tensorflow"], indirect=True)


def test_every_format_is_proved_against_the_live_model(made: Made) -> None:
    paths = made["all_formats"]["paths"]
    assert list(paths) == ["keras", "h5", "savedmodel", "onnx"]
    for format, path in paths.items():
        entry = find_entry(Path(path))
        assert entry is not None
        parity = entry.file["parity"]
        assert parity["where"] == "fresh process"
        assert parity["batches"] == [2, 1, 3]
        assert [each["name"] for each in parity["outputs"]] == ["kind", "size"]
        assert all(each["largest"] <= 1e-4 * each["scale"] for each in parity["outputs"])
        if format in ("keras", "h5"):  # the same backend computes the same
            assert all(each["largest"] == 0 for each in parity["outputs"])
    tensors = {name: find_entry(Path(path)).file["parity"]["tensors"] for name, path in paths.items()}
    assert tensors["h5"] == tensors["savedmodel"] == 16
    assert tensors["keras"] > 2 * tensors["h5"]  # with the optimizer
    assert tensors["onnx"] == 0


def test_an_export_leaves_the_live_model_and_every_generator_alone(made: Made) -> None:
    assert made["all_formats"]["same"]


def test_every_variable_of_the_optimizer_and_its_count_are_in_a_keras_file(made: Made) -> None:
    assert made["all_formats"]["steps"] == 1
    assert made["all_formats"]["equal"]


def test_a_file_that_is_there_and_proved_is_not_made_again(made: Made) -> None:
    assert made["all_formats"]["kept"]


def test_stdout_stays_clean(made: Made) -> None:
    assert made.stdout == ""


def test_what_the_legacy_format_loses_is_said(made: Made) -> None:
    entry = find_entry(Path(made["all_formats"]["paths"]["h5"]))
    assert entry is not None
    assert "no optimizer" in entry.file["notes"][0]
    assert "no optimizer, no step counter" in made.stderr


@only_tensorflow
def test_the_lines_on_the_card_run_in_a_strangers_process(made: Made) -> None:
    (made.folder / "stranger.py").write_text(STRANGER)
    run(made.backend, made.folder / "all", str(made.folder / "stranger.py"))
    gaps = json.loads((made.folder / "gaps.json").read_text())
    assert list(gaps) == ["keras", "h5", "savedmodel", "onnx"]
    assert max(gaps.values()) < 1e-5


def test_a_class_that_nobody_can_import_is_proved_by_its_weights_and_said(made: Made) -> None:
    entry = find_entry(Path(made["classes"]["unknown"]["keras"]))
    assert entry is not None
    assert entry.file["parity"]["tensors"] == 6
    assert entry.file["parity"]["outputs"] == []
    assert "register_keras_serializable" in entry.file["parity"]["note"]


def test_a_class_that_can_be_imported_is_proved_by_its_outputs(made: Made) -> None:
    entry = find_entry(Path(made["classes"]["known"]["keras"]))
    assert entry is not None
    assert entry.file["parity"]["outputs"][0]["largest"] == 0
    assert entry.file["notes"] == ["to load it, first import its classes: keras_net"]


def test_the_graph_of_a_class_of_ones_own_needs_the_backend_that_can_write_it(made: Made) -> None:
    native, other = dict(made["classes"]["unknown"]), made["classes"]["other"]
    assert list(native) == ["keras", {"tensorflow": "savedmodel", "torch": "onnx"}[made.backend]]
    assert len(find_entry(Path(list(native.values())[1])).file["parity"]["outputs"]) == 1
    assert other["error"] == "CannotCarryError"
    assert f"under the {made.backend} backend" in other["words"]
    assert {"tensorflow": '"keras" or "savedmodel"', "torch": '"keras" or "onnx"'}[made.backend] in other["words"]


def test_what_a_format_cannot_hold_is_said_with_the_one_that_can(made: Made) -> None:
    found = {**made["classes"], **made["refused"]}
    assert found["h5"]["error"] == "CannotCarryError"
    assert "Sequential and functional models only" in found["h5"]["words"]
    assert 'use the format "keras"' in found["h5"]["words"]
    assert found["lambda"]["error"] == "CannotCarryError"
    assert "double" in found["lambda"]["words"]
    assert found["bfloat16"]["error"] == "CannotCarryError"
    assert "half" in found["bfloat16"]["words"]
    assert found["not built"]["error"] == "CannotCarryError"
    assert "never called" in found["not built"]["words"]
    assert found["no example"]["error"] == "ConfigError"
    assert found["pth"]["error"] == "ConfigError"
    assert "'keras' or 'h5'" in found["pth"]["words"]
    assert not list((made.folder / "refused").glob("m*"))


@only_torch
def test_a_file_of_other_weights_is_caught(made: Made) -> None:
    assert "kernel: other bytes" in made["caught"]["keras"]
    assert "answers otherwise than the live one" in made["caught"]["onnx"]


@only_torch
def test_long_names_of_layers_fit_into_the_legacy_format(made: Made) -> None:
    assert made["names_and_state"]["whole"]
    assert sum(len(row.name) for row in check_model(made.folder / "long.h5").tensors) > 64_000


@only_torch
def test_a_model_with_a_memory_keeps_it(made: Made) -> None:
    assert made["names_and_state"]["same"]
    assert made["names_and_state"]["batches"] == [4]  # its batch is fixed


@only_tensorflow
def test_check_model_reads_what_keras_writes(made: Made, monkeypatch) -> None:
    paths = made["all_formats"]["paths"]
    keras, h5, onnx = (check_model(paths[name]) for name in ("keras", "h5", "onnx"))
    assert (keras.kind, h5.kind, onnx.kind) == ("keras", "h5", "onnx")
    assert keras.parameters == h5.parameters == 681
    assert keras.card == "as model-card.json describes it"
    assert [(port.name, port.dtype, port.shape) for port in keras.signature.inputs] == [
        ("image", "float32", ("batch", 8, 8, 1)),
        ("tokens", "int32", ("batch", 5)),
    ]
    assert any("legacy" in note for note in h5.notes)
    assert onnx.signature.inputs[0].shape == ("batch", 8, 8, 1)


@only_tensorflow
@pytest.mark.parametrize("format", ["keras", "savedmodel"])
def test_check_model_runs_what_keras_writes(made: Made, format: str, capsys) -> None:
    path = made["all_formats"]["paths"][format]
    shapes = ["--input-shape", "2,8,8,1", "--input-shape", "2,5:int32"]
    assert main(["check-model", path, "--json", *shapes]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sorted(each["shape"][-1] for each in answer["forward"]) == [1, 2]
    assert all(each["finite"] for each in answer["forward"])
    assert answer["safe"]
    assert answer["parameters"] == 681


@only_tensorflow
@pytest.mark.parametrize("format", ["keras", "h5"])
@pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
def test_a_cut_file_is_an_error(made: Made, tmp_path: Path, format: str, part: float) -> None:
    data = Path(made["all_formats"]["paths"][format]).read_bytes()
    (tmp_path / f"m.{format}").write_bytes(data[: int(len(data) * part)])
    with pytest.raises(CorruptError):
        check_model(tmp_path / f"m.{format}")


@only_tensorflow
def test_a_flipped_bit_is_an_error(made: Made, tmp_path: Path) -> None:
    data = bytearray(Path(made["all_formats"]["paths"]["keras"]).read_bytes())
    data[len(data) // 2] ^= 8
    (tmp_path / "m.keras").write_bytes(data)
    with pytest.raises(CorruptError, match="checksum"):
        check_model(tmp_path / "m.keras")
    changed = Path(made["all_formats"]["paths"]["savedmodel"])
    copy = tmp_path / changed.name
    shutil.copytree(changed, copy)
    shutil.copy(changed.parent / "model-card.json", tmp_path)
    (copy / "variables" / "variables.data-00000-of-00001").write_bytes(b"x")
    with pytest.raises(CorruptError, match="is not the file that model-card.json describes"):
        check_model(copy)


LAMBDA = {"class_name": "Lambda", "config": {"name": "sly", "function": {"class_name": "__lambda__", "config": {}}}}


def described(folder: Path, *layers: dict) -> Path:
    """A .keras file of these layers, without weights."""
    import h5py

    path = folder / "m.keras"
    with h5py.File(folder / "empty.h5", "w"):
        pass
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.0.0"}')
        archive.writestr("config.json", json.dumps({"class_name": "Sequential", "config": {"layers": layers}}))
        archive.write(folder / "empty.h5", "model.weights.h5")
    return path


def test_python_code_in_a_keras_file_needs_trust(tmp_path: Path) -> None:
    path = described(tmp_path, LAMBDA)
    with pytest.raises(UnsafeFileError, match="its layer sly is a Lambda with Python code"):
        check_model(path)
    assert not check_model(path, trust=True).safe


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ({"module": "evil", "class_name": "Layer", "config": {}}, "evil.Layer"),
        ({"module": "builtins", "class_name": "function", "config": "exec"}, "builtins.exec"),
        ({"module": "keras.utils", "class_name": "function", "config": "get_file"}, "keras.utils.get_file"),
        ({"class_name": "Net", "registered_name": "own>Net", "config": {}}, "own>Net"),
    ],
)
def test_nothing_outside_of_keras_is_imported_for_a_stranger(tmp_path: Path, layer: dict, name: str) -> None:
    (tmp_path / "evil.py").write_text("import os; os.mkdir('ran')")
    path = described(tmp_path, layer)
    assert any(name in note for note in check_model(path).notes)
    with pytest.raises(UnsafeFileError, match=f"Keras imports {name}"):
        check_model(path, input_shapes=["1,4"])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "layer",
    [3, None, {"class_name": "Lambda"}, {"class_name": "Lambda", "config": "x"}, {"class_name": ["Lambda"]},
     {"class_name": "InputLayer", "config": {"batch_shape": 7}}],
)  # fmt: skip
def test_a_description_that_says_nothing_is_no_crash(tmp_path: Path, layer) -> None:
    assert check_model(described(tmp_path, layer)).what == "a Keras model, Sequential"


def test_a_graph_that_calls_python_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "sm").mkdir()
    (tmp_path / "sm" / "saved_model.pb").write_bytes(b"\x08\x01 EagerPyFunc")
    with pytest.raises(UnsafeFileError, match="operator"):
        check_model(tmp_path / "sm")


def test_a_process_that_dies_or_hangs_is_an_error_in_words(tmp_path: Path, monkeypatch) -> None:
    script = tmp_path / "child.py"
    monkeypatch.setattr(keras_worker, "_SCRIPT", script)
    monkeypatch.setattr(keras_worker, "LIMIT_S", 0.5)
    script.write_text("import os, signal; input(); os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(CorruptError, match="died of SIGSEGV"):
        keras_process.ask({"do": "keras", "file": "m.keras"}, [], "torch")
    script.write_text("import time, subprocess; subprocess.Popen(['sleep', '987654']); time.sleep(1000)")
    with pytest.raises(CorruptError, match="did not answer within"):
        keras_process.ask({"do": "keras", "file": "m.keras"}, [], "torch")
    left = subprocess.run(["pgrep", "-f", "sleep 987654"], capture_output=True, text=True).stdout
    assert left == ""
