"""What the world asks of every kind of thing that can be tracked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

import torch

from perdure.training.world.names import ParameterNames
from perdure.training.world.refill import Refill

Saved = Mapping[str, Any]
"""What ``capture`` gave, after a way through a checkpoint."""


class Part(Protocol):
    """One tracked thing.

    Attributes:
        kind: The word for it in a checkpoint.
        order: Parts of a lower number are put back first.
        path: What the user calls it, for example ``model`` or ``nets["g"]``.
    """

    kind: ClassVar[str]
    order: ClassVar[int]
    path: str

    @property
    def value(self) -> Any:
        """The tracked object."""

    def capture(self, names: ParameterNames) -> dict[str, Any]:
        """Its state; tensors are live references."""

    def head(self, names: ParameterNames, limit: int) -> tuple[dict[str, Any] | None, int]:
        """The small part of its state that code at the head of an epoch may change, copied, and its size in bytes.

        Args:
            names: Names of parameters.
            limit: Give None instead of more bytes than this.
        """

    def differences(self, saved: Saved, names: ParameterNames) -> list[str]:
        """Why ``saved`` does not fit, one sentence each; empty if it does."""

    def restore(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Put a state of ``capture`` back, as far as it fits."""

    def gradients(self, saved: Saved) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Its live parameters, each with the gradient that was saved; put back after all parts."""

    def restore_head(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Put a state of ``head`` back."""
