"""A copy of a live model to run and to trace: on the CPU, in eval mode, without wrappers.

The live model is never switched, called or moved, so that an export cannot disturb a training. Parameters that are
on the CPU already are shared, not copied.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from perdure.core.errors import CannotCarryError
from perdure.models.closures import LEFT_ALONE, rebound


def make_twin(module: nn.Module) -> nn.Module:
    """The copy.

    ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile`` are taken off at any depth. Outputs become
    plain dicts, lists and tensors.

    Raises:
        CannotCarryError: Python cannot copy something that the module holds.
    """
    try:
        twin = _copied(module, _prepared(module))
    except Exception as error:
        raise CannotCarryError(
            f"the model cannot be copied for its graph: {error}",
            path=type(module).__name__,
            type_name=type(error).__name__,
            hint="keep what cannot be copied (locks, open files, clients) out of the module; pth and safetensors "
            "need no copy where no example is given",
        ) from error
    twin = twin.eval()
    _return_plain(twin)
    return twin


def _prepared(module: nn.Module) -> dict[int, Any]:
    """What deepcopy shall use for the tensors, and for what is left alone."""
    memo: dict[int, Any] = {}
    for owner in module.modules():
        for value in vars(owner).values():
            if isinstance(value, torch.Tensor):  # deepcopy refuses those that are results of a computation
                memo[id(value)] = value.detach().cpu().clone()
            elif isinstance(value, LEFT_ALONE) or "Trainer" in type(value).__name__:
                memo[id(value)] = value
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().cpu(), requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.detach().cpu().clone()  # a forward pass may write into it
    return memo


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Deepcopy, innermost wrappers first, each replaced by what it wraps."""
    for owner in reversed(list(module.modules())):
        if (inner := unwrapped(owner)) is not owner:
            memo[id(owner)] = copy.deepcopy(inner, memo)
    twin: nn.Module = copy.deepcopy(module, memo)
    for owner in twin.modules():
        places: list[dict[Any, Any]] = [vars(owner), owner._forward_pre_hooks, owner._forward_hooks]
        for own in places:
            for name, value in list(own.items()):
                own[name] = rebound(value, memo)
    return twin


def unwrapped(module: nn.Module) -> nn.Module:
    """What a wrapper wraps; any other module as it is."""
    while True:
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            module = module.module
        elif isinstance(inner := module._modules.get("_orig_mod"), nn.Module):
            module = inner
        else:
            return module


def _return_plain(twin: nn.Module) -> None:
    forward = twin.forward

    @functools.wraps(forward)
    def plain(*args: Any, **kwargs: Any) -> Any:
        return as_plain(forward(*args, **kwargs))

    twin.forward = plain


def as_plain(value: Any) -> Any:
    """An output without classes that only its library knows; what holds no tensor is left out.

    A graph that returned the classes of a library could not be loaded where that library is not imported.
    """
    if isinstance(value, torch.Tensor):
        return value
    if is_dataclass(value) and not isinstance(value, (type, Mapping)):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): made for key, each in value.items() if _holds_tensor(made := as_plain(each))}
    if isinstance(value, (list, tuple)):
        return type(value)(made for each in value if _holds_tensor(made := as_plain(each)))
    return None


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or bool(value)


@contextmanager
def generators_untouched() -> Iterator[None]:
    """Put the global generators of python, numpy and torch back to where they were."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
