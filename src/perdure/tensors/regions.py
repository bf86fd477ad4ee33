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
        value: A view of its own, so that its address stays its own and nobody else changes its shape.
        path: Where it is in the state.
        place: Its reference in the JSON document, completed by ``store``.
        device: Addresses are compared within a device only.
        low: Address of its first byte in memory.
        high: Address after its last one.
        itemsize: Bytes an element.
        dense: Its elements lie in their own order without a gap: nearly all of a model.
    """

    value: Any
    path: str
    place: dict[str, Any]
    device: str
    low: int
    high: int
    itemsize: int
    dense: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.value.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, an axis each."""
        return _strides(self.value)

    @property
    def spot(self) -> tuple[Any, ...]:
        """Equal for two that show the same elements in the same way."""
        return (self.low, self.high, self.shape, self.strides, str(self.value.dtype))


@dataclass(slots=True)
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
        start, dense, device = value.data_ptr(), value.is_contiguous(), "cpu" if value.is_cpu else str(value.device)
    else:
        start, dense, device = value.__array_interface__["data"][0], value.flags.c_contiguous, "cpu"
    itemsize = value.itemsize
    if dense:
        return Extent(value, path, place, device, start, start + value.nbytes, itemsize, True)
    reach = [(size - 1) * step for size, step in zip(value.shape, _strides(value), strict=True)]
    low = start + sum(r for r in reach if r < 0)
    high = start + sum(r for r in reach if r > 0) + itemsize
    return Extent(value, path, place, device, low, high, itemsize, False)


def _strides(value: Any) -> tuple[int, ...]:
    if isinstance(value, torch.Tensor):
        itemsize = value.itemsize
        return tuple(step * itemsize for step in value.stride())
    strides: tuple[int, ...] = value.strides
    return strides


def block_of(group: Sequence[Extent]) -> Block:
    """What is stored for tensors that overlap in memory, or for one that lies alone."""
    if len(group) > 1 and any(other.spot != group[0].spot for other in group):
        return _region(group)
    return _alone(group)


def overlapping(extents: Sequence[Extent]) -> list[list[Extent]]:
    """Those that overlap in memory together; in the order of the state, not of addresses."""
    by_device: dict[str, list[int]] = {}
    for i, extent in enumerate(extents):
        by_device.setdefault(extent.device, []).append(i)
    lows = [extent.low for extent in extents]
    groups = [group for indexes in by_device.values() for group in _joined(extents, lows, indexes)]
    rest = {i for group in groups for i in group}
    starts = {group[0]: group for group in groups}
    return [
        [extents[k] for k in starts[i]] if i in starts else [extent]
        for i, extent in enumerate(extents)
        if i in starts or i not in rest
    ]


def _joined(extents: Sequence[Extent], lows: Sequence[int], indexes: Sequence[int]) -> list[list[int]]:
    """Those of one device that overlap with others, in the order of the state; nearly all overlap with none."""
    groups: list[list[int]] = []
    first, end, open_ = -1, -1, False
    for i in sorted(indexes, key=lows.__getitem__):
        high = extents[i].high
        if lows[i] >= end:
            first, end, open_ = i, high, False
            continue
        if not open_:
            groups.append([first])
        groups[-1].append(i)
        end, open_ = max(end, high), True
    return [sorted(group) for group in groups]


def _alone(group: Sequence[Extent]) -> Block:
    """One tensor, perhaps under several names: its own dtype; axes in the order in which they lie in memory."""
    first = group[0]
    value, axes = first.value, None if first.dense else _memory_order(first)
    if first.dense:
        data = value
    elif axes is not None and axes != tuple(range(len(axes))):
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
    shape, strides = extent.shape, extent.strides
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    axes.sort(key=lambda axis: (-strides[axis], axis))
    step = extent.itemsize
    for axis in reversed(axes):
        if strides[axis] != step:
            return None
        step *= shape[axis]
    if axes == sorted(axes):
        return tuple(range(len(shape)))
    return (*(axis for axis, size in enumerate(shape) if size == 1), *axes)


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
