"""Optimizer state whose memory a run goes on using: read where it will be, and never copied.

A model has its parameters when it is tracked, so what was saved of them is copied there. The state of a fresh
optimizer has no memory yet. What the checkpoint was read into can be that memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from perdure.checkpoint.manifest import Manifest
from perdure.hardware.host import memory
from perdure.training.world.optimizers import OptimizerPart, layers
from perdure.training.world.world import World

_ROOM = 2
"""Memory that must be there, in what is kept: where the live optimizer has a state already, it is there twice."""


def to_keep(manifest: Manifest) -> Collection[str]:
    """The entries of a checkpoint that are whole tensors in the state of an optimizer; none if memory is short."""
    names = set(_states(manifest.values))
    used = Counter(_entries(manifest.values))
    kept = {entry.name: entry.nbytes for entry in manifest.entries if entry.name in names and used[entry.name] == 1}
    return kept if _ROOM * sum(kept.values()) <= memory().available_bytes else ()


def _states(values: Any) -> Iterator[str]:
    """Entries of tensors in the state of an optimizer; what is not of the usual form is left out."""
    for saved in (saved for parts in _inside(_at(values, "objects")) for saved in _inside(parts)):
        if _at(saved, "kind") != OptimizerPart.kind or _at(saved, "own") is not None:
            continue
        for layer in _inside(_at(saved, "layers")):
            for form in (form for state in _inside(_at(layer, "state")) for form in _inside(state)):
                if _at(form, "$") == "tensor" and not {"lead", "parameter", "requires_grad"} & form.keys():
                    yield str(_at(form, "entry"))


def _inside(form: Any) -> Collection[Any]:
    return form.values() if isinstance(form, dict) and "$" not in form else ()


def _at(form: Any, key: str) -> Any:
    return form.get(key) if isinstance(form, dict) else None


def _entries(form: Any) -> Iterator[str]:
    """The entry of every reference in a JSON form, as often as it is referred to."""
    rest = [form]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            if "$" in value and isinstance(value.get("entry"), str):
                yield value["entry"]
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def adopt(world: World, saved_objects: Mapping[str, Any], kept: Collection[int]) -> dict[int, torch.Tensor]:
    """Put the memory of saved tensors into optimizers on the CPU, where there is no state yet.

    Args:
        world: The tracked objects.
        saved_objects: What was captured of them; of each the parts by path.
        kept: Addresses of the memory that may be given away; each holds one tensor.

    Returns:
        The saved tensors whose memory was given away, by its address.
    """
    names = world.parameter_names()
    parameters = dict(names.items())
    saved = {path: part for parts in saved_objects.values() for path, part in parts.items()}
    given: dict[int, torch.Tensor] = {}
    for part in world.parts():
        mine = saved.get(part.path, {})
        if isinstance(part, OptimizerPart) and _is_simple(mine) and not part.differences(mine, names):
            for path, optimizer in layers(part.value):
                state = mine["layers"].get(path, {}).get("state", {})
                given |= _give(getattr(optimizer, "state", None), state, parameters, kept)
    return given


def _is_simple(saved: Mapping[str, Any]) -> bool:
    """Whether its state goes where it says, and not through a wrapper's own ``load_state_dict`` first."""
    return saved.get("kind") == OptimizerPart.kind and "own" not in saved


def _give(
    live: Any, saved: Mapping[str, Mapping[Any, Any]], parameters: Mapping[str, torch.Tensor], kept: Collection[int]
) -> dict[int, torch.Tensor]:
    given: dict[int, torch.Tensor] = {}
    for name, values in saved.items() if isinstance(live, dict) else ():
        parameter = parameters.get(name)
        if parameter is None or live.get(parameter):
            continue
        mine = {key: value for key, value in values.items() if _address(value) in kept}
        if parameter.device.type != "cpu":
            mine = {}
        # Tensors of its own: what is done to one of them (``.data = ``, ``t_()``) is not done to what was saved.
        # Also where nothing is given: the order stays that of the checkpoint.
        live[parameter] = {key: value.detach() for key, value in mine.items()}
        given |= {_address(value): value for value in mine.values()}
    return given


def _address(value: Any) -> int:
    is_plain = type(value) is torch.Tensor and value.layout is torch.strided
    return value.untyped_storage().data_ptr() if is_plain else 0
