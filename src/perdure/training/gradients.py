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

PROOFS = 3
"""Boundaries at which a gradient must have been dropped before one is left out."""

WORTH_BYTES = 16 * 1024 * 1024
"""Below this in all, gradients are saved, proof or no proof: a save that leaves some out has to wait for a step."""

_LESSONS = 6
"""Boundaries at which every gradient is looked at from the start; later only where there is a save."""


class _Known:
    """What is known of one parameter.

    Attributes:
        of: The parameter, weakly: another one may have its ``id`` later.
        proofs: How often its gradient was dropped in time; -1 if it was not, once.
    """

    __slots__ = ("of", "proofs")

    def __init__(self, parameter: torch.Tensor) -> None:
        self.of = weakref.ref(parameter)
        self.proofs = 0


class GradientWatch:
    """Which parameters' gradients are dropped before their optimizer steps.

    Only parameters whose optimizer tells when it steps can be judged; all others' gradients are saved.

    Attributes:
        stepped: An optimizer has stepped since the last look; to be set by who sees it.
        violated: A gradient that was left out of the last save was used after all.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._waiting: list[tuple[torch.Tensor, weakref.ref[torch.Tensor], _Known]] = []
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
        parameters = list(parameters)
        for parameter in parameters:
            known = self._known.get(id(parameter))
            if known is None or known.of() is not parameter:
                known = self._known[id(parameter)] = _Known(parameter)
            gradient = parameter.grad if known.proofs >= 0 else None
            if gradient is not None:
                self._waiting.append((parameter, weakref.ref(gradient), known))
        if len(self._known) > 2 * len(parameters):  # most of them are gone
            self._known = {key: known for key, known in self._known.items() if known.of() is not None}
        return True

    def before_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """An optimizer is about to step: a gradient that is still there is used."""
        self._judge({id(parameter) for parameter in parameters})

    def _judge(self, of: set[int] | None) -> None:
        rest = []
        for waiting in self._waiting:
            parameter, gradient, known = waiting
            if of is not None and id(parameter) not in of:
                rest.append(waiting)
            elif gradient() is None:
                known.proofs += 1
            else:
                self.violated |= self._left_out and known.proofs >= PROOFS
                known.proofs = -1  # carried on once: never left out
        self._waiting = rest

    def dead(self) -> frozenset[int]:
        """Parameters, by ``id``, whose gradient may be left out of the save that is made at this boundary.

        Whether that was right shows at the next ``look`` that returns True: ``violated``.
        """
        self.violated = False
        dead = [p for p, gradient, known in self._waiting if known.proofs >= PROOFS and gradient() is p.grad]
        self._left_out = sum(p.nbytes for p in dead) >= WORTH_BYTES
        return frozenset(id(p) for p in dead) if self._left_out else frozenset()
