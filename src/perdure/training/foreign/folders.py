"""safetensors files, models in several files with an index, and the folders of transformers and PEFT."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from perdure.core.errors import CorruptError, NoCheckpointError
from perdure.models.kinds import no_model
from perdure.training.foreign.content import Content, corrupt
from perdure.training.foreign.torchfile import load, read_torch, unreadable

MODELS = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("adapter_model.safetensors", "adapter_model.bin"),
)
"""What a model is called in a folder of transformers or PEFT, the best one first."""

_BESIDE = {
    "optimizer": ("optimizer.pt", "optimizer.bin"),
    "scheduler": ("scheduler.pt", "scheduler.bin"),
    "scaler": ("scaler.pt",),
}
"""What transformers' Trainer (``.pt``) and accelerate (``.bin``) put beside the model."""
_STATE = "trainer_state.json"
_UNREAD = ("training_args.bin", "rng_state*.pth", "random_states_*.pkl", "sampler*.bin")


def read_safetensors(path: Path) -> Content:
    """The content of a ``.safetensors`` file.

    Raises:
        CorruptError: It is torn, or no such file.
        UnreadableError: The system does not let it be read.
    """
    return Content(path, "a safetensors file", _tensors(path), True)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        with open(path, "rb") as file:
            what = no_model(file.read(64))
        if what:
            raise corrupt(path, what)
        tensors: dict[str, torch.Tensor] = load_file(path)
    except CorruptError:
        raise
    except SafetensorError as error:
        raise corrupt(path, f"is no whole safetensors file: {error}") from None
    except OSError as error:
        raise unreadable(path, error) from error
    return tensors


def read_index(path: Path, *, trust: bool = False) -> Content:
    """A model in several files, by its ``...index.json``.

    Raises:
        CorruptError: The index or one of its files is damaged or missing.
        UnreadableError, UnsafeFileError: As for one file.
    """
    placed = _placed(path)
    tensors: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    for file in sorted(set(placed.values())):
        part = path.with_name(file)
        if not part.exists():
            raise corrupt(path, f"{file} belongs to it and is not there")
        if file.endswith(".safetensors"):
            tensors |= _tensors(part)
        else:
            content = read_torch(part, trust=trust)
            tensors, notes = tensors | dict(content.values), notes + content.notes
    missing = sorted(set(placed) - set(tensors))
    if missing:
        raise corrupt(path, f"no file holds {', '.join(missing[:5])}")
    return Content(path, f"a model in {len(set(placed.values()))} files", tensors, True, notes)


def _placed(path: Path) -> dict[str, str]:
    """Tensor to file, from an index; files are beside it and nowhere else."""
    try:
        placed = json.loads(path.read_bytes())["weight_map"]
        wrong = [file for file in placed.values() if Path(file).name != file]
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise corrupt(path, "is no index of a model in several files") from None
    if wrong:
        raise corrupt(path, f"names a file outside of its folder: {wrong[0]}")
    found: dict[str, str] = placed
    return found


def find_model(folder: Path) -> Path | None:
    """The model in a folder of transformers or PEFT; None if there is none."""
    return next((folder / name for name in MODELS if (folder / name).is_file()), None)


def read_folder(folder: Path, *, trust: bool = False) -> Content:
    """A folder of transformers (a saved model, or a checkpoint of its Trainer) or PEFT.

    Raises:
        NoCheckpointError: There is no model in it.
        CorruptError, UnreadableError, UnsafeFileError: As for the files.
    """
    found = find_model(folder)
    if found is None:
        raise NoCheckpointError(f"there is no model in {folder}", path=folder, hint=f"it looks for {MODELS[0]} ...")
    read = read_index if found.name.endswith(".json") else read_model_file
    model = read(found, trust=trust)
    if not model.bare:  # an adapter or model file that somebody made with sections of their own
        return model
    beside = dict(_beside(folder, trust=trust))
    state = beside.get(_STATE, {})
    step = f", step {state['global_step']}" if isinstance(state, dict) and "global_step" in state else ""
    kind = "an adapter of PEFT" if found.name.startswith("adapter") else "a model of transformers"
    form = f"a checkpoint of transformers{step}, {found.name}" if beside else f"{kind}, {found.name}"
    return Content(folder, form, {"model": model.values, **beside}, notes=model.notes)


def read_model_file(path: Path, *, trust: bool = False) -> Content:
    """A ``.safetensors`` file or one of ``torch.save``, by its name."""
    return read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path, trust=trust)


def _beside(folder: Path, *, trust: bool) -> Iterator[tuple[str, Any]]:
    for key, names in _BESIDE.items():
        for file in (folder / name for name in names):
            if file.is_file():
                yield key, load(file, trust=trust)
    if (folder / _STATE).is_file():
        try:
            yield _STATE, json.loads((folder / _STATE).read_bytes())
        except ValueError:
            raise corrupt(folder / _STATE, "is no JSON") from None
    for pattern in _UNREAD:  # generators are pickled there, and no file of others says where in the data they were
        for file in sorted(folder.glob(pattern)):
            yield file.name, file
