"""What the classic dict in a ``.pth`` holds beside the model, out of a checkpoint: states as torch has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from perdure.checkpoint.opened import Checkpoint
from perdure.checkpoint.reader import read_manifest
from perdure.core.errors import CannotCarryError
from perdure.models.from_checkpoint import LIVE, Weights
from perdure.tensors.decoding import unflatten

_PLAIN = (bool, int, float, str, bytes, torch.Tensor)


def classic_of(folder: Path, weights: Weights) -> dict[str, Any]:
    """``epoch``, ``step``, ``metrics``, and ``<name>_state_dict`` of each optimizer and scheduler.

    The parameters of an optimizer, which checkpoints have by name, get the numbers that torch gives them: their
    places in its groups. An average has no optimizer and no scheduler: theirs are those of the live weights.

    Args:
        folder: The checkpoint.
        weights: The model.

    Raises:
        CannotCarryError: A state holds what the safe loader of torch would not read; it names the place.
        CorruptError: Its bytes are not what was written.
    """
    checkpoint = Checkpoint(folder, read_manifest(folder))
    manifest = checkpoint.manifest
    position = manifest.position
    found: dict[str, Any] = {"epoch": position.epoch, "step": position.step, "metrics": dict(manifest.metrics)}
    if weights.which == LIVE:
        found |= {f"{path}_state_dict": state for path, state in _states(checkpoint)}
    for path, value in found.items():
        check_plain(path, value)
    return found


def _states(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    """The states of optimizers, and of what counts its steps as schedulers do, by path."""
    objects = checkpoint.values.get("objects", {})
    for path, part in ((path, part) for saved in objects.values() for path, part in saved.items()):
        if part["kind"] == "optimizer":
            yield path, _optimizer_state(part, checkpoint)
        elif part["kind"] == "stateful" and isinstance(part["state"], dict) and "last_epoch" in part["state"]:
            yield path, unflatten(part["state"], checkpoint.buffer)


def _optimizer_state(part: Mapping[str, Any], checkpoint: Checkpoint) -> Any:
    if "own" in part:  # a wrapper says more of itself than torch's optimizers do
        return unflatten(part["own"], checkpoint.buffer)
    layer = unflatten(part["layers"][""], checkpoint.buffer)  # the outermost
    groups = layer["groups"]
    numbers = {name: number for number, name in enumerate(name for group in groups for name in group["members"])}
    return {
        "state": {numbers[name]: state for name, state in layer["state"].items() if name in numbers},
        "param_groups": [
            {**group["options"], "params": [numbers[name] for name in group["members"]]} for group in groups
        ],
    }


def check_plain(path: str, value: Any) -> None:
    """Refuse what the safe loader of torch would not read.

    Raises:
        CannotCarryError: It names the place.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            check_plain(f"{path}.{key}", each)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            check_plain(f"{path}[{index}]", each)
    elif value is not None and not isinstance(value, _PLAIN) and not hasattr(value, "item"):
        kind = type(value).__name__
        raise CannotCarryError(
            f"a pth-classic file cannot hold {path}: it is a {kind}, which the safe loader of torch refuses",
            path=path,
            type_name=kind,
            hint='use the format "pth"; the whole state is in the checkpoint',
        )
