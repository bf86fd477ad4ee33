"""perdure check-model: a damaged file is never taken for a whole one, and nothing in a stranger's file is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import perdure
from perdure.cli.main import main
from perdure.core.digests import digest
from perdure.core.errors import ConfigError, CorruptError, PerdureError, UnsafeFileError
from perdure.models.card import write_card
from perdure.models.check import check_model
from perdure.models.formats import Exported, Facts
from perdure.models.program_safety import why_unsafe


class Evil:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, scale=1.0):
        return {"logits": self.head(self.norm(self.embed(tokens).mean(1)) * scale), "seen": tokens}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """One small model in each format that torch can write."""
    folder = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    model = Tied().eval()
    torch.save(model.state_dict(), folder / "model.pth")
    torch.save(model.state_dict(), folder / "old.pth", _use_new_zipfile_serialization=False)
    torch.save(model, folder / "whole.pth")
    save_file({k: v.clone() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)).eval()
    images = torch.randn(2, 1, 8, 8)
    program = torch.export.export(net, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, folder / "net.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(net).save(folder / "script.pt")
    onnx.save(_small_onnx(), folder / "small.onnx")
    return folder


def _small_onnx():
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "weight")
    node = helper.make_node("MatMul", ["images", "weight"], ["logits"])
    take = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 4])
    give = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph([node], "small", [take], [give], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


# what is in it


def test_a_state_dict_is_told_tensor_by_tensor(made: Path) -> None:
    report = check_model(made / "model.pth")
    assert report.ok
    assert report.kind == "pth"
    assert report.what == "a state_dict, written by torch.save"
    assert report.safe
    rows = {row.name: row for row in report.tensors}
    assert rows["embed.weight"].shape == (20, 8)
    assert rows["embed.weight"].dtype == "float32"
    assert rows["head.weight"].same_as == "embed.weight"
    assert report.parameters == 20 * 8 + 8 + 8  # the tie once, and no running statistics
    assert report.dtypes == {"float32": 352, "int64": 1}
    assert report.digest == f"sha256:{_sha256(made / 'model.pth')}"


@pytest.mark.parametrize("name", ["model.pth", "old.pth", "model.safetensors"])
def test_the_same_weights_are_told_alike_in_every_file(made: Path, name: str) -> None:
    rows = check_model(made / name).tensors
    assert sorted((r.name, r.dtype, r.shape, r.same_as) for r in rows if not r.same_as) == sorted(
        (r.name, r.dtype, r.shape, r.same_as) for r in check_model(made / "model.pth").tensors if not r.same_as
    )
    assert sum(bool(row.same_as) for row in rows) == 1  # the tie shows also where it is stored as two copies


def test_a_hand_written_checkpoint_counts_its_model_and_shows_what_else_is_there(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    content = {"epoch": 7, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save(content, tmp_path / "last.pth")
    report = check_model(tmp_path / "last.pth")
    assert report.parameters == 10
    assert report.facts == {"epoch": 7}
    assert "model_state_dict, optimizer_state_dict" in report.what
    assert "optimizer_state_dict.state.0.exp_avg" in [row.name for row in report.tensors]


def test_a_lightning_checkpoint_is_called_one(tmp_path: Path) -> None:
    content = {
        "pytorch-lightning_version": "2.5.0",
        "epoch": 1,
        "best": float("nan"),
        "state_dict": nn.Linear(2, 2).state_dict(),
    }
    torch.save(content, tmp_path / "last.ckpt")
    report = check_model(tmp_path / "last.ckpt")
    assert report.what.startswith("a Lightning checkpoint")
    json.dumps(report.to_dict(), allow_nan=False)
    assert report.parameters == 6


def test_the_prefixes_of_wrappers_are_pointed_out(tmp_path: Path) -> None:
    torch.save({f"module.{k}": v for k, v in nn.Linear(2, 2).state_dict().items()}, tmp_path / "ddp.pth")
    assert any("module." in note for note in check_model(tmp_path / "ddp.pth").notes)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint8],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (70,)])
def test_every_type_and_shape_can_be_looked_at(tmp_path: Path, dtype: torch.dtype, shape) -> None:
    tensor = torch.ones(shape).to(dtype)
    torch.save({"a": tensor}, tmp_path / "m.pth")
    (row,) = check_model(tmp_path / "m.pth").tensors
    assert (row.dtype, row.shape, row.values, row.bytes) == (
        str(dtype).removeprefix("torch."), tuple(shape), tensor.numel(), tensor.nbytes,
    )  # fmt: skip


def test_nan_is_wrong_and_inf_is_told(tmp_path: Path) -> None:
    torch.save({"a": torch.tensor([1.0, float("nan"), float("nan")]), "b": torch.ones(3)}, tmp_path / "nan.pth")
    torch.save({"mask": torch.tensor([0.0, float("-inf")], dtype=torch.bfloat16)}, tmp_path / "inf.pth")
    bad, good = check_model(tmp_path / "nan.pth"), check_model(tmp_path / "inf.pth")
    assert bad.problems == ("a holds 2 NaN of 3 numbers",)
    assert not bad.ok
    assert good.ok
    assert good.tensors[0].inf == 1


def test_names_in_a_strangers_file_do_not_steer_the_terminal(tmp_path: Path, capsys) -> None:
    torch.save({"weight\x1b[2J\r": torch.ones(2)}, tmp_path / "m.pth")
    assert main(["check-model", str(tmp_path / "m.pth")]) == 0
    assert "weight\\x1b[2J\\x0d" in capsys.readouterr().out


def test_zeros_and_ones_are_no_ties(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(100), "b": torch.zeros(100), "c": torch.ones(100)}, tmp_path / "m.pth")
    assert [row.same_as for row in check_model(tmp_path / "m.pth").tensors] == ["", "", ""]


def test_a_model_over_several_files_is_read_by_its_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.ones(4)}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    assert {row.name for row in check_model(tmp_path).tensors} == {"a", "b"}  # the folder is enough
    index.write_text(json.dumps({"weight_map": {"a": "model-2.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(CorruptError, match="a is not in model-2.safetensors"):
        check_model(index)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(CorruptError, match="1 of 1 files are not there"):
        check_model(index)
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(CorruptError, match="outside of its folder"):
        check_model(index)


# whole or damaged


def _sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["model.pth", "net.pt2"])
def test_a_flipped_bit_in_the_numbers_is_an_error(made: Path, tmp_path: Path, name: str) -> None:
    data = bytearray((made / name).read_bytes())
    with zipfile.ZipFile(made / name) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    data[largest.header_offset + 200] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorruptError, match="checksum"):
        check_model(tmp_path / name)


@settings(max_examples=60)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_changes_what_is_told_of_a_pth(made: Path, tmp_path_factory, where: float, bit: int) -> None:
    data = bytearray((made / "model.pth").read_bytes())
    data[int(where * len(data))] ^= 1 << bit
    path = tmp_path_factory.mktemp("flip") / "model.pth"
    path.write_bytes(data)
    try:
        found = check_model(path).tensors
    except PerdureError:
        return
    assert found == check_model(made / "model.pth").tensors  # it hit padding


@pytest.mark.parametrize("name", ["model.pth", "old.pth", "model.safetensors", "net.pt2"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.99])
def test_a_cut_file_is_an_error(made: Path, tmp_path: Path, name: str, part: float) -> None:
    data = (made / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(part * len(data))])
    with pytest.raises(CorruptError):
        check_model(tmp_path / name)


@pytest.mark.parametrize("name", ["model.pth", "old.pth", "model.safetensors", "net.pt2", "small.onnx"])
def test_beside_a_card_any_changed_byte_is_an_error(made: Path, tmp_path: Path, name: str) -> None:
    data = bytearray((made / name).read_bytes())
    entry = {"file": name, "bytes": len(data), "digest": f"sha256:{_sha256(made / name)}"}
    card = {"format_version": 1, "models": [{"name": "m", "run": "digits", "step": 720, "files": [entry]}]}
    (tmp_path / "model-card.json").write_text(json.dumps(card))
    (tmp_path / name).write_bytes(data)
    assert check_model(tmp_path / name).card == "as model-card.json describes it, of run digits at step 720"
    data[-1 - len(data) // 3] ^= 64
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorruptError, match="as many bytes as were written, but others"):
        check_model(tmp_path / name)


def test_a_file_without_checksums_is_no_damaged_one(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.randn(50)}, tmp_path / "m.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    report = check_model(tmp_path / "m.pth")
    assert report.ok
    assert any("without checksums" in note for note in report.notes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS"),
        (b"<!DOCTYPE html><html>Sign in</html>", "web page"),
        (b"\x1f\x8b\x08\x00 and so on", "gzip"),
        (b"", "is empty"),
        (b"hello, I am a text", "no known kind"),
        (b"PK\x03\x04 not really", "cut short"),
    ],
)
def test_what_is_no_model_file_is_told_as_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "model.pth").write_bytes(content)
    with pytest.raises(CorruptError, match=words):
        check_model(tmp_path / "model.pth")


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("m/data.pkl", "m/version"):
            archive.writestr(name, bytes(200 << 20))


def _circle(path: Path) -> None:
    circle: dict = {"a": torch.zeros(2)}
    circle["again"] = circle
    torch.save(circle, path)


def _cut_data(path: Path) -> None:
    model = _small_onnx()
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    (path.parent / "data").write_bytes(b"cut")


def _hollow(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("kernel", shape=(1 << 24, 1 << 24), dtype="f4", chunks=(1 << 10, 1 << 10))


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("bomb.pth", _bomb, "unpack to 419 MB"),
        ("circle.pth", _circle, "RecursionError"),
        ("wide.pth", lambda path: torch.save({"a": torch.zeros(1).expand(1 << 24, 1 << 24)}, path), "memory"),
        ("cut.onnx", _cut_data, "External data|data"),
        ("hollow.h5", _hollow, "allocate"),
        ("none.index.json", lambda path: path.write_text('{"weight_map": {}}'), "no known kind|no files"),
        (
            "model.safetensors.index.json",
            lambda path: path.write_text(json.dumps({"weight_map": {"a": path.name}})),
            "no files with tensors",
        ),
    ],
)
def test_a_file_that_would_fill_the_memory_or_never_end_is_an_error_in_words(
    tmp_path: Path, name: str, make, words: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(CorruptError, match=words):
        check_model(tmp_path / name)


HEADS = [
    b"PK\x03\x04",
    b"\x80\x02",
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
    b"\x89HDF\r\n\x1a\n",
    b"\x08\x07",
    b"\x10" + bytes(7) + b"{",
]


@settings(max_examples=150)
@given(head=st.sampled_from(HEADS), tail=st.binary(max_size=200))
def test_garbage_of_any_kind_is_an_error_in_words(tmp_path_factory, head: bytes, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage") / "model.bin"
    path.write_bytes(head + tail)
    with pytest.raises((CorruptError, UnsafeFileError)):
        check_model(path)


def test_mistakes_in_the_path_are_answered(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        check_model(tmp_path / "nope.pth")
    with pytest.raises(ConfigError, match="no model file in"):
        check_model(tmp_path)
    with pytest.raises(ConfigError, match=r"several model files: model.pth, model.safetensors"):
        check_model(made)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="folder of checkpoints"):
        check_model(tmp_path)


# safe or not


def test_a_whole_model_needs_trust(made: Path) -> None:
    with pytest.raises(UnsafeFileError, match="Tied"):
        check_model(made / "whole.pth")
    report = check_model(made / "whole.pth", trust=True)
    assert not report.safe
    assert report.what == "a whole model object, Tied"
    assert report.parameters == 176


def _evil_pth(folder: Path, mark: Path) -> Path:
    torch.save({"a": torch.ones(3), "b": Evil(mark)}, folder / "evil.pth")
    return folder / "evil.pth"


def _evil_old(folder: Path, mark: Path) -> Path:
    torch.save({"b": Evil(mark)}, folder / "evil.pth", _use_new_zipfile_serialization=False)
    return folder / "evil.pth"


def _evil_pickle(folder: Path, mark: Path) -> Path:
    (folder / "model.bin").write_bytes(pickle.dumps({"b": Evil(mark)}))
    return folder / "model.bin"


@pytest.mark.parametrize("make", [_evil_pth, _evil_old, _evil_pickle])
def test_no_pickle_is_run(tmp_path: Path, make) -> None:
    path = make(tmp_path, tmp_path / "ran")
    with pytest.raises(UnsafeFileError, match="could run code"):
        check_model(path)
    assert not (tmp_path / "ran").exists()


def _rewrite(source: Path, target: Path, change) -> Path:
    """A copy of a zip file with entries changed; ``change`` gives the new bytes of an entry."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, change(entry.filename, old.read(entry)))
    return target


def _evil_bytes(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Evil(mark), buffer)
    return buffer.getvalue()


def _use_pickle(name: str, data: bytes, mark: Path) -> bytes:
    if name.endswith("weights_config.json"):
        return data.replace(b'"use_pickle": false', b'"use_pickle": true')
    return _evil_bytes(mark) if "/weights/weight_" in name else data


def _sample_inputs(name: str, data: bytes, mark: Path) -> bytes:
    return _evil_bytes(mark) if "sample_inputs" in name else data


def _expression(name: str, data: bytes, mark: Path) -> bytes:
    if not name.endswith("models/model.json"):
        return data
    evil = f"__import__('os').mkdir('{mark}')"
    text, document = data.decode(), json.loads(data)
    found = {value for key, value in _pairs(document) if key == "expr_str"}
    for each in found:
        text = text.replace(json.dumps(each), json.dumps(evil))
    assert found
    return text.encode()


def _target(name: str, data: bytes, mark: Path) -> bytes:
    return (
        data.replace(b"torch.ops.aten.flatten.using_ints", b"torch.os.mkdir")
        if name.endswith("model.json")
        else data
    )


def _pairs(value):
    if isinstance(value, dict):
        yield from value.items()
        for each in value.values():
            yield from _pairs(each)
    elif isinstance(value, list):
        for each in value:
            yield from _pairs(each)


@pytest.mark.parametrize("attack", [_use_pickle, _sample_inputs, _expression, _target])
def test_no_code_in_a_program_is_run(made: Path, tmp_path: Path, attack) -> None:
    mark = tmp_path / "ran"
    path = _rewrite(made / "net.pt2", tmp_path / "evil.pt2", lambda name, data: attack(name, data, mark))
    assert path.read_bytes() != (made / "net.pt2").read_bytes()
    with pytest.raises(UnsafeFileError, match="could run code"):
        check_model(path)
    assert not mark.exists()


def test_the_attack_on_programs_is_a_real_one(made: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = _rewrite(made / "net.pt2", tmp_path / "evil.pt2", lambda name, data: _use_pickle(name, data, mark))
    with pytest.raises(Exception):
        torch.export.load(path)
    assert mark.exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("net/data/constants/custom_obj_0", "pickled object"),
        ("net/data/aotinductor/model/model.so", "compiled code"),
        ("serialized_exported_program.json", "before 2.8"),
    ],
)
def test_other_parts_of_programs_that_run_code_are_named(
    made: Path, tmp_path: Path, name: str, reason: str
) -> None:
    shutil.copy(made / "net.pt2", tmp_path / "net.pt2")
    with zipfile.ZipFile(tmp_path / "net.pt2", "a") as archive:
        archive.writestr(name, b"{}")
    assert reason in why_unsafe(tmp_path / "net.pt2")


def test_a_description_without_end_is_no_crash(made: Path, tmp_path: Path) -> None:
    deep = b"[" * 100_000
    path = _rewrite(
        made / "net.pt2", tmp_path / "deep.pt2", lambda name, data: deep if name.endswith("model.json") else data
    )
    with pytest.raises(UnsafeFileError, match="no JSON that can be read"):
        check_model(path)


def test_torchscript_needs_trust_and_then_runs(made: Path) -> None:
    with pytest.raises(UnsafeFileError, match="TorchScript"):
        check_model(made / "script.pt")
    report = check_model(made / "script.pt", trust=True, input_shapes=["2,1,8,8"])
    assert report.forward[0].shape == (2, 3)


# does it answer


def test_a_program_answers_in_any_batch(made: Path) -> None:
    report = check_model(made / "net.pt2", input_shapes=["5,1,8,8"])
    assert report.safe
    assert report.signature.inputs[0].shape == ("batch", 1, 8, 8)
    assert [(each.shape, each.finite) for each in report.forward] == [((5, 3), True)]
    assert report.parameters == 36 + 4 + 8 + 144 * 3 + 3


def test_an_example_comes_as_a_file_or_as_it_is(made: Path, tmp_path: Path) -> None:
    images = np.ones((3, 4), np.float32)
    np.save(tmp_path / "images.npy", images)
    for example in (tmp_path / "images.npy", images, torch.ones(3, 4), {"images": images}):
        (answer,) = check_model(made / "small.onnx", example=example).forward
        assert (answer.name, answer.dtype, answer.shape) == ("logits", "float32", (3, 3))


def test_an_output_that_is_not_finite_is_a_problem(made: Path) -> None:
    report = check_model(made / "small.onnx", example=np.full((1, 4), np.inf, np.float32))
    assert report.problems == ("output logits is not finite",)


def test_inputs_that_do_not_fit_are_answered_with_what_does(made: Path) -> None:
    with pytest.raises(ConfigError, match=r"it takes images float32 \[batch, 4\]"):
        check_model(made / "small.onnx", input_shapes="1,5")
    with pytest.raises(ConfigError, match="holds no graph"):
        check_model(made / "model.pth", input_shapes=["1,5"])
    with pytest.raises(ConfigError, match="say the same thing"):
        check_model(made / "small.onnx", example=torch.ones(1, 4), input_shapes=["1,4"])


def test_an_onnx_file_tells_its_opset_and_what_is_not_standard(made: Path, tmp_path: Path) -> None:
    report = check_model(made / "small.onnx")
    assert report.facts["opset"] == 17
    assert [row.shape for row in report.tensors] == [(4, 3)]
    model = _small_onnx()
    model.graph.node[0].domain = "com.example"
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    onnx.save(model, tmp_path / "own.onnx")
    assert any("com.example" in note for note in check_model(tmp_path / "own.onnx").notes)


def test_an_onnx_file_without_its_data_is_not_complete(tmp_path: Path) -> None:
    onnx.save(_small_onnx(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    report = check_model(tmp_path / "m.onnx", input_shapes=["2,4"])
    assert report.bytes == (tmp_path / "m.onnx").stat().st_size + (tmp_path / "m.data").stat().st_size
    (tmp_path / "m.data").unlink()
    with pytest.raises(CorruptError, match=r"its data are in m\.data, which is not beside it"):
        check_model(tmp_path / "m.onnx")


def test_the_data_beside_a_model_are_compared_with_the_card_too(tmp_path: Path) -> None:
    onnx.save(_small_onnx(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    path, data = tmp_path / "m.onnx", tmp_path / "m.data"
    write_card(tmp_path, [Exported("onnx", path, 1, digest(path), companions=(data,))], Facts(), None)
    assert check_model(path).card
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(CorruptError, match=r"m\.data is not the file that model-card\.json describes"):
        check_model(path)


@pytest.mark.parametrize("data", [b"\x08\x07garbage", b"\x08", bytes(range(8, 60))])
def test_garbage_is_no_onnx_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(CorruptError):
        check_model(tmp_path / "m.onnx")


# the command


def test_the_command_prints_a_table_and_says_that_all_is_well(made: Path, capsys) -> None:
    assert main(["check-model", str(made / "model.pth")]) == 0
    captured = capsys.readouterr()
    assert "  safe     yes: tensors and plain values only\n" in captured.out
    assert "  holds    176 parameters; 7 tensors, float32, int64\n" in captured.out
    assert "  tied     head.weight = embed.weight\n" in captured.out
    assert "norm.weight               float32  [8]      8\n" in captured.out
    assert captured.err == "the model file is sound\n"


def test_the_command_gives_json_for_other_programs(made: Path, capsys) -> None:
    assert main(["check-model", str(made / "net.pt2"), "--input-shape", "2,1,8,8", "--json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["ok"]
    assert answer["kind"] == "pt2"
    assert answer["forward"] == [{"name": "output", "dtype": "float32", "shape": [2, 3], "finite": True}]
    assert answer["tensors"][0]["shape"] == [4, 1, 3, 3]
    assert captured.err == ""


def test_the_exit_code_tells_good_from_bad_from_a_wrong_call(made: Path, tmp_path: Path, capsys) -> None:
    torch.save({"a": torch.tensor([float("nan")])}, tmp_path / "nan.pth")
    (tmp_path / "cut.pth").write_bytes((made / "model.pth").read_bytes()[:-100])
    assert main(["check-model", str(tmp_path / "nan.pth")]) == 1
    assert main(["check-model", str(tmp_path / "cut.pth")]) == 1
    assert main(["check-model", str(made / "whole.pth")]) == 1
    assert "--trust" in capsys.readouterr().err
    assert main(["check-model", str(made / "whole.pth"), "--trust"]) == 0
    assert main(["check-model", str(tmp_path / "nope.pth")]) == 2
    assert main(["check-model", str(made / "small.onnx"), "--input-shape", "x"]) == 2


def test_a_long_table_is_cut_unless_all_is_asked_for(tmp_path: Path, capsys) -> None:
    torch.save({f"layer{i}": torch.ones(2) for i in range(100)}, tmp_path / "m.pth")
    main(["check-model", str(tmp_path / "m.pth")])
    assert "... and 60 more\n" in capsys.readouterr().out
    main(["check-model", str(tmp_path / "m.pth"), "--all"])
    out = capsys.readouterr().out
    assert "layer99" in out
    assert "more" not in out


def test_the_front_door_has_it_and_the_report_prints_itself(made: Path) -> None:
    text = repr(perdure.check_model(made / "net.pt2"))  # as the last line of a cell shows it
    assert "input    input: float32 [batch, 1, 8, 8]" in text
    assert "safe     yes" in text


def test_no_generator_is_touched(made: Path) -> None:
    before = torch.random.get_rng_state()
    check_model(made / "net.pt2", input_shapes=["2,1,8,8"])
    assert torch.equal(before, torch.random.get_rng_state())
