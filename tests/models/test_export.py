"""Model files: what a stranger reads is what was trained, or there is no file."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from perdure.core.errors import CannotCarryError, ConfigError, CorruptError, DiskFullError, MissingExtraError
from perdure.models import onnx_file
from perdure.models.export import export_model, file_stem
from perdure.models.formats import FORMATS, Facts, Format, Source
from perdure.models.records import RECORDS

BOTH = ("pth", "safetensors")


def export(source: Source, folder: Path, stem: str = "m", formats=BOTH, facts: Facts = Facts()) -> dict[str, Path]:
    return {made.format: made.path for made in export_model(source, folder, stem, formats, facts)}


def load(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Names, types, shapes and bits."""
    return one.keys() == other.keys() and all(
        one[n].dtype == other[n].dtype and one[n].shape == other[n].shape and octets(one[n]) == octets(other[n])
        for n in one
    )


def octets(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().flatten().clone()
    return bytes(flat.untyped_storage())


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("format", BOTH)
def test_a_stranger_loads_a_plain_state_dict_without_running_code(tmp_path: Path, source, format: str) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4))
    paths = export(source(model), tmp_path / "out", "model", [format])
    assert paths == {format: tmp_path / "out" / f"model.{format}"}
    fresh = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4))
    fresh.load_state_dict(load(paths[format]))
    assert same(model.state_dict(), fresh.state_dict())


def test_every_type_and_shape_comes_back_bit_for_bit(tmp_path: Path, source) -> None:
    types = "float64 float16 bfloat16 float8_e4m3fn float8_e5m2 bool uint8 uint16 int64 complex64".split()
    numbers = torch.arange(6).reshape(2, 3).float()
    tensors = {
        f"{name}.{shape}": value.to(getattr(torch, name))
        for name in types
        for shape, value in {
            "0d": torch.tensor(1.0),
            "1": numbers[:1, 0],
            "0x3": numbers[:0],
            "2x3": numbers,
        }.items()
    }
    tensors["odd"] = torch.tensor([float("nan"), -0.0, float("inf")])
    for path in export(source(tensors), tmp_path).values():
        assert same(tensors, load(path)), path


def test_the_same_model_gives_the_same_bytes_whatever_the_file_is_called(tmp_path: Path, source) -> None:
    tensors = {"a": torch.randn(10), "b": torch.zeros(3, dtype=torch.int64)}
    one, other = export(source(tensors), tmp_path, "one"), export(source(tensors), tmp_path, "other")
    assert all(one[format].read_bytes() == other[format].read_bytes() for format in BOTH)


def test_tied_tensors_are_full_copies_in_safetensors_and_stored_once_in_pth(tmp_path: Path, source) -> None:
    weight = torch.randn(1000, 100)
    paths = export(source({"embed": weight, "head": weight}), tmp_path)
    assert torch.equal(load(paths["safetensors"])["head"], weight)
    assert torch.equal(load(paths["pth"])["head"], weight)
    assert paths["pth"].stat().st_size < 1.2 * weight.nbytes < paths["safetensors"].stat().st_size


def test_a_view_does_not_drag_its_storage_along(tmp_path: Path, source) -> None:
    large = torch.randn(1_000_000)
    tensors = {
        "row": large[10:20],
        "turned": large[:6].reshape(2, 3).t(),
        "last": torch.randn(1, 4, 3, 3).to(memory_format=torch.channels_last),
        "conj": torch.randn(3, dtype=torch.complex64).conj(),
    }
    paths = export(source(tensors), tmp_path)
    assert paths["pth"].stat().st_size < 10_000
    assert all(same(tensors, load(path)) for path in paths.values())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    names=st.sets(st.text("ab.c_", min_size=1), min_size=1),
)
def test_any_names_and_sizes(tmp_path_factory, source, sizes: list[int], names: set[str]) -> None:
    tensors = {name: torch.randn(sizes) for name in names}
    for path in export(source(tensors), tmp_path_factory.mktemp("out")).values():
        assert same(tensors, load(path))


def test_wrappers_leave_no_trace_in_names(tmp_path: Path, source) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(2, 3))
    wrapped = torch.nn.DataParallel(torch.nn.Sequential(torch.compile(inner), torch.nn.DataParallel(inner[0])))
    path = export(source(wrapped), tmp_path, formats=["pth"])["pth"]
    assert set(load(path)) == {"0.0.weight", "0.0.bias", "1.weight", "1.bias"}


# -------------------------------------------------------------------- names


def test_a_file_name_carries_run_and_step() -> None:
    assert file_stem("digits", step=720) == "digits-step-000000720"
    assert file_stem("digits", "digits", 720) == "digits-step-000000720"
    assert file_stem("digits", "teacher", 720) == "digits-teacher-step-000000720"
    assert file_stem("", "net") == "net"


@pytest.mark.parametrize("name", ["", "a/b", "../up", "/tmp/x", ".hidden", "a\nb", "a\0b", None])
def test_a_name_that_leaves_the_folder_is_refused(name) -> None:
    with pytest.raises(ConfigError, match="stem of a file name"):
        file_stem("digits", name)


def test_the_file_may_be_read_by_whoever_may_read_other_files(tmp_path: Path, source) -> None:
    (tmp_path / "other").touch()
    for path in export(source({"a": torch.zeros(1)}), tmp_path).values():
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


# -------------------------------------------------------------------- what cannot be


def test_an_unknown_format_is_refused_and_the_known_ones_are_named(tmp_path: Path, source) -> None:
    with pytest.raises(ConfigError, match=r"'onnxx'(.|\n)*'pth' or 'pth-classic'"):
        export(source({"a": torch.zeros(1)}), tmp_path, formats=["pth", "onnxx"])
    with pytest.raises(ConfigError, match="a list of names"):
        export(source({"a": torch.zeros(1)}), tmp_path, formats="pth")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensor", "format", "hint"),
    [
        (lambda: torch.zeros(2, dtype=torch.complex128), "safetensors", '"pth"'),
        (lambda: torch.zeros(2, 2).to_sparse(), "pth", "dense"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8), "pth", "dense"),
        (lambda: torch.zeros(2, device="meta"), "safetensors", "values"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_a_format_cannot_hold_is_named_before_anything_is_written(
    tmp_path: Path, source, tensor, format, hint
) -> None:
    with pytest.raises(CannotCarryError) as caught:
        export(source({"fine": torch.zeros(1), "odd": tensor()}), tmp_path, formats=[format])
    assert caught.value.path == "odd"
    assert hint in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_a_graph_needs_a_model_and_an_example(tmp_path: Path, source, format: str) -> None:
    with pytest.raises(ConfigError, match="only its tensors"):
        export(source({"a": torch.zeros(1)}), tmp_path, formats=[format])
    with pytest.raises(ConfigError, match="example=images"):
        export(source(torch.nn.Linear(2, 2)), tmp_path, formats=[format])


def test_an_example_that_the_model_does_not_take_is_said_in_plain_words(tmp_path: Path, source) -> None:
    batch = [torch.zeros(2, 2), torch.zeros(2)]  # images and labels, as a loader gives them
    with pytest.raises(ConfigError, match="does not run on the CPU with this example: TypeError"):
        export(source(torch.nn.Linear(2, 2), batch), tmp_path, formats=["pt2"])


# -------------------------------------------------------------------- damage, room, failures


def flipped(format: Format) -> Format:
    """A format that writes a flipped bit, as a bad disk would."""

    def write(source: Source, path: Path) -> tuple[str, ...]:
        notes = format.write(source, path)
        data = bytearray(path.read_bytes())
        place = data.index(octets(source.tensors["a"]))
        data[place] ^= 1
        path.write_bytes(data)
        return notes

    return Format(**{**vars(format), "write": write})


def test_a_file_that_does_not_read_back_is_removed_and_the_older_one_stays(
    tmp_path: Path, source, monkeypatch
) -> None:
    old = export(source({"a": torch.zeros(3)}), tmp_path, formats=["safetensors"])["safetensors"]
    before = visible(tmp_path)
    monkeypatch.setitem(FORMATS, ("torch", "safetensors"), flipped(FORMATS["torch", "safetensors"]))
    with pytest.raises(CorruptError, match="a: other bytes"):
        export(source({"a": torch.ones(3)}), tmp_path, formats=["safetensors"])
    assert torch.equal(load(old)["a"], torch.zeros(3))
    assert visible(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} - before == {RECORDS}


def test_one_format_that_fails_does_not_cost_the_others(tmp_path: Path, source, monkeypatch, capsys) -> None:
    monkeypatch.setitem(FORMATS, ("torch", "safetensors"), flipped(FORMATS["torch", "safetensors"]))
    tensors = {"a": torch.ones(3)}
    with pytest.raises(CorruptError, match="m.safetensors"):
        export(source(tensors), tmp_path, formats=["safetensors", "pth"])
    assert same(load(tmp_path / "m.pth"), tensors)
    card = json.loads((tmp_path / "model-card.json").read_text())
    assert [file["format"] for file in card["models"][0]["files"]] == ["pth"]
    assert not (tmp_path / "m.safetensors").exists()


def test_a_missing_package_does_not_cost_the_weights(tmp_path: Path, source, monkeypatch) -> None:
    monkeypatch.setattr(onnx_file, "_PACKAGES", ("onnx", "not_installed_here"))
    with pytest.raises(MissingExtraError, match=r"needs not_installed_here(.|\n)*pip install 'perdure\[onnx\]'"):
        export(source(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path, formats=["onnx", "safetensors"])
    assert (tmp_path / "m.safetensors").exists()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_is_noticed_before_writing_for_all_formats_together(small_disk: Path, source) -> None:
    with pytest.raises(DiskFullError) as caught:
        export(source({"a": torch.zeros(400_000)}), small_disk)
    assert caught.value.needed_bytes > caught.value.free_bytes > 0
    assert list(small_disk.iterdir()) == []
    assert export(source({"a": torch.zeros(400_000)}), small_disk, formats=["pth"])["pth"].exists()


@pytest.fixture
def small_disk(tmp_path: Path):
    os.system(f"mount -t tmpfs -o size=4M perdure-test {tmp_path}")
    yield tmp_path
    os.system(f"umount {tmp_path}")


# -------------------------------------------------------------------- going on after a kill


def test_a_proved_file_is_not_made_again(tmp_path: Path, source) -> None:
    tensors = {"a": torch.randn(5)}
    first = export_model(source(tensors), tmp_path, "m", ["pth"], Facts())
    written = (tmp_path / "m.pth").stat().st_mtime_ns
    both = export_model(source(tensors), tmp_path, "m", BOTH, Facts())
    assert [made.reused for made in both] == [True, False]
    assert both[0].parity == first[0].parity
    assert (tmp_path / "m.pth").stat().st_mtime_ns == written


@pytest.mark.parametrize("change", ["weights", "bytes", "record", "forward"])
def test_a_file_of_another_model_or_with_other_bytes_is_made_again(tmp_path: Path, source, change: str) -> None:
    model = torch.nn.Linear(2, 2)
    export(source(model), tmp_path, formats=["pth"])
    if change == "weights":
        with torch.no_grad():
            model.bias += 1
    elif change == "bytes":
        (tmp_path / "m.pth").write_bytes((tmp_path / "m.pth").read_bytes()[:-1] + b"\1")
    elif change == "record":
        (tmp_path / RECORDS).write_text("{")
    else:
        model.__class__ = type("Linear", (torch.nn.Linear,), {"forward": lambda self, x: x})
    (made,) = export_model(source(model), tmp_path, "m", ["pth"], Facts())
    assert not made.reused
    assert same(load(made.path), model.state_dict())


def test_what_a_killed_export_left_is_removed_and_what_another_process_uses_is_not(tmp_path: Path, source) -> None:
    from perdure.models.workplace import workplace

    (tmp_path / ".export-killed.tmp").mkdir()
    (tmp_path / ".export-killed.tmp" / "m.pth").write_bytes(b"half")
    with workplace(tmp_path) as busy:
        export(source({"a": torch.zeros(1)}), tmp_path)
        assert busy.exists()
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == {RECORDS}


def test_two_exports_into_one_folder_keep_each_others_records(tmp_path: Path, source, monkeypatch) -> None:
    """One is made while the other is under way."""
    pth = FORMATS["torch", "pth"]

    def write(ours: Source, path: Path) -> tuple[str, ...]:
        export(source({"w": torch.ones(3)}), tmp_path, "theirs", ["safetensors"])
        return pth.write(ours, path)

    monkeypatch.setitem(FORMATS, ("torch", "pth"), dataclasses.replace(pth, write=write))
    export(source({"w": torch.zeros(3)}), tmp_path, "ours", ["pth"])
    assert set(json.loads((tmp_path / RECORDS).read_text())["files"]) == {"theirs.safetensors", "ours.pth"}
    models = json.loads((tmp_path / "model-card.json").read_text())["models"]
    assert {model["name"] for model in models} == {"theirs", "ours"}
