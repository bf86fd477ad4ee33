"""Schedulers, scalers, averages, samplers: whatever has ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

from typing import Any, ClassVar

from perdure.core.errors import StateMismatchError
from perdure.training.carried import At
from perdure.training.world.code import from_live, without_code
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

    @staticmethod
    def takes(value: Any) -> bool:
        """Whether it can say and take its state."""
        return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))

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
        state = from_live(refill(None, saved["state"]), self.value.state_dict())
        try:
            self.value.load_state_dict(state)
        except Exception as error:
            raise StateMismatchError(
                f"{self.path} does not take the state in the checkpoint",
                differences=[f"{self.path}: {type(error).__name__}: {error}"],
                hint=f"make {self.path} as it was made when the checkpoint was saved",
            ) from error

    def finish(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Nothing is left to do."""

    def restore_head(self, saved: Saved, names: ParameterNames, refill: Refill) -> None:
        """Give a copy of the state to its ``load_state_dict``."""
        self.restore(saved, names, refill)
