"""Gradients that nobody will read again: proved dead, they need not be saved.

``loader -> zero_grad -> backward -> step`` leaves gradients behind at each boundary, and drops them before they are
read. Saving them would cost one more copy of the parameters. The proof is the object itself: if the gradient that
was there at a boundary is gone when its optimizer next steps, nobody used it. It is demanded at several boundaries
before a save leaves a gradient out, and once more after that save, before it is committed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch.utils.weak import WeakIdKeyDictionary

PROOFS = 3
"""Boundaries at which a gradient must have been dropped before one is left out."""

WORTH_BYTES = 16 * 1024 * 1024
"""Below this in all, gradients are saved, proof or no proof: a save that leaves some out has to wait for a step."""

_LESSONS = 6
"""Boundaries at which every gradient is looked at from the start; later only where there is a save."""


class GradientWatch:
    """Which parameters' gradients are dropped before their optimizer steps.

    Only parameters whose optimizer tells when it steps can be judged; all others' gradients are saved.

    Attributes:
        stepped: An optimizer has stepped since the last look; to be set by who sees it.
        violated: A gradient that was left out of the last save was used after all.
    """

    def __init__(self) -> None:
        self._proofs = WeakIdKeyDictionary()
        self._waiting: list[tuple[torch.Tensor, weakref.ref[torch.Tensor]]] = []
        self._left_out = False
        self._lessons = 0
        self.stepped = True
        self.violated = False

    @property
    def learning(self) -> bool:
        """Whether there is still something to learn."""
        return self._lessons < _LESSONS

    def look(self, parameters: Iterable[torch.Tensor]) -> bool:
        """A boundary: note the gradients that are there now; the verdict on those before is complete.

        Args:
            parameters: All that the watched optimizers hold.

        Returns:
            False if no optimizer has stepped since the last look: then nothing can be said yet.
        """
        if not self.stepped:
            return False
        self._judge(None)
        self._left_out, self.stepped = False, False
        self._lessons += 1
        for parameter in parameters:
            if parameter.grad is not None and self._proofs.get(parameter, 0) >= 0:
                self._waiting.append((parameter, weakref.ref(parameter.grad)))
        return True

    def before_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """An optimizer is about to step: a gradient that is still there is used."""
        self._judge({id(parameter) for parameter in parameters})

    def _judge(self, of: set[int] | None) -> None:
        rest = []
        for parameter, gradient in self._waiting:
            if of is not None and id(parameter) not in of:
                rest.append((parameter, gradient))
            elif gradient() is None:
                self._proofs[parameter] = self._proofs.get(parameter, 0) + 1
            else:
                self.violated |= self._left_out and self._proofs.get(parameter, 0) >= PROOFS
                self._proofs[parameter] = -1  # carried on once: never left out
        self._waiting = rest

    def dead(self) -> frozenset[int]:
        """Parameters, by ``id``, whose gradient may be left out of the save that is made at this boundary.

        Whether that was right shows at the next ``look`` that returns True: ``violated``.
        """
        self.violated = False
        dead = [p for p, g in self._waiting if self._proofs.get(p, 0) >= PROOFS and g() is p.grad]
        self._left_out = sum(p.nbytes for p in dead) >= WORTH_BYTES
        return frozenset(id(p) for p in dead) if self._left_out else frozenset()
