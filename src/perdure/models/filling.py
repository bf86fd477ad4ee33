"""A fresh model filled with the weights of a checkpoint, or the differences that forbid it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from perdure.core.errors import StateMismatchError
from perdure.models.from_checkpoint import Weights
from perdure.tensors.carried import GeneratorState, LiveCode, Pickled

_NOT_DATA = (LiveCode, Pickled, GeneratorState)


def fill(model: nn.Module, weights: Weights, builder: str) -> None:
    """Give a fresh model the saved weights, and what else of the saved module a forward pass can see.

    The tensors are put in place of the model's own, without a copy: type and layout in memory are those of the
    checkpoint.

    Args:
        model: What ``build`` gave.
        weights: What belongs in it.
        builder: Who made it, for messages.

    Raises:
        StateMismatchError: It is another model; each difference is named.
    """
    named = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    slots = dict(itertools.chain(*named))
    found = [*_missing(weights.tensors, slots, set(model.state_dict())), *_other_shapes(weights.tensors, slots)]
    found = found or _other_ties(weights.tensors, slots)
    if found:
        raise StateMismatchError(
            f"the model of {builder} is not the one in the checkpoint",
            differences=found,
            hint="build it with the settings of the training",
        )
    for name, tensor in {**weights.hidden, **weights.tensors}.items():
        if name in slots:
            _put(slots[name], tensor)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in weights.extra.keys() & modules.keys():
        modules[name].set_extra_state(weights.extra[name])
    for name in weights.attributes.keys() & modules.keys():
        _set_attributes(modules[name], weights.attributes[name])


def _missing(
    tensors: Mapping[str, torch.Tensor], slots: Mapping[str, torch.Tensor], persistent: set[str]
) -> list[str]:
    lost = [name for name in tensors if name not in slots]
    new = [name for name in slots if name in persistent and name not in tensors]
    return [
        *(f"{name} is in the checkpoint ({tuple(tensors[name].shape)}) and not in it" for name in lost),
        *(f"{name} is in it ({_shape(slots[name])}) and not in the checkpoint" for name in new),
    ]


def _other_shapes(tensors: Mapping[str, torch.Tensor], slots: Mapping[str, torch.Tensor]) -> list[str]:
    return [
        f"{name} is of shape {tuple(tensor.shape)} in the checkpoint and {_shape(slots[name])} in it"
        for name, tensor in tensors.items()
        if name in slots and not _is_lazy(slots[name]) and slots[name].shape != tensor.shape
    ]


def _other_ties(tensors: Mapping[str, torch.Tensor], slots: Mapping[str, torch.Tensor]) -> list[str]:
    """Names that are one tensor in the model and hold different values in the checkpoint."""
    first: dict[int, str] = {}
    found = []
    for name, slot in slots.items():
        other = first.setdefault(id(slot), name)
        if name in tensors and other in tensors and other != name and not _alike(tensors[name], tensors[other]):
            found.append(f"{other} and {name} are one tensor in it and two in the checkpoint")
    return found


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)


def _is_lazy(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, (UninitializedParameter, UninitializedBuffer))


def _shape(tensor: torch.Tensor) -> str:
    return "no shape yet" if _is_lazy(tensor) else str(tuple(tensor.shape))


def _put(slot: torch.Tensor, tensor: torch.Tensor) -> None:
    if isinstance(slot, (UninitializedParameter, UninitializedBuffer)):
        slot.materialize(tensor.shape, dtype=tensor.dtype)
    slot.data = tensor


def _set_attributes(module: nn.Module, attributes: Mapping[str, Any]) -> None:
    taken = {*module._modules, *module._parameters, *module._buffers}
    for name, value in attributes.items():
        if name not in taken and not isinstance(value, _NOT_DATA):
            vars(module)[name] = value
