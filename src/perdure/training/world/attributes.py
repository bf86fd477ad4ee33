"""Plain attributes of modules and optimizers: those that training has changed belong to the state.

``self.calls += 1`` in a forward, the ``n`` of an optimizer wrapper. What is as it was at ``track()`` is left to
the script, so that a setting that was edited between two sessions is not set back.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from perdure.training.world.fingerprint import fingerprint, is_constant
from perdure.training.world.refill import Refill

MODULE_INTERNALS = frozenset(vars(nn.Module()))

_NO_STATE = (nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)


class Attributes:
    """Plain attributes of one object.

    Args:
        owner: Any object with a ``__dict__``.
        internals: Names that are none of the user's.
    """

    def __init__(self, owner: Any, internals: Iterable[str]) -> None:
        self.owner = owner
        self._internals = frozenset(internals)
        self._before = {name: fingerprint(value) for name, value in self._own()}
        self._inside = self._prints_inside(())
        self._same = {name: value for name, value in self._own() if is_constant(value)}

    def _own(self) -> list[tuple[str, Any]]:
        internals = self._internals
        return [(name, value) for name, value in vars(self.owner).items() if name not in internals]

    def changed(self) -> dict[str, Any]:
        """Plain attributes whose value is another than when this was made."""
        changed = {}
        for name, value in self._own():
            if self._same.get(name, self) is value:
                continue
            now = fingerprint(value)
            if now is not None and now != self._before.get(name):
                changed[name] = value
        return changed

    def left_out(self, tracked: Collection[int]) -> list[str]:
        """What has changed since inside of attributes that are no plain values: it is in no checkpoint.

        Args:
            tracked: ``id`` of every object that is part of the run's state by itself.
        """
        changed = []
        for name, mark in self._prints_inside(tracked).items():
            is_new_object = "." in name and name not in self._inside  # a helper made on first use
            if mark is not None and not is_new_object and self._inside.get(name) != mark:
                changed.append(name)
        return changed

    def _prints_inside(self, tracked: Collection[int]) -> dict[str, Any]:
        """Fingerprints one level down: of the attributes of objects, of dicts that parameters are the keys of."""
        marks: dict[str, Any] = {}
        for name, value in self._own():
            if id(value) in tracked or isinstance(value, _NO_STATE) or fingerprint(value) is not None:
                continue
            if isinstance(value, dict) and any(isinstance(key, torch.Tensor) for key in value):
                marks[name] = fingerprint(list(value.values()))
            elif not isinstance(value, (dict, list, tuple)) and not hasattr(value, "param_groups"):
                inside = getattr(value, "__dict__", {})
                marks |= {f"{name}.{key}": fingerprint(item) for key, item in inside.items()}
        return marks

    def forget(self) -> None:
        """Let every plain attribute count as changed: the object was not there at ``track()``."""
        self._before, self._same = {}, {}

    def restore(self, saved: Mapping[str, Any], refill: Refill) -> None:
        """Put saved ones back; a name that is a sub-module, parameter or buffer by now is left alone."""
        taken: set[str] = set()
        if isinstance(self.owner, nn.Module):
            taken = {*self.owner._modules, *self.owner._parameters, *self.owner._buffers}
        for name, value in saved.items():
            if name not in taken:
                vars(self.owner)[name] = refill(vars(self.owner).get(name), value)
