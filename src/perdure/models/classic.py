"""The state of an optimizer as torch has it, out of a checkpoint, for the classic dict in a ``.pth``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.checkpoint.reader import Checkpoint, read_manifest
from perdure.core.errors import CannotCarryError
from perdure.models.from_checkpoint import LIVE, Weights
from perdure.tensors.decoding import unflatten


def classic_of(folder: Path, weights: Weights) -> dict[str, Any]:
    """What people keep beside ``model_state_dict``: ``epoch``, ``step``, and ``optimizer_state_dict`` if it fits.

    The optimizer is the one that trains this module and nothing else; an average has none. Its parameters, which
    checkpoints have by name, get the numbers that torch gives them: their places in the groups.

    Args:
        folder: The checkpoint.
        weights: The model.

    Raises:
        CannotCarryError: Several optimizers train this module, or one trains other modules too.
        CorruptError: Its bytes are not what was written.
    """
    checkpoint = Checkpoint(folder, read_manifest(folder))
    position = checkpoint.manifest.position
    found: dict[str, Any] = {"epoch": position.epoch, "step": position.step}
    trainers = {path: part for path, part in _optimizers(checkpoint).items() if _trains(part, weights.module)}
    if not trainers or weights.which != LIVE:
        return found
    if len(trainers) > 1 or not all(_fits(part, weights) for part in trainers.values()):
        raise CannotCarryError(
            f"the classic dict has one optimizer of one model; {weights.module} is trained by {_listed(trainers)}",
            path=next(iter(trainers)),
            type_name="optimizer",
            hint='use the format "pth" for the weights; perdure.restore reads the checkpoint itself',
        )
    ((_, part),) = trainers.items()
    (layer,) = part["layers"].values()
    return found | {"optimizer_state_dict": _as_torch(unflatten(layer, checkpoint.buffer))}


def _optimizers(checkpoint: Checkpoint) -> dict[str, Any]:
    objects = checkpoint.values.get("objects", {})
    parts = {path: part for saved in objects.values() for path, part in saved.items()}
    return {path: part for path, part in parts.items() if part["kind"] == "optimizer"}


def _listed(trainers: Mapping[str, Any]) -> str:
    return ", ".join(trainers) if len(trainers) > 1 else f"{next(iter(trainers))}, which trains more"


def _members(part: Mapping[str, Any]) -> set[str]:
    groups = [group for layer in part["layers"].values() for group in layer["groups"]]
    return {name for group in groups for name in group["members"]}


def _trains(part: Mapping[str, Any], module: str) -> bool:
    return any(name.startswith(f"{module}.") for name in _members(part))


def _fits(part: Mapping[str, Any], weights: Weights) -> bool:
    """One plain optimizer, whose parameters are all in this module."""
    known = {f"{weights.module}.{name}" for name in weights.tensors}
    return len(part["layers"]) == 1 and _members(part) <= known


def _as_torch(layer: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for group in layer["groups"] for name in group["members"]]
    numbers = {name: number for number, name in enumerate(names)}
    groups = [
        {**group["options"], "params": [numbers[name] for name in group["members"]]} for group in layer["groups"]
    ]
    state = {numbers[name]: state for name, state in layer["state"].items() if name in numbers}
    return {"state": {**state, **layer["shared"]}, "param_groups": groups}
