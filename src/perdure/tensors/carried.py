"""Stand-ins for what a checkpoint cannot hold as it is."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, Final

import torch


class At:
    """A part of a state that has a place of its own in the user's words.

    Attributes:
        path: For messages and names, for example ``optimizer.state``.
        value: The part.
    """

    def __init__(self, path: str, value: Any) -> None:
        self.path = path
        self.value = value


def note_device(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Remember at a saved tensor, which is on the CPU, on which device it was."""
    vars(tensor)["saved_device"] = name
    return tensor


def saved_device(tensor: torch.Tensor) -> torch.device:
    """The device that a saved tensor was on, or the nearest to it that this machine has."""
    device = torch.device(vars(tensor).get("saved_device", "cpu"))
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            return torch.device("cpu")
        return device if (device.index or 0) < count else torch.device("cuda", 0)
    return device


class GeneratorState:
    """The state of a random generator that sits among plain values.

    Attributes:
        state: What ``perdure.data.generators.state_of`` gave.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = state


class LiveCode:
    """A function or class inside a state: code is taken from the live object, never from a file."""


LIVE_CODE: Final = LiveCode()


class Pickled:
    """Opt in to pickling one object that has no data-only form.

    ``run.track(env=perdure.Pickled(env))`` or ``run.vars.args = perdure.Pickled(args)``. On restore the state of a
    tracked object is put back in place; elsewhere it is unpickled when ``value`` is first read. A pickle can run
    code: use this only for checkpoints that you made yourself.

    Args:
        value: Any object that pickle can carry.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._data: bytes | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Pickled:
        """One that is unpickled when its value is first read."""
        made = cls(None)
        made._data = data
        return made

    @property
    def value(self) -> Any:
        """The object."""
        if self._data is not None:
            self._value, self._data = pickle.loads(self._data), None
        return self._value

    def to_bytes(self) -> bytes:
        """The pickle of the object as it is now."""
        return pickle.dumps(self._value) if self._data is None else self._data

    def take(self, saved: Pickled) -> None:
        """Take over the value of another one: in place if both are of one class and have a ``__dict__``."""
        if self._data is not None:  # nobody has opened this one; it stays closed
            self._data = saved.to_bytes()
            return
        new = Pickled.from_bytes(saved.to_bytes()).value
        if type(new) is type(self.value) and hasattr(new, "__dict__"):
            vars(self.value).clear()
            vars(self.value).update(vars(new))
        else:
            self._value = new
