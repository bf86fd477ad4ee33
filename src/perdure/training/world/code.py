"""Functions and classes inside a state: they stay in the script and never go into a file."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from typing import Any

import torch

from perdure.checkpoint.values import MAX_DEPTH
from perdure.core.errors import StateMismatchError
from perdure.tensors.carried import LIVE_CODE, LiveCode
from perdure.training.world.refill import Refill

_CODE = (
    *(type, functools.partial, types.FunctionType, types.MethodType),
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
)


def is_code(value: Any) -> bool:
    """Whether it is a function, method or class. An object that can be called is not: it may have a state."""
    return isinstance(value, _CODE)


def without_code(state: Any, depth: int = 0) -> Any:
    """The state with a mark wherever there is a function or class."""
    if is_code(state):
        return LIVE_CODE
    if depth > MAX_DEPTH:
        return state  # what is deeper is refused when it is saved
    if isinstance(state, dict):
        new = state.copy()
        for key, value in state.items():
            new[key] = without_code(value, depth + 1)
        return new
    if type(state) in (list, tuple):
        return type(state)(without_code(item, depth + 1) for item in state)
    if type(state) is deque:
        return deque((without_code(item, depth + 1) for item in state), state.maxlen)
    return state


def from_live(saved: Any, live: Any) -> Any:
    """The saved state with the code, and the devices of its tensors, of a live one at the same places."""
    if isinstance(saved, LiveCode):
        return live
    if isinstance(saved, torch.Tensor):
        return saved.to(live.device) if isinstance(live, torch.Tensor) and not live.is_meta else saved
    if isinstance(saved, dict):
        olds = live if isinstance(live, dict) else {}
        for key, value in saved.items():
            saved[key] = from_live(value, olds.get(key))
        if isinstance(saved, OrderedDict) and hasattr(live, "_metadata"):
            saved._metadata = live._metadata  # type: ignore[attr-defined]  # versions of a module's own format
        return saved
    if type(saved) in (list, tuple):
        items = list(live) if isinstance(live, (list, tuple)) else []
        items += [None] * (len(saved) - len(items))
        return type(saved)(from_live(new, old) for new, old in zip(saved, items, strict=False))
    return saved


def load_own_state(path: str, value: Any, saved: Any, refill: Refill) -> None:
    """Give a copy of a saved state to an object's ``load_state_dict``.

    Raises:
        StateMismatchError: It refused.
    """
    state = from_live(refill(None, saved), value.state_dict())
    try:
        value.load_state_dict(state)
    except Exception as error:
        raise StateMismatchError(
            f"{path} does not take the state in the checkpoint",
            differences=[f"{path}: {type(error).__name__}: {error}"],
            hint=f"make {path} as it was made when the checkpoint was saved",
        ) from error
