"""Model files: what a stranger reads is what was trained, or there is no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import perdure.models.export as export_module
from perdure.core.errors import CannotCarryError, ConfigError, CorruptError, DiskFullError
from perdure.models.export import differences, export_tensors

BOTH = ("pth", "safetensors")


def load(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


@pytest.mark.parametrize("format", BOTH)
def test_a_stranger_loads_a_plain_state_dict_without_running_code(tmp_path: Path, format: str) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4))
    paths = export_tensors(model.state_dict(), tmp_path / "out", "model", [format])
    assert paths == {format: tmp_path / "out" / f"model.{format}"}
    fresh = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4))
    fresh.load_state_dict(load(paths[format]))
    assert differences(model.state_dict(), fresh.state_dict()) == []


@pytest.mark.parametrize("format", BOTH)
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint16, torch.int64, torch.complex64],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_type_and_shape_comes_back_bit_for_bit(
    tmp_path: Path, format: str, dtype: torch.dtype, shape
) -> None:
    tensor = (
        torch.arange(6).reshape(2, 3).float()[tuple(slice(0, n) for n in shape)] if shape else torch.tensor(1.0)
    )
    tensors = {"a": tensor.to(dtype)}
    assert differences(tensors, load(export_tensors(tensors, tmp_path, "m", [format])[format])) == []


def test_the_same_model_gives_the_same_bytes_whatever_the_file_is_called(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(10), "b": torch.zeros(3, dtype=torch.int64)}
    one, other = export_tensors(tensors, tmp_path, "one", BOTH), export_tensors(tensors, tmp_path, "other", BOTH)
    assert all(one[format].read_bytes() == other[format].read_bytes() for format in BOTH)


def test_nan_and_minus_zero_are_compared_by_their_bits(tmp_path: Path) -> None:
    tensors = {"a": torch.tensor([float("nan"), -0.0, float("inf")])}
    export_tensors(tensors, tmp_path, "m", BOTH)
    assert differences({"a": torch.tensor([0.0])}, {"a": torch.tensor([-0.0])}) == ["a: other bytes"]


def test_tied_tensors_are_full_copies_in_safetensors_and_stored_once_in_pth(tmp_path: Path) -> None:
    weight = torch.randn(1000, 100)
    paths = export_tensors({"embed": weight, "head": weight}, tmp_path, "m", BOTH)
    assert torch.equal(load(paths["safetensors"])["head"], weight)
    assert torch.equal(load(paths["pth"])["head"], weight)
    assert paths["pth"].stat().st_size < 1.2 * weight.nbytes < paths["safetensors"].stat().st_size


def test_a_view_does_not_drag_its_storage_along(tmp_path: Path) -> None:
    large = torch.randn(1_000_000)
    tensors = {"row": large[10:20], "turned": large[:6].reshape(2, 3).t()}
    paths = export_tensors(tensors, tmp_path, "m", BOTH)
    assert paths["pth"].stat().st_size < 10_000
    assert all(differences(tensors, load(path)) == [] for path in paths.values())


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    names=st.sets(st.text("ab.c_", min_size=1), min_size=1),
)
def test_any_names_and_sizes(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], names: set[str]) -> None:
    tensors = {name: torch.randn(sizes) for name in names}
    paths = export_tensors(tensors, tmp_path_factory.mktemp("out"), "m", BOTH)
    assert all(differences(tensors, load(path)) == [] for path in paths.values())


@pytest.mark.parametrize("name", ["", "a/b", "../up", "/tmp/x"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="stem of a file name"):
        export_tensors({"a": torch.zeros(1)}, tmp_path, name, ["pth"])


def test_an_unknown_format_is_refused_and_the_known_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'onnxx'.*\n.*'pth' or 'safetensors'"):
        export_tensors({"a": torch.zeros(1)}, tmp_path, "m", ["pth", "onnxx"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensor", "format"),
    [(torch.zeros(2, dtype=torch.complex128), "safetensors"), (torch.zeros(2, 2).to_sparse(), "pth")],
)
def test_what_a_format_cannot_hold_is_named_before_anything_is_written(tmp_path: Path, tensor, format: str) -> None:
    with pytest.raises(CannotCarryError) as caught:
        export_tensors({"fine": torch.zeros(1), "odd": tensor}, tmp_path, "m", [format])
    assert caught.value.path == "odd"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_does_not_read_back_is_removed_and_the_older_one_stays(tmp_path: Path, monkeypatch) -> None:
    old = export_tensors({"a": torch.zeros(3)}, tmp_path, "m", ["pth"])["pth"]

    def write_with_a_flipped_bit(tensors, path: Path) -> None:
        torch.save({"a": tensors["a"] + 1}, path)

    broken = export_module.Format(write_with_a_flipped_bit, export_module.FORMATS["pth"].read)
    monkeypatch.setitem(export_module.FORMATS, "pth", broken)
    with pytest.raises(CorruptError, match="a: other bytes"):
        export_tensors({"a": torch.ones(3)}, tmp_path, "m", ["pth"])
    assert torch.equal(load(old)["a"], torch.zeros(3))
    assert [path.name for path in tmp_path.iterdir()] == ["m.pth"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_is_noticed_before_writing(small_disk: Path) -> None:
    with pytest.raises(DiskFullError) as caught:
        export_tensors({"a": torch.zeros(2_000_000)}, small_disk, "m", ["pth"])
    assert caught.value.needed_bytes > caught.value.free_bytes > 0
    assert list(small_disk.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path):
    os.system(f"mount -t tmpfs -o size=4M perdure-test {tmp_path}")
    yield tmp_path
    os.system(f"umount {tmp_path}")


@pytest.mark.parametrize("format", BOTH)
def test_the_file_may_be_read_by_whoever_may_read_other_files(tmp_path: Path, format: str) -> None:
    (tmp_path / "other").touch()
    path = export_tensors({"a": torch.zeros(1)}, tmp_path, "m", [format])[format]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
