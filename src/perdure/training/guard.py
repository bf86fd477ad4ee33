"""What nobody changes before the next optimizer step, and the hook that makes the step wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

Optimizer = torch.optim.Optimizer


class Guard:
    """Hooks on the optimizers of a run.

    Args:
        before_step: Called with an optimizer when it is about to step.
    """

    def __init__(self, before_step: Callable[[Optimizer], None]) -> None:
        self._before_step = before_step
        self._hooks: dict[int, tuple[Optimizer, RemovableHandle]] = {}

    def attach(self, optimizers: Iterable[Optimizer]) -> None:
        """See to it that exactly these have the hook."""
        wanted = {id(optimizer): optimizer for optimizer in optimizers}
        for key in self._hooks.keys() - wanted.keys():
            self._hooks.pop(key)[1].remove()
        for key in wanted.keys() - self._hooks.keys():
            self._hooks[key] = (wanted[key], wanted[key].register_step_pre_hook(self._hook()))

    def detach(self) -> None:
        """Take all hooks away."""
        self.attach(())

    def parameters(self) -> Iterator[torch.Tensor]:
        """All that the optimizers hold."""
        for optimizer, _ in self._hooks.values():
            for group in optimizer.param_groups:
                yield from group["params"]

    def addresses(self) -> set[int]:
        """Where parameters and optimizer state begin in memory."""
        found = {parameter.data_ptr() for parameter in self.parameters()}
        for optimizer, _ in self._hooks.values():
            for state in optimizer.state.values():
                values = state.values() if isinstance(state, dict) else ()
                found.update(value.data_ptr() for value in values if isinstance(value, torch.Tensor))
        return found

    def _hook(self) -> Callable[[Optimizer, Any, Any], None]:
        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self._before_step(optimizer)

        # a compiled step would trace into it; importing dynamo for its sake would take seconds
        return torch.compiler.disable(before) if "torch._dynamo" in sys.modules else before
