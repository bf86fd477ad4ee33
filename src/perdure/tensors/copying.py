"""Copies of live memory into an arena, with the digest of what arrived, without holding the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from perdure.checkpoint.snapshot import Buffer
from perdure.tensors.arena import Arena
from perdure.tensors.encoding import Leaf, octets

_PIECE_BYTES = 2 * 1024 * 1024
"""Copied, and digested while it is still in the cache of the processor."""


class StateCopy:
    """A copy of leaves in host memory. Made at the boundary; the rest may be called from another thread.

    What is on a GPU is copied by a stream beside the one that trains.

    Args:
        arena: Where to; overwritten.
        devices: Where the leaves are.
    """

    def __init__(self, arena: Arena, devices: Iterable[torch.device]) -> None:
        self._arena = arena
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        for device in {device for device in devices if device.type == "cuda"}:
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))  # all that was asked for before the boundary
            self._streams[device] = stream
        self._places: list[tuple[Leaf, memoryview, str]] = []

    def begin(self, leaves: Sequence[Leaf], parked: Sequence[bool]) -> None:
        """Copy; when this returns, the live memory on the host has been read.

        Args:
            leaves: In the order in which they will be written.
            parked: Those that are nobody else's memory: on the host they need no copy.
        """
        stay = [is_parked and _on_host(leaf.data) for leaf, is_parked in zip(leaves, parked, strict=True)]
        sizes = [0 if stays else leaf.nbytes for leaf, stays in zip(leaves, stay, strict=True)]
        targets = self._arena.lay_out(sizes)
        if self._streams:
            self._arena.pin()
        for leaf, target in zip(leaves, targets, strict=True):
            if target.nbytes and isinstance(leaf.data, torch.Tensor) and not _on_host(leaf.data):
                self._from_card(leaf.data, target)
        for leaf, target, stays in zip(leaves, targets, stay, strict=True):
            copied = not stays and _on_host(leaf.data)
            digest = copy_and_digest(address_of(leaf.data), target) if copied else ""
            self._places.append((leaf, _bytes_of(leaf.data) if stays else target, digest))

    def let_wait(self) -> None:
        """Have the training's streams wait, on the card, until all that is copied from it is copied."""
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)

    def finish(self) -> list[Buffer]:
        """The copied leaves with their digests, in the order that ``begin`` was given."""
        for stream in self._streams.values():
            stream.synchronize()
        return [
            Buffer(leaf.name, leaf.kind, leaf.dtype, leaf.shape, view, digest or _digest(view))
            for leaf, view, digest in self._places
        ]

    def _from_card(self, data: torch.Tensor, target: memoryview) -> None:
        stream = self._streams[data.device]
        with torch.cuda.stream(stream):
            torch.frombuffer(target, dtype=torch.uint8).copy_(octets(data), non_blocking=True)
        data.record_stream(stream)


def copy_and_digest(source: int, target: memoryview) -> str:
    """Copy ``target.nbytes`` bytes from an address; the digest of what arrived."""
    if not target.nbytes:
        return _digest(target)
    address = ctypes.addressof(ctypes.c_char.from_buffer(target))
    state = xxhash.xxh3_128()
    for begin in range(0, target.nbytes, _PIECE_BYTES):
        count = min(_PIECE_BYTES, target.nbytes - begin)
        ctypes.memmove(address + begin, source + begin, count)
        state.update(target[begin : begin + count])
    return state.hexdigest()


def digest_of_live(data: torch.Tensor | np.ndarray[Any, Any]) -> str:
    """The digest of contiguous bytes as they are now, where they are; from a GPU they are brought over first."""
    return _digest(_bytes_of(data.cpu() if isinstance(data, torch.Tensor) else data))


def address_of(data: torch.Tensor | np.ndarray[Any, Any]) -> int:
    """Where the bytes of a contiguous tensor or array begin."""
    if isinstance(data, torch.Tensor):
        return data.data_ptr()
    return int(data.__array_interface__["data"][0])


def _bytes_of(data: torch.Tensor | np.ndarray[Any, Any]) -> memoryview:
    if not data.nbytes:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * data.nbytes).from_address(address_of(data))).cast("B")


def _digest(view: memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(view)


def _on_host(data: torch.Tensor | np.ndarray[Any, Any]) -> bool:
    return not isinstance(data, torch.Tensor) or data.device.type == "cpu"
