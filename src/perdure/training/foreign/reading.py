"""Any foreign file or folder, by what it is and not by how it is called."""

from __future__ import annotations

import zipfile
from pathlib import Path

from perdure.training.foreign.content import KERAS, Content, no_states
from perdure.training.foreign.folders import find_model, read_folder, read_index, read_safetensors
from perdure.training.foreign.torchfile import ZIP, read_torch, unreadable

HDF5 = b"\x89HDF\r\n\x1a\n"


def is_foreign(path: Path) -> bool:
    """Whether a path leads to a file, or to a folder with a model of others in it."""
    return path.is_file() or (path.is_dir() and find_model(path) is not None) or _is_saved_model(path)


def read_foreign(path: Path, *, trust: bool = False) -> Content:
    """What a foreign file or folder holds, read so that it cannot run code.

    Args:
        path: A file of ``torch.save`` (``.pth``, ``.bin``, ``.ckpt`` ...), a ``.safetensors`` file, an index of
            a model in several files, a file of Keras, or a folder of transformers or PEFT.
        trust: Let a file of ``torch.save`` make any object, which may run any code.

    Raises:
        UnsafeFileError: It could run code.
        CorruptError: It is torn or damaged, or nothing that is known here.
        ConfigError: It is a program, without states by name.
        UnreadableError: The system does not let it be read.
    """
    if _is_saved_model(path):
        raise no_states(path, "a SavedModel of TensorFlow", "give the .keras file of the same model")
    if path.is_dir():
        return read_folder(path, trust=trust)
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise unreadable(path, error) from error
    if head.startswith(HDF5) or (head.startswith(ZIP) and _is_keras(path)):
        return Content(path, "a file of Keras", kind=KERAS)
    if path.name.endswith(".index.json"):
        return read_index(path, trust=trust)
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return read_safetensors(path)
    if path.suffix == ".onnx":
        raise no_states(path, "an ONNX graph", "give the checkpoint or state_dict that it was made from")
    return read_torch(path, trust=trust)


def _is_keras(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return {"config.json", "metadata.json"} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _is_saved_model(path: Path) -> bool:
    return path.is_dir() and (path / "saved_model.pb").is_file()
