"""Saved values put back into live ones: in place wherever they fit, so that references elsewhere stay good."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from perdure.core.errors import StateMismatchError
from perdure.data.generators import GENERATOR_TYPES, set_state, state_of
from perdure.tensors.carried import GeneratorState, Pickled, saved_device
from perdure.tensors.regions import extent_of
from perdure.training.world.fingerprint import fingerprint

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


class Refill:
    """One restoring of a state.

    Dicts, lists, sets and deques of equal ``maxlen`` are refilled; so are arrays and leaf tensors of equal shape
    and dtype, and generators. Anything else is replaced by a copy of what was saved: the saved tree stays as it is
    and can be restored again. Saved tensors that share memory are copied into shared memory.

    Args:
        lent: Saved tensors whose memory live ones were given: nothing else is put there.
    """

    def __init__(self, lent: Iterable[torch.Tensor] = ()) -> None:
        self._copies: dict[tuple[int, str], torch.Tensor] = {}
        self._filled: dict[int, tuple[Any, Any]] = {}
        self._claims: dict[tuple[str, int], _Claim] = {}
        self._bound: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for saved in lent:
            self._claim(saved, saved.untyped_storage().data_ptr(), saved)

    def __call__(self, live: Any, saved: Any, *, device: torch.device | None = None) -> Any:
        """Put ``saved`` into ``live``.

        Args:
            live: What is there now; None if nothing is.
            saved: A value of a saved tree.
            device: Where its tensors belong; by default, where the live ones are.

        Returns:
            ``live`` if it could be refilled, else a new value.
        """
        new = saved
        if live is saved:
            pass
        elif isinstance(saved, torch.Tensor):
            new = self._tensor(live, saved, device)
        elif isinstance(saved, np.ndarray):
            new = self._array(live, saved)
        elif isinstance(saved, (dict, list, deque, set)):
            new = self._container(live, saved, device)
        elif type(saved) is tuple:
            olds = live if type(live) is tuple and len(live) == len(saved) else (None,) * len(saved)
            new = tuple(self(old, item, device=device) for old, item in zip(olds, saved, strict=True))
        elif isinstance(saved, GeneratorState):
            new = live if isinstance(live, GENERATOR_TYPES) else _new_generator(saved)
            set_state(new, saved.state)
        elif isinstance(saved, Pickled):
            new = live if isinstance(live, Pickled) else Pickled.from_bytes(saved.to_bytes())
            new.take(saved)
        return new

    def _container(self, live: Any, saved: Any, device: torch.device | None) -> Any:
        if not _fits(live, saved):
            live = deque(maxlen=saved.maxlen) if isinstance(saved, deque) else type(saved)()
        elif id(live) in self._filled:  # one live object in two places; were they one object in what was saved?
            if fingerprint(saved) == fingerprint(self._filled[id(live)][1]):
                return live
            live = type(saved)()
        self._filled[id(live)] = (live, saved)
        if isinstance(saved, set):
            live.clear()
            live |= saved
        elif isinstance(saved, dict):
            new = {key: self(live.get(key), item, device=device) for key, item in saved.items()}
            live.clear()
            live.update(new)
        else:
            olds = [*live, *[None] * len(saved)]
            items = [self(old, item, device=device) for old, item in zip(olds, saved, strict=False)]
            live.clear()
            live.extend(items)
        return live

    def _tensor(self, live: Any, saved: torch.Tensor, device: torch.device | None) -> torch.Tensor:
        if not isinstance(live, torch.Tensor):
            return self.copy(saved, device)
        if device is None and not live.is_meta:
            device = live.device
        if not self._can_fill(live, saved, device):
            return self.copy(saved, device)
        self.fill(live, saved)
        if live.is_leaf:
            live.requires_grad_(saved.requires_grad)
        return live

    def fill(self, live: torch.Tensor, saved: torch.Tensor) -> None:
        """Copy values into a tensor of the same shape; what shared memory with the saved one will do so again."""
        if not _is_same(live, saved):
            with torch.no_grad():
                live.copy_(saved)
        if saved.layout is torch.strided and saved.numel() and live.stride() == saved.stride():
            storage = saved.untyped_storage().data_ptr()
            if storage not in self._bound or self._bound[storage][1].nbytes < saved.nbytes:
                self._bound[storage] = (live, saved)

    def _can_fill(self, live: torch.Tensor, saved: torch.Tensor, device: torch.device | None) -> bool:
        return (
            live.shape == saved.shape
            and live.dtype == saved.dtype
            and live.device == device
            and live.layout is saved.layout is torch.strided
            and live.grad_fn is None
            and not live.is_inference()
            and not any(step == 0 and size > 1 for step, size in zip(live.stride(), live.shape, strict=True))
            and self._claim(live, live.untyped_storage().data_ptr(), saved)
        )

    def _array(self, live: Any, saved: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        fits = (
            type(live) is np.ndarray
            and live.shape == saved.shape
            and live.dtype == saved.dtype
            and live.flags.writeable
            and self._claim(live, _address(_root(live)), saved)
        )
        if not fits:
            return self._copy_array(saved)
        array: np.ndarray[Any, Any] = live
        array[...] = saved
        return array

    def _claim(self, live: Any, root: int, saved: Any) -> bool:
        """Whether this memory may be filled: not if other values went there before, through another view of it."""
        if live.nbytes == 0:
            return True
        extent, source = extent_of(live, "", {}), extent_of(saved, "", {})
        shift = source.low - extent.low if source.strides == extent.strides else None
        claim = _Claim(extent.low, extent.high, shift)
        before = self._claims.setdefault((extent.device, root), claim)
        return before is claim or before.admits(claim)

    def copy(self, saved: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
        """A copy of a saved tensor, tied to the other copies as the saved ones are.

        Args:
            saved: A tensor of a saved tree.
            device: Where it belongs; by default, where it was when it was saved.
        """
        device = device or saved_device(saved)
        if saved.layout is not torch.strided:
            new = saved.detach().to(device, copy=True)
        elif saved.numel() == 0:
            new = torch.empty_strided(saved.shape, saved.stride(), dtype=saved.dtype, device=device)
        else:
            new = self._copy_tied(saved, device)
        if type(saved) is torch.nn.Parameter:
            return torch.nn.Parameter(new, requires_grad=saved.requires_grad)
        return new.requires_grad_(saved.requires_grad)

    def _copy_tied(self, saved: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A view of live memory if its saved memory went there, else a view of the copy of that memory."""
        storage = saved.untyped_storage()
        live, origin = self._bound.get(storage.data_ptr(), (None, None))
        new = saved.detach().new_empty(0, device=device)
        if live is not None and origin is not None and live.device == device and _covers(origin, saved):
            offset = live.data_ptr() - live.untyped_storage().data_ptr() + saved.data_ptr() - origin.data_ptr()
            if offset % saved.element_size() == 0:
                place = offset // saved.element_size()
                return new.set_(live.untyped_storage(), place, saved.shape, saved.stride())
        memory = self._memory(storage, device)
        return new.set_(memory.untyped_storage(), saved.storage_offset(), saved.shape, saved.stride())

    def _copy_array(self, saved: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        root = _root(saved)
        if root.dtype != np.uint8 or root.ndim != 1 or not saved.nbytes:
            return saved.copy(order="K")
        memory = self._memory(torch.from_numpy(root).untyped_storage(), torch.device("cpu"))
        offset = _address(saved) - _address(root)
        return np.ndarray(saved.shape, saved.dtype, memory.numpy(), offset, saved.strides)

    def _memory(self, storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
        """A copy of the memory behind saved tensors, one for all of them."""
        key = (storage.data_ptr(), str(device))
        if key not in self._copies:
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
            self._copies[key] = whole.set_(storage, 0, (storage.nbytes(),), (1,)).to(device, copy=True)
        return self._copies[key]


@dataclass
class _Claim:
    """Live memory that was filled: from ``low`` to ``high``, from memory that lies ``shift`` bytes further on.

    ``shift`` is None where it came from several places.
    """

    low: int
    high: int
    shift: int | None

    def admits(self, other: _Claim) -> bool:
        """Whether ``other`` writes what is there already, or lies apart; it is then part of this claim."""
        apart = other.low >= self.high or other.high <= self.low
        if other.shift is None or other.shift != self.shift:
            if not apart:
                return False
            self.shift = None
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        return True


def copied(value: Any) -> Any:
    """A copy of live plain values, tensors, arrays and generators that does not change with them."""
    new = value
    if isinstance(value, torch.Tensor):
        new = value.detach().clone().requires_grad_(value.requires_grad and value.is_leaf)
    elif isinstance(value, np.ndarray):
        new = value.copy(order="K")
    elif isinstance(value, GENERATOR_TYPES):
        new = GeneratorState(copied(state_of(value)))
    elif isinstance(value, Pickled):
        new = Pickled.from_bytes(value.to_bytes())
    elif isinstance(value, dict):
        new = copy.copy(value)  # keeps the class, and a defaultdict's factory
        for key, item in value.items():
            new[key] = copied(item)  # not update(): a Counter adds there
    elif isinstance(value, deque):
        new = deque((copied(item) for item in value), value.maxlen)
    elif type(value) in (list, tuple):
        new = type(value)(copied(item) for item in value)
    elif isinstance(value, set):
        new = set(value)
    return new


def size_of(value: Any, limit: int) -> int:
    """Bytes that a value takes in a checkpoint, roughly; not counted further once beyond ``limit``."""
    total = 0
    rest = [value]
    while rest and total <= limit:
        item = rest.pop()
        if isinstance(item, (torch.Tensor, np.ndarray)):
            total += item.nbytes
        elif isinstance(item, dict):
            rest += item.keys()
            rest += item.values()
            total += 16 * len(item)
        elif isinstance(item, (list, tuple, set, frozenset, deque)):
            total += 8 * len(item)
            rest += item
        elif isinstance(item, (str, bytes)):
            total += len(item)
        else:
            total += 5000 if isinstance(item, GENERATOR_TYPES) else 8
    return total


def _covers(origin: torch.Tensor, saved: torch.Tensor) -> bool:
    """Whether every byte of ``saved`` is one of ``origin``."""
    outer, inner = extent_of(origin, "", {}), extent_of(saved, "", {})
    is_dense = outer.high - outer.low == origin.nbytes
    return is_dense and outer.low <= inner.low and inner.high <= outer.high


def _fits(live: Any, saved: Any) -> bool:
    return type(live) is type(saved) and getattr(live, "maxlen", None) == getattr(saved, "maxlen", None)


def _is_same(live: torch.Tensor, saved: torch.Tensor) -> bool:
    """Whether these, of one shape and dtype, show the same memory in the same way."""
    return (
        live.layout is saved.layout is torch.strided
        and live.device == saved.device
        and live.dtype == saved.dtype
        and live.data_ptr() == saved.data_ptr() != 0
        and live.stride() == saved.stride()
        and live.is_conj() == saved.is_conj()
        and live.is_neg() == saved.is_neg()
    )


def _root(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _new_generator(saved: GeneratorState) -> Any:
    kind, state = saved.state["kind"], saved.state.get("state")
    if kind == "torch":
        return torch.Generator(saved.state["device"])
    if kind == "numpy":
        name = state["bit_generator"] if isinstance(state, dict) else None
        if name not in _BIT_GENERATORS:
            raise StateMismatchError(f"numpy has no bit generator {name!r} here", differences=[])
        return np.random.Generator(getattr(np.random, name)())
    return np.random.RandomState() if kind == "numpy-legacy" else random.Random()
