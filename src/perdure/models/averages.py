"""Averages of weights (EMA, SWA) in a checkpoint: found by what they hold, under plain names of the model.

People keep an average in many ways: ``torch.optim.swa_utils.AveragedModel``, a copy of the model with ``module.``
or ``ema_model.`` before its names, an object whose ``state_dict`` holds a state_dict (Ultralytics, timm, YOLOX), or
one with a list of tensors in the order of ``parameters()`` (diffusers, torch_ema). All of them fit a tracked
module, name by name or place by place, and shape by shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.models.saved import Form, Forms, Outline, SavedModule

COUNTER = "n_averaged"
"""What ``AveragedModel`` counts its updates in; it is no part of the model."""

MAX_DEPTH = 4
"""Containers between a tracked object and its tensors."""

_WRAPPERS = ("_orig_mod", "module")


@dataclass(frozen=True)
class Average:
    """Other weights of a tracked module.

    Attributes:
        name: Where they are: ``ema``, ``ema.shadow``.
        of: The module that they fit; None if only the average was tracked.
        tensors: What they hold, by the names of the module.
        counter: The number of updates, where it is known what that is.
        is_module: It was tracked as a module, and there is nothing else in it.
    """

    name: str
    of: SavedModule | None
    tensors: Forms
    counter: Form | None = None
    is_module: bool = False

    @property
    def complete(self) -> Forms:
        """Its tensors, and those of the module that it does not hold, in the module's order."""
        if self.of is None:
            return self.tensors
        return {name: self.tensors.get(name, form) for name, form in self.of.tensors.items()}

    @property
    def borrowed(self) -> list[str]:
        """Names of the tensors that it does not hold."""
        return [] if self.of is None else [name for name in self.of.tensors if name not in self.tensors]


def averages_of(outline: Outline) -> list[Average]:
    """Every average in a checkpoint; several of one object come with their place in it."""
    own = {path: module for path, module in outline.modules.items() if not is_averaged_model(module)}
    found = [average for path, module in outline.modules.items() if (average := _of_module(path, module, own))]
    for path, part in outline.others.items():
        found += _in_state(path, part.get("state", part.get("value")), own)
    return found


def is_averaged_model(module: SavedModule) -> bool:
    """Whether this is an ``AveragedModel``: a counter, and everything else in its ``module``."""
    names = [name for name in module.tensors if name != COUNTER]
    return COUNTER in module.buffers and bool(names) and all(name.startswith("module.") for name in names)


def _of_module(path: str, module: SavedModule, own: Mapping[str, SavedModule]) -> Average | None:
    """A tracked module that is a wrapped copy of another one; a plain copy is a module like any other."""
    for other in own.values():
        if other.path != path and not _fits(module.tensors, other):
            held = _by_name(module.tensors, other)
            if held:
                known = {form.entry for forms in (held, other.tensors) for form in forms.values()}
                alone = all(form.entry in known for form in module.parameters.values())
                return Average(path, other, held, module.buffers.get(COUNTER), is_module=alone)
    if is_averaged_model(module):
        plain = {name.removeprefix("module."): form for name, form in module.tensors.items() if name != COUNTER}
        return Average(path, None, plain, module.buffers[COUNTER], is_module=True)
    return None


def _in_state(path: str, state: Any, own: Mapping[str, SavedModule]) -> list[Average]:
    """The averages in the state of one object."""
    found = []
    for place, value in _containers("", state, MAX_DEPTH):
        for module in own.values():
            held = _by_name(value, module) if isinstance(value, Mapping) else _by_place(value, module)
            if held:
                found.append(Average(f"{path}{place}", module, held))
                break
    return [Average(path, found[0].of, found[0].tensors)] if len(found) == 1 else found


def _containers(place: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Every mapping and sequence that holds tensors, with its place."""
    if not isinstance(value, (Mapping, list, tuple)) or not depth:
        return
    items = list(value.items() if isinstance(value, Mapping) else enumerate(value))
    if any(isinstance(item, Form) and item.is_tensor for _, item in items):
        yield place, value
    for key, item in items:
        yield from _containers(f"{place}.{key}", item, depth - 1)


def _by_name(held: Mapping[Any, Any], module: SavedModule) -> Forms:
    """The tensors of the module that a mapping holds, under its plain names; empty if a parameter is missing.

    The names may stand behind a prefix. Of several the first counts that does not hold the live weights themselves.
    """
    plain = {_plain(name): form for name, form in held.items() if isinstance(name, str) and isinstance(form, Form)}
    for names in (plain, {name: form for name, form in held.items() if isinstance(form, Form)}):
        for prefix in _prefixes(names, module):
            inside = {name: names[prefix + name] for name in module.tensors if prefix + name in names}
            if _fits(inside, module) and not _same(inside, module):
                return inside
    return {}


def _prefixes(names: Forms, module: SavedModule) -> list[str]:
    first = next(iter(module.parameters), None)
    if first is None:
        return []
    return [name.removesuffix(first) for name in names if name == first or name.endswith(f".{first}")]


def _by_place(held: Sequence[Any], module: SavedModule) -> Forms:
    """The tensors of a list in the order of ``parameters()``: all of them, or those that are trained."""
    forms = [form for form in held if isinstance(form, Form) and form.is_tensor]
    for names in (module.unique, module.trained):
        shapes = [module.parameters[name].shape for name in names]
        if names and len(forms) == len(held) and [form.shape for form in forms] == shapes:
            return _with_ties(dict(zip(names, forms, strict=True)), module)
    return {}


def _with_ties(inside: Forms, module: SavedModule) -> Forms:
    tied = {name: inside[same[0]] for same in module.state["ties"] for name in same if same[0] in inside}
    return {**inside, **tied}


def _fits(held: Forms, module: SavedModule) -> bool:
    """Whether every parameter is there, in its shape, and no tensor is in another."""
    if not module.parameters or any(name not in held for name in module.parameters):
        return False
    return all(held[name].shape == form.shape for name, form in module.tensors.items() if name in held)


def _same(held: Forms, module: SavedModule) -> bool:
    """Whether these are the live weights, kept in a second place: they then have the same bytes in the file."""
    return all(form.entry == held[name].entry for name, form in module.parameters.items())


def _plain(name: str) -> str:
    return ".".join(word for word in name.split(".") if word not in _WRAPPERS)
