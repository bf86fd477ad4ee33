"""Plain containers, arrays, tensors and random generators: refilled in place."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch

from perdure.data.generators import GENERATOR_TYPES
from perdure.tensors.carried import At, GeneratorState, Pickled
from perdure.training.world.names import ParameterNames
from perdure.training.world.part import Saved
from perdure.training.world.refill import Refill, copied, size_of

CONTAINERS = (dict, OrderedDict, defaultdict, Counter, list, deque, set)


class PlainPart:
    """A tracked container, array, tensor or ``Pickled`` object.

    Args:
        path: The name it is tracked under.
        value: It.
    """

    kind: ClassVar[str] = "plain"
    order: ClassVar[int] = 1

    def __init__(self, path: str, value: Any) -> None:
        self.path = path
        self.value = value

    @staticmethod
    def takes(value: Any) -> bool:
        """Whether it is something that can be refilled."""
        return type(value) in CONTAINERS or isinstance(value, (torch.Tensor, np.ndarray, Pickled))

    def capture(self, names: ParameterNames) -> dict[str, Any]:
        """Its content."""
        return {"value": At(self.path, self.value)}

    def head(self, names: ParameterNames, limit: int) -> tuple[dict[str, Any] | None, int]:
        """A copy, if it is small enough."""
        size = size_of(self.value, limit)
        if size > limit or isinstance(self.value, Pickled):
            return None, 0
        try:
            return {"value": At(self.path, copied(self.value))}, size
        except RecursionError:
            return None, 0  # it contains itself: the save refuses it, with its place

    def differences(self, saved: Saved, names: ParameterNames) -> list[str]:
        """Why it cannot be refilled."""
        was, here = _sort_of(saved["value"]), _sort_of(self.value)
        return [f"{self.path} is {was} in the checkpoint and {here} here"] if was != here else []

    def restore(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Refill it."""
        if not self.differences(saved, names):
            refill(self.value, saved["value"])

    def gradients(self, saved: Saved) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """It has no parameters."""
        return iter(())

    def restore_head(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Refill it."""
        self.restore(saved, names, refill)


class GeneratorPart(PlainPart):
    """A tracked random generator: the last to be put back, since other parts may draw while they are restored."""

    kind: ClassVar[str] = "generator"
    order: ClassVar[int] = 4

    @staticmethod
    def takes(value: Any) -> bool:
        """Whether it is a generator."""
        return isinstance(value, GENERATOR_TYPES)


def _sort_of(value: Any) -> str:
    """What must be equal for a refill."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype}, shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    if isinstance(value, deque):
        return f"a deque with maxlen={value.maxlen}"
    if isinstance(value, GeneratorState):
        return str(value.state["kind"]) + " generator"
    if isinstance(value, GENERATOR_TYPES):
        return str(copied(value).state["kind"]) + " generator"
    return f"a {type(value).__name__}"
