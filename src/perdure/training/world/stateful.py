"""Schedulers, scalers, averages, samplers: whatever has ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, ClassVar

import torch

from perdure.tensors.carried import At
from perdure.training.world.audit import Scratch
from perdure.training.world.code import load_own_state, without_code
from perdure.training.world.names import ParameterNames
from perdure.training.world.part import Saved
from perdure.training.world.refill import Refill, copied, size_of


class StatefulPart:
    """A tracked object with a state of its own.

    Args:
        path: The name it is tracked under.
        value: It.
    """

    kind: ClassVar[str] = "stateful"
    order: ClassVar[int] = 2

    def __init__(self, path: str, value: Any) -> None:
        self.path = path
        self.value = value
        self._large = False
        self._scratch: Scratch | None = Scratch(path, value)

    @staticmethod
    def takes(value: Any) -> bool:
        """Whether it can say and take its state."""
        return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))

    def check(self, tracked: Collection[int]) -> Iterator[str]:
        """What its state leaves out, found once, by restoring it into the copy made at ``track()``.

        Args:
            tracked: ``id`` of every object and tensor that is part of the run's state anyway.
        """
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            yield from scratch.check(tracked)

    def capture(self, names: ParameterNames) -> dict[str, Any]:
        """What its ``state_dict`` gives."""
        return {"state": At(self.path, without_code(self.value.state_dict()))}

    def head(self, names: ParameterNames, limit: int) -> tuple[dict[str, Any] | None, int]:
        """A copy, if it is small enough; a large one is not asked again, since the answer may cost a copy."""
        if self._large:
            return None, 0
        state = without_code(self.value.state_dict())
        size = size_of(state, limit)
        if size > limit:
            self._large = True
            return None, 0
        return {"state": At(self.path, copied(state))}, size

    def differences(self, saved: Saved, names: ParameterNames) -> list[str]:
        """Only its ``load_state_dict`` can tell."""
        return []

    def restore(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Give a copy of the state to its ``load_state_dict``.

        Raises:
            StateMismatchError: It refused.
        """
        load_own_state(self.path, self.value, saved["state"], refill)

    def gradients(self, saved: Saved) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """It has no parameters of its own."""
        return iter(())

    def restore_head(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Give a copy of the state to its ``load_state_dict``."""
        self.restore(saved, names, refill)
