"""Modules: every parameter and buffer, flags, plain attributes, gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from perdure.tensors.carried import At
from perdure.training.world.attributes import MODULE_INTERNALS, Attributes
from perdure.training.world.names import ModuleNames, ParameterNames, Slot, join
from perdure.training.world.part import Saved
from perdure.training.world.refill import Refill, copied, size_of

_READY = frozenset({nn.Parameter, torch.Tensor, type(None)})


class ModulePart:
    """A tracked module.

    Args:
        path: The name it is tracked under.
        module: It.
    """

    kind: ClassVar[str] = "module"
    order: ClassVar[int] = 0

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path = path
        self.value = module
        self._attributes = {
            id(m): Attributes(m, MODULE_INTERNALS) for ms in ModuleNames(module).modules.values() for m in ms
        }

    def names(self) -> ModuleNames:
        """What is in it now."""
        return ModuleNames(self.value)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers by canonical name; live references."""
        mine = self.names()
        tensors: dict[str, torch.Tensor | None] = {n: slot.parameter for n, slot in mine.parameters.items()}
        tensors |= {name: slot.buffer for name, slot in mine.buffers.items() if slot.is_persistent}
        return {name: data for name, tensor in tensors.items() if (data := plain(tensor)) is not None}

    # ---------------------------------------------------------------- capture

    def capture(self, names: ParameterNames) -> dict[str, Any]:
        """Its state; tensors are live references."""
        mine = names.modules[self.path]
        parameters = {name: slot.owner._parameters[slot.key] for name, slot in mine.parameters.items()}
        buffers = {name: slot.owner._buffers[slot.key] for name, slot in mine.buffers.items()}
        lazy = {n: True for n, t in (parameters | buffers).items() if is_lazy(t)}
        return {
            "parameters": At(self.path, {n: plain(p) for n, p in parameters.items() if n not in lazy}),
            "buffers": At(self.path, {n: plain(b) for n, b in buffers.items() if n not in lazy}),
            "transient": [name for name, slot in mine.buffers.items() if not slot.is_persistent],
            "lazy": list(lazy),
            "ties": _ties(parameters),
            "gradients": At(f"{self.path}.grad", dict(self._gradients(mine, names))),
            "extra": At(self.path, {n: m.get_extra_state() for n, m in _with_extra_state(mine)}),
            **self._flags(mine),
        }

    def _gradients(self, mine: ModuleNames, names: ParameterNames) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, slot in mine.parameters.items():
            parameter = slot.owner._parameters[slot.key]
            if parameter is None or id(parameter) in names.dead or parameter.grad is None:
                continue
            if names.name_of(parameter) == join(self.path, name):  # a tied one once
                yield name, plain(parameter.grad)

    def _flags(self, mine: ModuleNames) -> dict[str, Any]:
        parameters = ((name, slot.owner._parameters[slot.key]) for name, slot in mine.parameters.items())
        return {
            "training": {name: modules[-1].training for name, modules in mine.modules.items()},
            "frozen": [name for name, p in parameters if p is not None and not p.requires_grad],
            "attributes": At(self.path, dict(self._changed(mine))),
        }

    def _changed(self, mine: ModuleNames) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, modules in mine.modules.items():
            changed = self._attributes_of(modules[-1]).changed()
            if changed:
                yield name, changed

    def _attributes_of(self, module: nn.Module) -> Attributes:
        """Its plain attributes; of a module made after ``track()``, all count as changed."""
        known = self._attributes.get(id(module))
        if known is None or known.owner is not module:
            known = Attributes(module, MODULE_INTERNALS)
            known.forget()
            self._attributes[id(module)] = known
        return known

    def head(self, names: ParameterNames, limit: int) -> tuple[dict[str, Any] | None, int]:
        """Flags, and plain attributes if they are small."""
        flags = self._flags(names.modules[self.path])
        changed = flags["attributes"].value
        size = size_of(changed, limit)
        small = copied(changed) if size <= limit else {}
        return {**flags, "attributes": At(self.path, small)}, size if small else 0

    def left_out(self, tracked: Collection[int]) -> list[str]:
        """What has changed inside of attributes that cannot be saved, by path."""
        found = []
        for name, modules in self.names().modules.items():
            inside = self._attributes_of(modules[-1]).left_out(tracked)
            found += [f"{join(self.path, name)}.{attribute}" for attribute in inside]
        return found

    # ---------------------------------------------------------------- restore

    def differences(self, saved: Saved, names: ParameterNames) -> list[str]:
        """Why ``saved`` does not fit, one sentence each."""
        mine = self.names()
        found = [*_parameter_differences(saved, mine), *_buffer_differences(saved, mine)]
        for same in saved["ties"]:
            live = {id(mine.parameters[name].parameter) for name in same if name in mine.parameters}
            if len(live) > 1:
                found.append(f"{' and '.join(same)} are one tensor in the checkpoint and {len(live)} here")
        return [f"{self.path}: {line}" for line in found]

    def restore(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Put values, flags and attributes back, as far as they fit."""
        self.restore_values(saved, refill)
        self.restore_head(saved, names, refill)

    def restore_values(self, saved: Saved, refill: Refill) -> None:
        """Put parameters, buffers and extra state back, as far as they fit."""
        mine = self.names()
        for name, value in saved["parameters"].items():
            if name in mine.parameters and value is not None:
                _restore_parameter(mine.parameters[name], value, self.value, refill)
        for name, value in saved["buffers"].items():
            slot = mine.buffers.get(name) or _new_buffer(mine, name, persistent=name not in saved["transient"])
            if slot is not None:
                slot.owner._buffers[slot.key] = _refilled_buffer(slot, value, self.value, refill)
        for name, module in _with_extra_state(mine):
            if name in saved["extra"]:
                module.set_extra_state(refill(None, saved["extra"][name]))

    def restore_head(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Put flags and plain attributes back."""
        mine = self.names()
        frozen = set(saved["frozen"])
        for name, slot in mine.parameters.items():
            parameter = slot.parameter
            if parameter is not None and parameter.is_leaf:
                parameter.requires_grad_(name not in frozen)
        for name, training in saved["training"].items():
            for module in mine.modules.get(name, ()):
                module.training = training
        for name, attributes in saved["attributes"].items():
            for module in mine.modules.get(name, ())[-1:]:
                self._attributes_of(module).restore(attributes, refill)

    def gradients(self, saved: Saved) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Its live parameters, each with the gradient that was saved."""
        for name, slot in self.names().parameters.items():
            if slot.parameter is not None:
                yield slot.parameter, saved["gradients"].get(name)


def plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The values of a tensor without its graph and without its class, where the class only adds methods."""
    if tensor is None:
        return None
    data = tensor.detach()
    if type(data) is torch.Tensor or hasattr(data, "__tensor_flatten__"):
        return data
    return data.as_subclass(torch.Tensor)


def is_lazy(tensor: torch.Tensor | None) -> bool:
    """Whether it waits for the first forward to get a shape."""
    # the classes first: to ask isinstance for a kind of parameter takes longer than all the rest
    return type(tensor) not in _READY and isinstance(tensor, (UninitializedParameter, UninitializedBuffer))


def _ties(parameters: dict[str, nn.Parameter | None]) -> list[list[str]]:
    there = [(name, id(parameter)) for name, parameter in parameters.items() if parameter is not None]
    if len({key for _, key in there}) == len(there):
        return []
    same: dict[int, list[str]] = {}
    for name, key in there:
        same.setdefault(key, []).append(name)
    return [names for names in same.values() if len(names) > 1]


def _with_extra_state(mine: ModuleNames) -> Iterator[tuple[str, nn.Module]]:
    for name, modules in mine.modules.items():
        if type(modules[-1]).get_extra_state is not nn.Module.get_extra_state:
            yield name, modules[-1]


def _parameter_differences(saved: Saved, mine: ModuleNames) -> Iterator[str]:
    values = saved["parameters"]
    for name, value in values.items():
        live = mine.parameters[name].parameter if name in mine.parameters else None
        if live is None or is_lazy(live):
            if name not in mine.parameters and value is not None:
                yield f"{name} is in the checkpoint ({_shape(value)}) and not here"
        elif value is None:
            yield f"{name} is None in the checkpoint and {_shape(live)} here"
        elif live.shape != value.shape:
            yield f"{name} is {_shape(value)} in the checkpoint and {_shape(live)} here"
        elif live.dtype != value.dtype:
            yield f"{name} is {value.dtype} in the checkpoint and {live.dtype} here"
    for name, slot in mine.parameters.items():
        if name not in values and name not in saved["lazy"] and slot.parameter is not None:
            yield f"{name} is here ({_shape(slot.parameter)}) and not in the checkpoint"


def _buffer_differences(saved: Saved, mine: ModuleNames) -> Iterator[str]:
    values = saved["buffers"]
    for name, value in values.items():
        if name not in mine.buffers and value is not None and name.rpartition(".")[0] not in mine.modules:
            yield f"buffer {name} is in the checkpoint ({_shape(value)}) and not here"
    for name, slot in mine.buffers.items():
        if name not in values and name not in saved["lazy"] and slot.buffer is not None:
            yield f"buffer {name} is here ({_shape(slot.buffer)}) and not in the checkpoint"


def _shape(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    return "without a shape yet" if is_lazy(tensor) else f"shape {tuple(tensor.shape)}"


def _home(owner: nn.Module, root: nn.Module) -> torch.device:
    """Where new tensors of a module belong: with its own, else with those of the whole model."""
    for module in (owner, root):
        for tensor in (*module.parameters(), *module.buffers()):
            if not tensor.is_meta:
                return tensor.device
    return torch.get_default_device()


def _restore_parameter(slot: Slot, saved: torch.Tensor, root: nn.Module, refill: Refill) -> None:
    live = slot.parameter
    if live is None:
        made = nn.Parameter(refill.copy(saved, _home(slot.owner, root)))
        slot.owner._parameters[slot.key] = made
        return
    if isinstance(live, UninitializedParameter):
        live.materialize(saved.shape, dtype=saved.dtype)
    if live.shape != saved.shape or live.dtype != saved.dtype:
        return
    if live.is_meta:
        _materialise(slot.owner, live, saved, _home(slot.owner, root), refill)
        return
    refill.fill(live, saved)


def _materialise(
    owner: nn.Module, live: nn.Parameter, saved: torch.Tensor, device: torch.device, refill: Refill
) -> None:
    """Give a parameter on the meta device its values; it stays the same object, so optimizers need not be told."""
    new = nn.Parameter(refill.copy(saved, device), requires_grad=live.requires_grad)
    new.__class__ = type(live)
    vars(new).update(vars(live))
    if isinstance(owner, nn.RNNBase):
        owner._flat_weight_refs = []  # its weak references forbid the swap
    torch.utils.swap_tensors(live, new)
    if isinstance(owner, nn.RNNBase):
        owner._init_flat_weights()


def _new_buffer(mine: ModuleNames, name: str, *, persistent: bool) -> Slot | None:
    """A slot for a buffer that the fresh module has not registered yet."""
    path, _, key = name.rpartition(".")
    if path not in mine.modules:
        return None
    owner = mine.modules[path][-1]
    if vars(owner).get(key, 0) is None:
        del vars(owner)[key]
    owner.register_buffer(key, None, persistent=persistent)
    return Slot(owner, key)


def _refilled_buffer(
    slot: Slot, saved: torch.Tensor | None, root: nn.Module, refill: Refill
) -> torch.Tensor | None:
    live = slot.buffer
    if saved is None:
        return None
    if live is None or live.is_meta or is_lazy(live):
        return refill.copy(saved, _home(slot.owner, root))
    new: torch.Tensor = refill(live, saved)
    return new
