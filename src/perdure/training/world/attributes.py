"""Plain attributes of modules and optimizers: those that training has changed belong to the state.

``self.calls += 1`` in a forward, the ``n`` of an optimizer wrapper. What is as it was at ``track()`` is left to
the script, so that a setting that was edited between two sessions is not set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from perdure.training.world.fingerprint import fingerprint
from perdure.training.world.refill import Refill

MODULE_INTERNALS = frozenset(vars(nn.Module()))


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

    def _own(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(self.owner).items() if name not in self._internals]

    def changed(self) -> dict[str, Any]:
        """Plain attributes whose value is another than when this was made."""
        changed = {}
        for name, value in self._own():
            now = fingerprint(value)
            if now is not None and now != self._before.get(name):
                changed[name] = value
        return changed

    def forget(self) -> None:
        """Let every plain attribute count as changed: the object was not there at ``track()``."""
        self._before = {}

    def restore(self, saved: Mapping[str, Any], refill: Refill) -> None:
        """Put saved ones back; a name that is a sub-module, parameter or buffer by now is left alone."""
        taken: set[str] = set()
        if isinstance(self.owner, nn.Module):
            taken = {*self.owner._modules, *self.owner._parameters, *self.owner._buffers}
        for name, value in saved.items():
            if name not in taken:
                vars(self.owner)[name] = refill(vars(self.owner).get(name), value)
