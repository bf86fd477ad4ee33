"""Names of modules and parameters that do not change when a model is wrapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from perdure.core.errors import CannotCarryError

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class Slot(NamedTuple):
    """A place in a module where a parameter or buffer is, or None.

    Attributes:
        owner: The module.
        key: The name in that module.
    """

    owner: nn.Module
    key: str

    @property
    def parameter(self) -> nn.Parameter | None:
        """The parameter that is there now."""
        return self.owner._parameters[self.key]

    @property
    def buffer(self) -> torch.Tensor | None:
        """The buffer that is there now."""
        return self.owner._buffers[self.key]

    @property
    def is_persistent(self) -> bool:
        """Whether a buffer is part of the module's ``state_dict``."""
        return self.key not in self.owner._non_persistent_buffers_set


class ModuleNames:
    """Everything in a module, by canonical name.

    ``_orig_mod.`` (torch.compile) is left out at any depth, and so is the ``module.`` of DataParallel and
    DistributedDataParallel; other modules may call a child ``module`` and keep the name. Where two names become
    one, both keep what they were. A module that is reached by two ways has two names.

    Attributes:
        modules: The modules of a name: one, and its wrappers.
        parameters: Slots of parameters.
        buffers: Slots of buffers, persistent or not.
    """

    def __init__(self, root: nn.Module) -> None:
        found: list[_Found] = []
        _walk(root, "", "", set(), found)
        self.modules: dict[str, list[nn.Module]] = {}
        for name, _, module in found:
            self.modules.setdefault(name, []).append(module)
        self.parameters = _slots([(n, r, m, m._parameters) for n, r, m in found if m._parameters])
        self.buffers = _slots([(n, r, m, m._buffers) for n, r, m in found if m._buffers])


_Found = tuple[str, str, nn.Module]
"""Canonical name, name and module."""


def _walk(module: nn.Module, name: str, raw: str, above: set[int], found: list[_Found]) -> None:
    """Every module, depth first; cycles are not followed."""
    if isinstance(module, torch.jit.ScriptModule):
        raise CannotCarryError(
            f"{raw or 'the model'} is a TorchScript program, which keeps its parameters to itself",
            path=raw,
            type_name="ScriptModule",
            hint="give the module that it was made of: torch.jit.script shares its parameters",
        )
    found.append((name, raw, module))
    if not module._modules:
        return
    above.add(id(module))
    for key, child in module._modules.items():
        if child is None or id(child) in above:
            continue
        wraps = key == "_orig_mod" or (key == "module" and isinstance(module, _WRAPPERS))
        _walk(child, name if wraps else join(name, key), join(raw, key), above, found)
    above.discard(id(module))


def join(prefix: str, name: str) -> str:
    """``prefix.name``; either may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _slots(places: Sequence[tuple[str, str, nn.Module, Collection[str]]]) -> dict[str, Slot]:
    slots = {join(name, key): Slot(owner, key) for name, _, owner, keys in places for key in keys}
    if len(slots) == sum(len(keys) for _, _, _, keys in places):
        return slots
    known = [(join(n, key), join(raw, key), Slot(owner, key)) for n, raw, owner, keys in places for key in keys]
    count = Counter(name for name, _, _ in known)
    return {name if count[name] == 1 else raw: slot for name, raw, slot in known}


class ParameterNames:
    """Parameters of all tracked modules: ``model.fc.weight``.

    Args:
        modules: By the name they are tracked under.

    Attributes:
        modules: They.
        dead: Parameters, by ``id``, whose present gradient nobody will read.
    """

    def __init__(self, modules: Mapping[str, ModuleNames], dead: Collection[int] = ()) -> None:
        self.modules = modules
        self.dead = dead
        self._by_name: dict[str, nn.Parameter] = {}
        self._empty: set[str] = set()
        self._name_of: dict[int, str] = {}
        for tracked, names in modules.items():
            for name, slot in names.parameters.items():
                parameter, full = slot.owner._parameters[slot.key], join(tracked, name)
                if parameter is None:
                    self._empty.add(full)
                else:
                    self._by_name[full] = parameter
                    self._name_of.setdefault(id(parameter), full)

    def name_of(self, parameter: Any) -> str | None:
        """The first name of a parameter; None if no tracked module has it."""
        return self._name_of.get(id(parameter))

    def has(self, name: str) -> bool:
        """Whether there is a place for a parameter of this name, which need not be its first one."""
        return name in self._by_name or name in self._empty

    def items(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every name and parameter; a tied parameter comes more than once."""
        return iter(self._by_name.items())
