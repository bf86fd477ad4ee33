"""Functions that hold a live model in their closure, as what wraps ``model.forward`` does: made to hold the copy.

``copy.deepcopy`` takes functions as they are. The copy of a model would call the live one, in train mode.
"""

from __future__ import annotations

import copy
import functools
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

LEFT_ALONE = (torch.utils.data.DataLoader, torch.utils.data.Dataset, torch.optim.Optimizer, torch.Generator)
"""Objects of these types stay the live ones: no forward pass needs them, and copies may be large."""


def rebound(value: Any, memo: dict[int, Any]) -> Any:
    """A function, a method or a ``partial`` that works on the copies; anything else as it is.

    Args:
        value: An attribute or hook of a copied module.
        memo: What ``copy.deepcopy`` noted of the objects that it copied.
    """
    if isinstance(value, MethodType):
        return MethodType(rebound(value.__func__, memo), value.__self__)
    if isinstance(value, functools.partial):
        words = {name: _copied(each, memo) for name, each in value.keywords.items()}
        return functools.partial(rebound(value.func, memo), *(_copied(each, memo) for each in value.args), **words)
    if not isinstance(value, FunctionType) or not value.__closure__:
        return value
    if id(value) in memo:
        return memo[id(value)]
    cells = tuple(CellType() for _ in value.__closure__)
    made = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    made.__kwdefaults__ = value.__kwdefaults__
    vars(made).update(vars(value))
    memo[id(value)] = made  # before its cells: it may hold itself
    for old, new in zip(value.__closure__, cells, strict=True):
        try:
            held = old.cell_contents
        except ValueError:  # empty: a name that is not bound yet
            continue
        new.cell_contents = _copied(held, memo)
    return made


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """The copy of what a closure holds; what Python cannot copy stays shared."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, LEFT_ALONE):
        return value
    if isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
        return MethodType(rebound(value.__func__, memo), _copied(value.__self__, memo))
    if isinstance(value, (FunctionType, MethodType, functools.partial)):
        return rebound(value, memo)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001  a client, a lock, a writer: no forward pass needs a copy of it
        return value
