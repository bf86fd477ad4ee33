"""The tracked models as files, and any model without a run."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from perdure.checkpoint.budget import Room
from perdure.core.errors import CannotCarryError, ConfigError, PerdureError
from perdure.models.classic import check_plain
from perdure.models.export import export_model, file_stem, part_of_stem
from perdure.models.formats import Example, Exported, Facts, Source
from perdure.models.live import as_example
from perdure.models.together import put_off, raise_first
from perdure.training.world.modules import ModulePart, is_lazy
from perdure.training.world.world import World

_LIBRARIES = (
    "perdure",
    "torch",
    "numpy",
    "safetensors",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "keras",
    "transformers",
)


@dataclass(frozen=True)
class Finished:
    """What ``run.export`` knows of its run.

    Attributes:
        world: The tracked objects.
        folder: Where the files go.
        facts: For the card.
        room: What may be written.
    """

    world: World
    folder: Path
    facts: Facts
    room: Room | None = None


def export_run(run: Finished, name: str, example: Any, formats: Sequence[str]) -> dict[str, Path]:
    """Write the tracked modules: a single one as ``<run>-step-<step>``, several with their names in between.

    An ``AveragedModel`` beside a model is written too, with its name, under the plain names of the model.

    Returns:
        Format to path; with several modules, and for averages, ``<their name>.<format>`` to path.

    Raises:
        ConfigError: No module is tracked.
    """
    modules = run.world.modules
    if not modules:
        raise ConfigError("there is no model to export", hint="run.track(model=model) above the loop")
    averages = {key for key, module in modules.items() if isinstance(module, AveragedModel)}
    own = [key for key in modules if key not in averages] or list(modules)
    _check_examples(example, own, averages)
    files: dict[str, Path] = {}
    errors: list[PerdureError] = []
    classic = _classic(run) if "pth-classic" in formats else {}
    for key, module in modules.items():
        alone = len(own) == 1 and key in own
        stem = file_stem(run.facts.run, name)
        stem = file_stem("", stem if alone else f"{stem}-{part_of_stem(key)}", run.facts.step)
        mine = as_example(example if len(own) == 1 else _example_of(key, example or {}, modules, own))
        with put_off(errors):
            source, facts = source_of(module, mine, classic), run.facts
            if key in averages:  # under the plain names of the model; the optimizer is that of the live weights
                states = {name: value for name, value in classic.items() if not name.endswith("_state_dict")}
                source, facts = source_of(module.module, mine, states), replace(facts, weights=key)
            made = export_model(source, run.folder, stem, formats, facts, room=run.room)
            files |= {each.format if alone else f"{key}.{each.format}": each.path for each in made}
    raise_first(errors)
    return files


def _example_of(key: str, examples: Mapping[str, Any], modules: Mapping[str, Any], own: Sequence[str]) -> Any:
    """That of a model by its name; an average takes the inputs of the model that it averages."""
    if key in examples or key in own:
        return examples.get(key)
    shapes = _shapes(modules[key].module)
    return next((examples[name] for name in own if name in examples and _shapes(modules[name]) == shapes), None)


def _shapes(module: nn.Module) -> tuple[type, list[tuple[str, torch.Size]]]:
    return type(module), [(name, tensor.shape) for name, tensor in module.named_parameters()]


def _check_examples(example: Any, names: Sequence[str], averages: Collection[str]) -> None:
    """Several models take a dict of examples by their names."""
    known = {*names, *averages}
    if len(names) < 2 or example is None or (isinstance(example, Mapping) and set(example) <= known):
        return
    raise ConfigError(
        f"{len(names)} models are tracked ({', '.join(names)}), and it is not said whose inputs the example is",
        hint="give a dict: example={" + ", ".join(f"{name!r}: ..." for name in names) + "}",
    )


def source_of(module: Any, example: Example | None, classic: Mapping[str, Any] | None = None) -> Source:
    """A live model as the source of an export, its tensors by canonical name.

    Raises:
        CannotCarryError: A tensor has no shape yet.
    """
    if is_keras(module):
        return Source({}, module, example, framework="keras")
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(tensor):
            raise CannotCarryError(
                f"a model file cannot hold {name}: it has no shape yet",
                path=name,
                type_name=type(tensor).__name__,
                hint="call the model once before it is exported",
            )
    return Source(ModulePart("model", module).state_dict(), module, example, classic=classic or {})


def is_keras(model: Any) -> bool:
    """Whether it is a Keras model; on the torch backend these are torch modules too."""
    return any(kind.__module__.partition(".")[0] == "keras" for kind in type(model).__mro__)


def export(
    model: Any,
    folder: str | os.PathLike[str],
    name: str = "model",
    *,
    example: Any = None,
    formats: Sequence[str] = ("pth", "safetensors"),
) -> dict[str, Path]:
    """Write a model as files that others load, each proved in a fresh process; without a run.

    Before a long training it shows whether the formats that you will want can hold your model.

    Args:
        model: A ``torch.nn.Module`` or a ``keras.Model``; it is not changed.
        folder: Where the files go; made if it is not there.
        name: Stem of the file names.
        example: What you would give to the model: a tensor or an array, a tuple of inputs, or a dict of inputs by
            name. Formats with a graph need it; the others are also proved by their outputs with it.
        formats: ``"pth"``, ``"pth-classic"``, ``"safetensors"``, ``"pt2"``, ``"onnx"``; for Keras models
            ``"keras"``, ``"h5"``, ``"savedmodel"``, ``"onnx"``.

    Returns:
        Format to path.

    Raises:
        ConfigError: No model, an unknown format, or no example where one is needed.
        CannotCarryError: A format cannot hold the model; it names the tensor or operator, and the format that can.
        MissingExtraError: A format needs a package that is not installed.
        DiskFullError: There is no room; nothing was written.
        CorruptError: A file is not what it should be; it was removed.
    """
    if not isinstance(model, nn.Module) and not is_keras(model):
        raise ConfigError(
            f"a model is a torch.nn.Module or a keras.Model, got {type(model).__name__}",
            hint="give the model itself",
        )
    facts = Facts(libraries=libraries())
    source = source_of(model, as_example(example))
    made = export_model(source, Path(folder).expanduser(), file_stem("", name), formats, facts)
    return _paths(made)


def _paths(made: Iterable[Exported]) -> dict[str, Path]:
    return {each.format: each.path for each in made}


def libraries() -> dict[str, str]:
    """Versions of python and of the packages that have a part in model files."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware(device: torch.device | None) -> dict[str, str]:
    """What the training ran on; no card is asked that is not in use already."""
    if device is None:
        return {}
    if device.type == "cuda" and torch.cuda.is_initialized():
        return {"device": device.type, "card": torch.cuda.get_device_name(device)}
    return {"device": device.type}


def _classic(run: Finished) -> dict[str, Any]:
    """The dict that the tutorials of PyTorch save, without the model."""
    facts = run.facts
    found: dict[str, Any] = {"epoch": facts.epoch, "step": facts.step, "metrics": dict(facts.metrics)}
    for path, optimizer in run.world.optimizers.items():
        found[f"{path}_state_dict"] = optimizer.state_dict()
    for part in run.world.parts():
        value = part.value
        if isinstance(value, (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)):
            found[f"{part.path}_state_dict"] = value.state_dict()
    for key, value in found.items():
        check_plain(key, value)
    return found
