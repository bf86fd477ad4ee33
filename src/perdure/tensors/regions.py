"""Which tensors and arrays lie in the same memory, and how the bytes of each are stored."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from perdure.tensors import dtypes


@dataclass(slots=True)
class Extent:
    """A tensor or array with elements, and the memory it lies in.

    Attributes:
        value: It; held, so that its address stays its own.
        path: Where it is in the state.
        place: Its reference in the JSON document, completed by ``store``.
        device: Addresses are compared within a device only.
        low: Address of its first byte in memory.
        high: Address after its last one.
        itemsize: Bytes an element.
        shape: Its sizes.
        strides: Bytes from one element to the next, an axis each.
    """

    value: Any
    path: str
    place: dict[str, Any]
    device: str
    low: int
    high: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def spot(self) -> tuple[Any, ...]:
        """Equal for two that show the same elements in the same way."""
        return (self.low, self.high, self.shape, self.strides, str(self.value.dtype))


@dataclass(frozen=True)
class Block:
    """Bytes to be stored under one name.

    Attributes:
        path: Where the first tensor that it holds is in the state.
        kind: ``"tensor"``, ``"array"`` or ``"bytes"``.
        dtype: safetensors' name.
        shape: Sizes as stored.
        data: Contiguous tensor, array or memory whose bytes these are.
        places: References in the JSON document that get its name.
    """

    path: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    data: Any
    places: tuple[dict[str, Any], ...]


def extent_of(value: torch.Tensor | np.ndarray[Any, Any], path: str, place: dict[str, Any]) -> Extent:
    """Where a tensor or array with at least one element lies."""
    if isinstance(value, torch.Tensor):
        itemsize = value.element_size()
        strides = tuple(step * itemsize for step in value.stride())
        device, start = "cpu" if value.is_cpu else str(value.device), value.data_ptr()
        if value.is_contiguous():  # nearly all of a model: one look is enough
            end = start + value.numel() * itemsize
            return Extent(value, path, place, device, start, end, itemsize, tuple(value.shape), strides)
    else:
        itemsize, strides = value.itemsize, value.strides
        device, start = "cpu", value.__array_interface__["data"][0]
    shape = tuple(value.shape)
    reach = [(size - 1) * step for size, step in zip(shape, strides, strict=True)]
    low = start + sum(r for r in reach if r < 0)
    high = start + sum(r for r in reach if r > 0) + itemsize
    return Extent(value, path, place, device, low, high, itemsize, shape, strides)


def block_of(group: Sequence[Extent]) -> Block:
    """What is stored for tensors that overlap in memory, or for one that lies alone."""
    if len(group) > 1 and any(other.spot != group[0].spot for other in group):
        return _region(group)
    return _alone(group)


def overlapping(extents: Sequence[Extent]) -> list[list[Extent]]:
    """Those that overlap in memory together; in the order of the state, not of addresses."""
    order = sorted(range(len(extents)), key=lambda i: (extents[i].device, extents[i].low, i))
    group: list[int] = []
    end = 0
    groups: list[list[int]] = []
    for i in order:
        here = extents[i]
        if group and extents[group[0]].device == here.device and here.low < end:
            group.append(i)
            end = max(end, here.high)
        else:
            group = [i]
            groups.append(group)
            end = here.high
    for group in groups:
        group.sort()
    groups.sort()
    return [[extents[i] for i in group] for group in groups]


def _alone(group: Sequence[Extent]) -> Block:
    """One tensor, perhaps under several names: its own dtype; axes in the order in which they lie in memory."""
    first = group[0]
    value, axes = first.value, _memory_order(first)
    if axes is not None and axes != tuple(range(len(axes))):
        data = value.permute(axes) if isinstance(value, torch.Tensor) else value.transpose(axes)
        for extent in group:
            extent.place["strides"] = list(first.strides)
    elif isinstance(value, torch.Tensor):
        data = value.contiguous()
    else:
        data = np.ascontiguousarray(value).reshape(value.shape)
    dtype, shape = _stored_as(value, tuple(data.shape))
    return Block(first.path, _kind(value), dtype, shape, data, tuple(extent.place for extent in group))


def _memory_order(extent: Extent) -> tuple[int, ...] | None:
    """Axes from the slowest to the fastest if the elements fill the memory without a gap, else None."""
    axes = [axis for axis, size in enumerate(extent.shape) if size != 1]
    axes.sort(key=lambda axis: (-extent.strides[axis], axis))
    step = extent.itemsize
    for axis in reversed(axes):
        if extent.strides[axis] != step:
            return None
        step *= extent.shape[axis]
    if axes == sorted(axes):
        return tuple(range(len(extent.shape)))
    return (*(axis for axis, size in enumerate(extent.shape) if size == 1), *axes)


def _region(group: Sequence[Extent]) -> Block:
    """Several views of one memory: stored once, from the first byte that any of them shows to the last."""
    low, high = min(e.low for e in group), max(e.high for e in group)
    for extent in group:
        start = extent.low - sum(min(0, (n - 1) * s) for n, s in zip(extent.shape, extent.strides, strict=True))
        extent.place["strides"] = list(extent.strides)
        extent.place["offset"] = start - low
        if low % 16:
            extent.place["lead"] = low % 16
    places = tuple(extent.place for extent in group)
    for extent in group:
        if (extent.low, extent.high) == (low, high) and _memory_order(extent) == tuple(range(len(extent.shape))):
            dtype, shape = _stored_as(extent.value, extent.shape)
            return Block(extent.path, _kind(extent.value), dtype, shape, extent.value, places)
    return Block(group[0].path, "bytes", "U8", (high - low,), _memory(group, low, high), places)


def _memory(group: Sequence[Extent], low: int, high: int) -> Any:
    if group[0].device == "cpu":
        memory = memoryview((ctypes.c_ubyte * (high - low)).from_address(low))
        return np.frombuffer(memory, np.uint8)
    storage = group[0].value.untyped_storage()  # on a device, views of one memory are views of one storage
    bytes_ = torch.empty(0, dtype=torch.uint8, device=group[0].device)
    return bytes_.set_(storage, low - storage.data_ptr(), (high - low,), (1,))


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, torch.Tensor) else "array"


def _stored_as(value: Any, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    if isinstance(value, torch.Tensor):
        return dtypes.stored_as(value.dtype, shape)
    return dtypes.array_stored_as(value.dtype, shape)
