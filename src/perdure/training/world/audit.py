"""What the state of a run leaves out, found in the first minute and said once."""

from __future__ import annotations

import copy
import gc
import itertools
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from perdure.checkpoint.values import MAX_DEPTH
from perdure.data.generators import GENERATOR_TYPES, capture_global, restore_global, state_of
from perdure.training.world.code import from_live, without_code
from perdure.training.world.fingerprint import fingerprint
from perdure.training.world.modules import plain
from perdure.training.world.refill import Refill, copied

SCRATCH_BYTES = 256_000_000
"""The most that a scratch copy of one tracked object may take."""

_MAX_OBJECTS = 20_000
_NO_PARTS = (type, str, bytes, int, float, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_MAX_DEPTH = 4


class Scratch:
    """A copy of a stateful object, made at ``track()``, into which its first saved state is restored.

    A copy made at the save would hold already what the state leaves out.

    Args:
        path: What the user calls the object.
        value: It. torch's own schedulers and scalers are known to be whole and are not copied.
    """

    def __init__(self, path: str, value: Any) -> None:
        self._path = path
        self._live = value
        self._copy: Any = None
        self._why_not = ""
        if type(value).__module__.partition(".")[0] == "torch":
            return
        if not _is_small(value):
            self._why_not = "too large for a scratch copy"
            return
        try:
            with generators_kept():
                self._copy = copy.deepcopy(value)
        except Exception as error:  # noqa: BLE001  any code may run in a copy; that it failed is told
            self._why_not = f"it cannot be copied: {error}".splitlines()[0]

    def check(self, tracked: Collection[int]) -> Iterator[str]:
        """Restore the present state into the copy and compare. To be called once.

        Args:
            tracked: ``id`` of every object and tensor that is part of the run's state anyway.
        """
        scratch, self._copy = self._copy, None
        if self._why_not:
            yield f"{self._path}: whether its state_dict is complete could not be checked ({self._why_not})"
        if scratch is None:
            return
        state = copied(without_code(self._live.state_dict()))
        try:
            with generators_kept():
                scratch.load_state_dict(from_live(Refill()(None, state), scratch.state_dict()))
        except Exception as error:  # noqa: BLE001  it is told, and the real restore would raise it
            yield f"{self._path}: its load_state_dict refuses what its state_dict gives ({error!r})"
            return
        lost = sorted(set(_differing(self._path, scratch, self._live, tracked)))
        if lost:
            yield (
                f"changed since track, not in its state_dict: {', '.join(lost)}; "
                "a resumed run would have the old value: add it to state_dict() and load_state_dict()"
            )


@contextmanager
def generators_kept() -> Iterator[None]:
    """Undo what the block draws from the global random generators."""
    state = capture_global()
    try:
        yield
    finally:
        restore_global(state)


def untracked_schedulers(optimizers: Mapping[str, Any], tracked: Iterable[Any]) -> Iterator[str]:
    """A sentence for each scheduler that drives a tracked optimizer and is not tracked itself."""
    known = {id(value) for value in _with_nested(tracked)}
    paths = {id(optimizer): path for path, optimizer in optimizers.items()}
    for driver in _drivers(list(optimizers.values())):
        if id(driver) not in known:
            yield (
                f"{paths[id(driver.optimizer)]} is driven by a {type(driver).__name__} that is not tracked: its "
                "position would be lost; add it: run.track(scheduler=...)"
            )


def _with_nested(values: Iterable[Any]) -> Iterator[Any]:
    """Schedulers, and those inside of SequentialLR and ChainedScheduler."""
    for value in values:
        yield value
        yield from _with_nested(getattr(value, "_schedulers", ()))


def _drivers(optimizers: list[Any]) -> list[Any]:
    """Objects that hold one of the optimizers and step; found in two passes over the heap, some 50 ms each."""
    holders = gc.get_referrers(*optimizers) if optimizers else []
    dicts = [holder for holder in holders if type(holder) is dict]
    owners = [*holders, *(gc.get_referrers(*dicts) if dicts else [])]
    ours = {id(optimizer) for optimizer in optimizers}
    return list({id(owner): owner for owner in owners if _drives(owner, ours)}.values())


def _drives(owner: Any, optimizers: Collection[int]) -> bool:
    attributes = getattr(owner, "__dict__", None)
    if not isinstance(attributes, dict) or id(attributes.get("optimizer")) not in optimizers:
        return False
    return all(hasattr(owner, name) for name in ("step", "state_dict")) and not hasattr(owner, "param_groups")


def parts_of_graphs(path: str, value: Any, depth: int = 0) -> Iterator[str]:
    """Paths of tensors in plain containers that belong to an autograd graph, which no file can hold."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, torch.Tensor):
        if value.grad_fn is not None:
            yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parts_of_graphs(f"{path}[{key!r}]", item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from parts_of_graphs(f"{path}[{index}]", item, depth + 1)


def unhealthy(parameters: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of floating-point parameters that hold NaN or Inf."""
    checked = {n: p.detach() for n, p in parameters.items() if _can_be_unhealthy(p)}
    by_device: dict[torch.device, list[str]] = {}
    for name, parameter in checked.items():
        by_device.setdefault(parameter.device, []).append(name)
    found = []
    for names in by_device.values():
        # a finite sum proves that all are finite, in one pass and without a temporary of their size
        sums = torch.stack([_sum(checked[name]) for name in names])
        suspects = itertools.compress(names, (~torch.isfinite(sums)).tolist())
        found += [name for name in suspects if not bool(torch.isfinite(_wide(checked[name])).all())]
    return found


def _can_be_unhealthy(tensor: torch.Tensor) -> bool:
    if (
        isinstance(tensor, nn.parameter.UninitializedParameter)
        or tensor.is_meta
        or tensor.layout is not torch.strided
    ):
        return False
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 0


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a type that every operation knows."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    total = _wide(tensor).sum()
    return (total.real + total.imag if total.is_complex() else total).double()


def _is_small(value: Any) -> bool:
    """Whether everything that can be reached from an object takes little memory."""
    seen: set[int] = set()
    rest, total = [value], 0
    while rest:
        item = rest.pop()
        if id(item) in seen or isinstance(item, _NO_PARTS):
            continue
        seen.add(id(item))
        if isinstance(item, (torch.Tensor, np.ndarray)):
            total += item.nbytes
        elif isinstance(item, Mapping):
            rest += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            rest += item
        else:
            rest += getattr(item, "__dict__", {}).values()
        if len(seen) + len(rest) > _MAX_OBJECTS or total > SCRATCH_BYTES:
            return False
    return True


def _differing(path: str, before: Any, now: Any, tracked: Collection[int], depth: int = 0) -> Iterator[str]:
    """Paths of attributes and elements that are others in ``now`` than in ``before``."""
    for name, value in _children(now):
        old, where = dict(_children(before)).get(name), path + name
        if id(value) in tracked:
            continue
        print_of = _print_of(value)
        if print_of is not None:
            if print_of != _print_of(old):
                yield where
        elif type(old) is type(value) and depth < _MAX_DEPTH:
            yield from _differing(where, old, value, tracked, depth + 1)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    return [(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items()]


def _print_of(value: Any) -> Any:
    """Fingerprint of plain values, of a module's tensors, of a generator; None for what has parts of its own."""
    if isinstance(value, nn.Module):
        tensors = itertools.chain(value.named_parameters(), value.named_buffers())
        return fingerprint({name: plain(tensor) for name, tensor in tensors})
    return fingerprint(state_of(value) if isinstance(value, GENERATOR_TYPES) else value)
