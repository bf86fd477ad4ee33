"""Tells what kind of model file something is, by what is in it and not by its name."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from perdure.core.errors import ConfigError, CorruptError, UnreadableError
from perdure.models.contents import damaged

_ZIP, _PICKLE, _HDF5 = b"PK\x03\x04", b"\x80", b"\x89HDF\r\n\x1a\n"
_INDEX = (".safetensors.index.json", ".bin.index.json")
_ENDINGS = (".pth", ".pt", ".bin", ".ckpt", ".safetensors", ".pt2", ".onnx", ".keras", ".h5", *_INDEX)
_NOT_IT = {
    b"version https://git-lfs": "it is a pointer of Git LFS and not the file itself: run git lfs pull",
    b"<!doctype html": "it is a web page: the download went wrong",
    b"<html": "it is a web page: the download went wrong",
    b"\x1f\x8b": "it is compressed by gzip: unpack it first",
}


def kind_of(path: Path) -> str:
    """What a file or folder is.

    Returns:
        One of ``pth``, ``pth-legacy``, ``safetensors``, ``index``, ``pt2``, ``torchscript``, ``onnx``, ``keras``,
        ``h5``, ``savedmodel``.

    Raises:
        ConfigError: There is no such file, or a folder with no model file or several.
        UnreadableError: The system does not let it be read.
        CorruptError: It is empty, cut short, or nothing that is known.
    """
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return "savedmodel"
        raise _folder(path)
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", hint="check the path") from None
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}", path=path, hint="check the path") from error
    if not head:
        raise CorruptError(f"{path} is empty", path=path, hint="it was cut short; copy it again")
    if what := no_model(head):
        raise damaged(path, what)
    return _by_head(path, head)


def no_model(head: bytes) -> str:
    """What a file that begins so is in place of a model, where people often have it; else empty."""
    return next((what for start, what in _NOT_IT.items() if head.lower().startswith(start)), "")


def only_file(path: Path) -> Path:
    """The model file of a folder that holds one; any other path as it is."""
    if not path.is_dir() or (path / "saved_model.pb").is_file():
        return path
    found = model_files(path)
    indexes = [each for each in found if each.name.endswith(_INDEX)]
    if len(found) == 1 or len(indexes) == 1:
        return (indexes or found)[0]
    return path


def model_files(folder: Path) -> list[Path]:
    """What looks like a model file in a folder, by its name."""
    return sorted(each for each in folder.iterdir() if each.name.endswith(_ENDINGS) and each.is_file())


def _folder(path: Path) -> ConfigError:
    if (path / "manifest.json").is_file() or (path / "checkpoints").is_dir():
        hint = f"perdure verify {path} proves them; perdure export makes model files of one"
        return ConfigError(f"{path} is a folder of checkpoints", hint=hint)
    names = [each.name for each in model_files(path)]
    if not names:
        return ConfigError(f"there is no model file in {path}", hint="give the path of a file")
    return ConfigError(f"{path} holds several model files: {', '.join(names[:10])}", hint="give one of them")


def _by_head(path: Path, head: bytes) -> str:
    if head.startswith(_ZIP):
        return _zip(path)
    if head.startswith(_HDF5):
        return "h5"
    if _is_safetensors(head):
        return "safetensors"
    if head.startswith(_PICKLE):
        return "pth-legacy"
    if head.lstrip()[:1] == b"{" and path.suffix == ".json":
        return _index(path)
    if path.suffix == ".onnx" or head[:1] == b"\x08":  # field 1 of ModelProto: the version of its format
        return "onnx"
    if path.suffix == ".safetensors":
        raise damaged(path, "its header is not one of safetensors")
    raise damaged(path, f"it begins with {head[:8]!r}, which no known kind of model file does")


def _is_safetensors(head: bytes) -> bool:
    """Eight bytes of length, then a JSON object."""
    return len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32


def _index(path: Path) -> str:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
        raise damaged(path, "it is JSON, but no index of shards")
    return "index"


def _zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            root = names[0].partition("/")[0] if names else ""
    except Exception as error:  # of a damaged file zipfile raises many kinds
        raise damaged(path, f"{error}: it was cut short, most likely") from error
    if "config.json" in names and "metadata.json" in names:
        return "keras"
    if (
        f"{root}/archive_format" in names
        or "archive_format" in names
        or "serialized_exported_program.json" in names
    ):
        return "pt2"
    if f"{root}/constants.pkl" in names and any(name.startswith(f"{root}/code/") for name in names):
        return "torchscript"
    if f"{root}/data.pkl" in names:
        return "pth"
    raise damaged(path, f"it is a zip file of {len(names)} files, but none of torch or Keras")
