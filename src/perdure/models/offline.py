"""An export where no training runs: from a checkpoint, with a function that builds the model for a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from perdure.checkpoint.manifest import Manifest
from perdure.core.errors import ConfigError, PerdureError
from perdure.models.builder import build
from perdure.models.classic import classic_of
from perdure.models.export import export_model, file_stem, part_of_stem
from perdure.models.filling import fill
from perdure.models.formats import Example, Exported, Facts, Source
from perdure.models.from_checkpoint import LIVE, Read, Weights
from perdure.models.together import put_off, raise_first

NOT_A_RUN = "perdure.save"
"""The name of the run in checkpoints of ``perdure.save``."""


@dataclass(frozen=True)
class Made:
    """The files of one model.

    Attributes:
        weights: What they were made of.
        files: What was made.
    """

    weights: Weights
    files: tuple[Exported, ...]


@dataclass(frozen=True)
class Request:
    """What is to be made of a checkpoint.

    Attributes:
        folder: Where the files go.
        formats: Names of formats.
        name: What the user calls the model.
        builder: ``module:function``, or empty.
        example: Inputs, for formats with a graph.
    """

    folder: Path
    formats: Sequence[str]
    name: str = "model"
    builder: str = ""
    example: Example | None = None

    def into(self, folder: Path) -> Request:
        """The same, with another folder."""
        return replace(self, folder=folder)


def run_of(manifest: Manifest) -> str:
    """Name of the run; empty for what ``perdure.save`` made."""
    return "" if manifest.run == NOT_A_RUN else manifest.run


def export_read(read: Read, request: Request, model: nn.Module | None = None) -> list[Made]:
    """Write each model that was read from a checkpoint, as ``export_model`` does.

    Args:
        read: What ``read_weights`` gave.
        request: What is wanted.
        model: What the builder made; it is filled.

    Returns:
        A record for each model.

    Raises:
        ConfigError: A builder, and several models; or as ``export_model``.
        StateMismatchError: The builder makes another model than the one in the checkpoint.
        PerdureError: As ``export_model``.
    """
    if model is not None and len(read.weights) > 1:
        names = ", ".join(each.name for each in read.weights)
        raise ConfigError(
            f"{request.builder} builds one model, and the checkpoint holds several: {names}",
            hint=f"choose one: --only {read.weights[0].name}",
        )
    made: list[Made] = []
    errors: list[PerdureError] = []
    for each in read.weights:
        with put_off(errors):
            made.append(_exported(read, each, request, model))
    raise_first(errors)
    return made


def _exported(read: Read, weights: Weights, request: Request, model: nn.Module | None) -> Made:
    if model is not None:
        fill(model, weights, request.builder)
    framework = framework_of(model)
    source = Source(
        weights.tensors if framework == "torch" else {},
        model,
        request.example,
        framework=framework,
        classic=classic_of(read.folder, weights) if "pth-classic" in request.formats else {},
    )
    stem = _stem(read, weights, request.name)
    return Made(weights, tuple(export_model(source, request.folder, stem, request.formats, _facts(read, weights))))


def _stem(read: Read, weights: Weights, name: str) -> str:
    """As ``Run.export`` names models: one of several by its own name; an average always has its name in it."""
    run, step = run_of(read.manifest), read.manifest.position.step
    whole = file_stem(run, name)
    if weights.which != LIVE or not read.alone:
        whole = f"{whole}-{part_of_stem(weights.name)}"
    return file_stem("", whole, step if run else None)


def _facts(read: Read, weights: Weights) -> Facts:
    manifest = read.manifest
    return Facts(
        run=run_of(manifest),
        step=manifest.position.step,
        epoch=manifest.position.epoch,
        batch=manifest.position.batch,
        metrics=dict(manifest.metrics),
        libraries=dict(manifest.libraries),
        hardware={"device": ", ".join(_devices(weights.tensors))},
        weights=weights.which,
    )


def _devices(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The kinds of device that the tensors were on when they were saved."""
    names = {str(vars(tensor).get("saved_device", "cpu")) for tensor in tensors.values()}
    return sorted({name.partition(":")[0] for name in names})


def framework_of(model: Any) -> str:
    """``"keras"`` or ``"torch"``, told without importing either."""
    return "keras" if any(kind.__module__.startswith("keras.") for kind in type(model).__mro__) else "torch"


def build_model(request: Request) -> nn.Module | None:
    """What the builder makes; None without one."""
    return build(request.builder, Path.cwd()) if request.builder else None


def document_of(read: Read, made: Sequence[Made]) -> dict[str, Any]:
    """What was read and what was made of it, as plain values."""
    position = read.manifest.position
    return {
        "checkpoint": str(read.folder),
        "run": read.manifest.run,
        "step": position.step,
        "epoch": position.epoch,
        "notes": list(read.notes),
        "models": [
            {
                "module": each.weights.module,
                "weights": each.weights.which,
                "notes": list(each.weights.notes),
                "files": [_file(file) for file in each.files],
            }
            for each in made
        ],
    }


def _file(file: Exported) -> dict[str, Any]:
    return {
        "format": file.format,
        "path": str(file.path),
        "bytes": file.bytes,
        "digest": file.digest,
        "companions": [str(path) for path in file.companions],
        "parity": file.parity and asdict(file.parity),
        "notes": list(file.notes),
        "reused": file.reused,
    }
