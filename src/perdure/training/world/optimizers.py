"""Optimizers: groups by parameter name, state exactly as it is.

``load_state_dict`` casts state to the type of the parameter and goes by order; here nothing is cast, and a group
that was added later comes back from the names of its members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import torch

from perdure.tensors.carried import At
from perdure.training.world.attributes import Attributes
from perdure.training.world.code import is_code, load_own_state, without_code
from perdure.training.world.modules import plain
from perdure.training.world.names import ParameterNames, join
from perdure.training.world.part import Saved
from perdure.training.world.refill import Refill, copied

_INTERNALS = frozenset(vars(torch.optim.SGD([torch.zeros(1)], lr=0.1)))
_WALKED = (list, tuple, dict)


def is_optimizer(value: Any) -> bool:
    """Whether it has the shape of an optimizer: ``param_groups``, ``step`` and ``zero_grad``."""
    return not isinstance(value, type) and all(
        hasattr(value, name) for name in ("param_groups", "step", "zero_grad")
    )


class OptimizerPart:
    """A tracked optimizer, or a wrapper around some.

    Args:
        path: The name it is tracked under.
        optimizer: It.
    """

    kind: ClassVar[str] = "optimizer"
    order: ClassVar[int] = 3

    def __init__(self, path: str, optimizer: Any) -> None:
        self.path = path
        self.value = optimizer
        self._attributes = {p: Attributes(o, _INTERNALS) for p, o in layers(optimizer)}

    # ---------------------------------------------------------------- capture

    def capture(self, names: ParameterNames) -> dict[str, Any]:
        """Its state; tensors are live references."""
        called = self._called(names)
        saved: dict[str, Any] = {
            "layers": {p: self._capture_layer(p, o, names, called) for p, o in layers(self.value)},
            "unnamed": At(self.path, self._unnamed_values(names)),
        }
        if _has_own_state(self.value):
            saved["own"] = At(self.path, without_code(self.value.state_dict()))
        return saved

    def _capture_layer(
        self, path: str, optimizer: Any, names: ParameterNames, called: Mapping[int, str]
    ) -> dict[str, Any]:
        where = join(self.path, path)
        state: dict[Any, Any] = {}
        shared: dict[Any, Any] = {}
        on_host: dict[str, list[str]] = {}
        for key, value in _state_of(optimizer).items():
            if not isinstance(key, torch.Tensor):
                shared[key] = value
                continue
            name = called.get(id(key)) or names.name_of(key)
            if name is not None:
                state[name] = value
                away = _on_host(key, value)
                if away:
                    on_host[name] = away
        return {
            "class": type(optimizer).__name__,
            "groups": [_group(group, called) for group in optimizer.param_groups],
            "state": At(f"{where}.state", {n: v if type(v) is dict else dict(v) for n, v in state.items()}),
            "shared": At(f"{where}.state", shared),
            "on_host": on_host,
            "attributes": At(where, self._attributes_of(path, optimizer).changed()),
        }

    def _attributes_of(self, path: str, optimizer: Any) -> Attributes:
        known = self._attributes.get(path)
        if known is None or known.owner is not optimizer:
            known = self._attributes[path] = Attributes(optimizer, _INTERNALS)
        return known

    def _called(self, names: ParameterNames) -> dict[int, str]:
        """Names of all its parameters; one that no tracked module has is called by its place."""
        called: dict[int, str] = {}
        for path, optimizer in layers(self.value):
            for index, group in enumerate(optimizer.param_groups):
                for position, p in enumerate(group["params"]):
                    if id(p) not in called:
                        called[id(p)] = names.name_of(p) or f"{path}[{index}][{position}]"
        return called

    def _places(self, known: ParameterNames | None = None) -> dict[str, torch.Tensor]:
        """Every parameter once, by layer, group and position; without those that are known by a name."""
        places: dict[str, torch.Tensor] = {}
        seen: set[int] = set()
        for path, optimizer in layers(self.value):
            for index, group in enumerate(optimizer.param_groups):
                for position, parameter in enumerate(group["params"]):
                    if known is not None and known.name_of(parameter) is not None:
                        continue
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        places[f"{path}[{index}][{position}]"] = parameter
        return places

    def unnamed(self, names: ParameterNames) -> dict[str, torch.Tensor]:
        """Parameters that no tracked module has, by their place: group and position."""
        return self._places(names)

    def _unnamed_values(self, names: ParameterNames) -> dict[str, Any]:
        return {
            place: {
                "value": plain(p),
                "grad": None if id(p) in names.dead else plain(p.grad),
                "requires_grad": p.requires_grad,
            }
            for place, p in self.unnamed(names).items()
        }

    def head(self, names: ParameterNames, limit: int) -> tuple[dict[str, Any] | None, int]:
        """Options and members of its groups."""
        called = self._called(names)
        return {
            "layers": {
                path: {"groups": copied([_group(group, called) for group in optimizer.param_groups])}
                for path, optimizer in layers(self.value)
            }
        }, 0

    def left_out(self, tracked: Collection[int]) -> list[str]:
        """What has changed inside of attributes that cannot be saved, by path."""
        if _has_own_state(self.value):
            return []
        return [
            f"{join(self.path, path)}.{attribute}"
            for path, optimizer in layers(self.value)
            for attribute in self._attributes_of(path, optimizer).left_out(tracked)
        ]

    # ---------------------------------------------------------------- restore

    def differences(self, saved: Saved, names: ParameterNames) -> list[str]:
        """Why ``saved`` does not fit, one sentence each."""
        here = {path: type(optimizer).__name__ for path, optimizer in layers(self.value)}
        found = []
        for path, layer in saved["layers"].items():
            where = join(self.path, path)
            if here.get(path) != layer["class"]:
                found.append(f"{where} is of class {layer['class']} in the checkpoint and {here.get(path)} here")
        found += self._unnamed_differences(saved, names)
        unnamed = set(saved["unnamed"])
        members = {n for layer in saved["layers"].values() for group in layer["groups"] for n in group["members"]}
        found += [
            f"{self.path} trains {name} in the checkpoint, which no tracked module has here"
            for name in sorted(members - unnamed)
            if not names.has(name)
        ]
        return found

    def _unnamed_differences(self, saved: Saved, names: ParameterNames) -> Iterator[str]:
        """A parameter without a name is found again by its place only, so the places must agree."""
        if not saved["unnamed"]:
            return
        was = {
            f"{path}[{index}]": len(group["members"])
            for path, layer in saved["layers"].items()
            for index, group in enumerate(layer["groups"])
        }
        here = {
            f"{path}[{index}]": len(group["params"])
            for path, optimizer in layers(self.value)
            for index, group in enumerate(optimizer.param_groups)
        }
        places = self._places()
        for group in sorted({place.rpartition("[")[0] for place in saved["unnamed"]}):
            if was[group] != here.get(group):
                yield (
                    f"{self.path}: group {group} has {was[group]} parameters in the checkpoint and "
                    f"{here.get(group, 0)} here; some belong to no tracked module"
                )
        for place, value in saved["unnamed"].items():
            live = places.get(place)
            was_like, is_like = _like(value["value"]), _like(live)
            if live is not None and was_like != is_like:
                yield f"{self.path}{place} is {was_like} in the checkpoint and {is_like} here"

    def restore(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Put values, groups and state back: a wrapper's own state first, the exact one on top."""
        if self.differences(saved, names):
            return
        found = self._found(saved, names)
        live = dict(layers(self.value))
        if "own" in saved and _has_own_state(self.value):
            for path, layer in saved["layers"].items():
                _restore_groups(live[path], layer["groups"], found, refill)  # a wrapper wants as many as it saved
            load_own_state(self.path, self.value, saved["own"], refill)
        for place, value in saved["unnamed"].items():
            with torch.no_grad():
                found[place].copy_(value["value"])
            found[place].requires_grad_(value["requires_grad"])
        for path, layer in saved["layers"].items():
            _restore_groups(live[path], layer["groups"], found, refill)
            _restore_state(live[path], layer, found, refill)
            self._attributes_of(path, live[path]).restore(layer["attributes"], refill)

    def _found(self, saved: Saved, names: ParameterNames) -> dict[str, torch.Tensor]:
        """The live parameter of every name in a saved state."""
        places = self._places()
        found: dict[str, torch.Tensor] = dict(names.items())
        return found | {place: places[place] for place in saved.get("unnamed", places) if place in places}

    def order_differences(self, saved: Any) -> list[str]:
        """Why a ``state_dict`` of torch's own form does not fit."""
        if _has_own_state(self.value):
            return []
        if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= saved.keys():
            return [f"{self.path}: that is not the state_dict of an optimizer"]
        was = [len(group["params"]) for group in saved["param_groups"]]
        here = [len(group["params"]) for group in self.value.param_groups]
        return [] if was == here else [f"{self.path} has groups of {was} parameters in the file and {here} here"]

    def load_by_order(self, saved: Saved, refill: Refill) -> None:
        """Take over a ``state_dict`` of torch's own form, which knows parameters by order only; without casts."""
        if _has_own_state(self.value):
            load_own_state(self.path, self.value, saved, refill)
            return
        sizes = [len(group["params"]) for group in saved["param_groups"]]
        places = [(f"[{g}][{i}]", g, i) for g, size in enumerate(sizes) for i in range(size)]
        found = {place: self.value.param_groups[g]["params"][i] for place, g, i in places}
        place_of = {saved["param_groups"][g]["params"][i]: place for place, g, i in places}
        groups = [
            {
                "options": {name: value for name, value in group.items() if name not in ("params", "param_names")},
                "members": [place_of[number] for number in group["params"]],
            }
            for group in saved["param_groups"]
        ]
        state = {place_of[number]: value for number, value in saved["state"].items() if number in place_of}
        _restore_groups(self.value, groups, found, refill)
        _restore_state(self.value, {"state": state, "on_host": {}, "shared": {}}, found, refill)

    def gradients(self, saved: Saved) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """The parameters that only this optimizer knows, each with the gradient that was saved."""
        places = self._places()
        for place, value in saved["unnamed"].items():
            if place in places:
                yield places[place], value["grad"]

    def restore_head(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Put options and members of the groups back."""
        live = dict(layers(self.value))
        found = self._found(saved, names)
        for path, layer in saved["layers"].items():
            members = [name for group in layer["groups"] for name in group["members"]]
            if path in live and all(name in found for name in members):
                _restore_groups(live[path], layer["groups"], found, refill)


def layers(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """An optimizer and those inside of it, outermost first, with the attribute path to each."""
    seen: set[int] = set()
    rest = [("", optimizer)]
    while rest:
        path, value = rest.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if not isinstance(value, _WALKED):
            yield path, value
        rest += [(join(path, name), item) for name, item in _inside(value)]


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        items = [(name, item) for name, item in getattr(value, "__dict__", {}).items() if name not in _INTERNALS]
    for name, item in items:
        if is_optimizer(item) or (isinstance(item, _WALKED) and 0 < len(item) <= 64):
            yield name, item


def _state_of(optimizer: Any) -> Mapping[Any, Any]:
    state = getattr(optimizer, "state", {})
    return state if isinstance(state, Mapping) else {}


def _has_own_state(optimizer: Any) -> bool:
    """Whether it says more of itself than torch's optimizers do."""
    own = getattr(type(optimizer), "state_dict", None)
    return own is not None and own is not torch.optim.Optimizer.state_dict and hasattr(optimizer, "load_state_dict")


def _group(group: Mapping[str, Any], called: Mapping[int, str]) -> dict[str, Any]:
    options = {name: value for name, value in group.items() if name != "params" and not is_code(value)}
    return {"options": options, "members": [called[id(parameter)] for parameter in group["params"]]}


def _like(parameter: torch.Tensor | None) -> str:
    return "absent" if parameter is None else f"{parameter.dtype} of shape {tuple(parameter.shape)}"


def _on_host(parameter: torch.Tensor, state: Mapping[str, Any]) -> list[str]:
    """Tensors that this optimizer keeps on the CPU although the parameter is elsewhere."""
    if parameter.is_cpu:
        return []
    return [key for key, value in state.items() if isinstance(value, torch.Tensor) and value.device.type == "cpu"]


def _restore_groups(
    optimizer: Any, saved: list[dict[str, Any]], found: Mapping[str, torch.Tensor], refill: Refill
) -> None:
    """Refill the list and the dicts themselves: wrappers and schedulers hold them."""
    groups = optimizer.param_groups
    del groups[len(saved) :]
    groups += [{"params": []} for _ in range(len(saved) - len(groups))]
    for group, new in zip(groups, saved, strict=True):
        group["params"][:] = [found[name] for name in new["members"]]
        device = next((p.device for p in group["params"]), None)
        for name, value in new["options"].items():
            live = group.get(name)
            group[name] = refill(live, value, device=None if isinstance(live, torch.Tensor) else device)


def _restore_state(optimizer: Any, layer: Saved, found: Mapping[str, torch.Tensor], refill: Refill) -> None:
    state = _state_of(optimizer)
    if not isinstance(state, dict):
        return
    options = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    kept = {id(found[name]) for name in layer["state"] if name in found}
    for key in [k for k in state if isinstance(k, torch.Tensor) and id(k) not in kept]:
        del state[key]
    for name, saved in layer["state"].items():
        if name not in found:
            continue
        parameter = found[name]
        live = state.setdefault(parameter, {})
        on_host = layer["on_host"].get(name, ())
        group = options.get(id(parameter), {})
        new = {
            key: refill(live.get(key), value, device=_device_of(key, parameter, group, on_host))
            for key, value in saved.items()
        }
        live.clear()
        live.update(new)
    for key, value in layer["shared"].items():
        state[key] = refill(state.get(key), value)


def _device_of(key: Any, parameter: torch.Tensor, group: Mapping[str, Any], on_host: Any) -> torch.device:
    """Where torch's own ``load_state_dict`` puts it: ``step`` stays on the CPU unless a device kernel counts it."""
    if key == "step":
        on_device = group.get("fused") or group.get("capturable")
        return parameter.device if on_device else torch.device("cpu")
    return torch.device("cpu") if key in on_host else parameter.device
