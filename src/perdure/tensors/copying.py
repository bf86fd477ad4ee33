"""Copies of live memory into an arena, without holding the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from perdure.checkpoint.pieces import BLOCK_BYTES
from perdure.checkpoint.snapshot import Buffer
from perdure.tensors.arena import Arena
from perdure.tensors.encoding import Leaf, octets


@dataclass(frozen=True, slots=True)
class _Move:
    """A leaf, where its bytes will be, and whether they are there already."""

    leaf: Leaf
    target: memoryview
    stays: bool


class StateCopy:
    """A copy of leaves in host memory. Made at the boundary; the rest is called from other threads.

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
        self._moves: list[_Move] = []

    def lay_out(self, leaves: Sequence[Leaf], parked: Sequence[bool], still: Sequence[bool]) -> list[Buffer]:
        """Decide where each goes.

        Args:
            leaves: In the order in which they will be written.
            parked: Those that are nobody else's memory: on the host they need no copy.
            still: Those that are not expected to have changed since the last save.

        Returns:
            Where the bytes of each will be.

        Raises:
            OSError: There is not so much memory.
        """
        self._leaves = list(leaves)
        stays = [is_parked and _on_host(leaf.data) for leaf, is_parked in zip(leaves, parked, strict=True)]
        # What stays is skipped so that what follows lies in memory as it will in the file, block for block.
        sizes = [
            leaf.nbytes % BLOCK_BYTES if stay else leaf.nbytes for leaf, stay in zip(leaves, stays, strict=True)
        ]
        places = self._arena.lay_out(sizes)
        if self._streams:
            self._arena.pin()
        self._moves = [
            _Move(leaf, _bytes_of(leaf.data) if stay else place, stay)
            for leaf, place, stay in zip(leaves, places, stays, strict=True)
        ]
        return [
            Buffer(move.leaf.name, move.leaf.kind, move.leaf.dtype, move.leaf.shape, move.target, is_still)
            for move, is_still in zip(self._moves, still, strict=True)
        ]

    def run(self, arrived: Callable[[torch.cuda.Event | None], None]) -> None:
        """Copy; when this returns, the live memory on the host has been read.

        Args:
            arrived: Called for each leaf in turn, with what to synchronize with if a card still copies it.
        """
        events = [None if _on_host(move.leaf.data) else self._from_card(move) for move in self._moves]
        for move, event in zip(self._moves, events, strict=True):
            if event is None and not move.stays:
                copy_bytes(address_of(move.leaf.data), move.target)
            arrived(event)

    def let_wait(self) -> None:
        """Have the training's streams wait, on the card, until all that is copied from it is copied."""
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)

    def _from_card(self, move: _Move) -> torch.cuda.Event:
        data = move.leaf.data
        assert isinstance(data, torch.Tensor)
        stream = self._streams[data.device]
        with torch.cuda.stream(stream):
            if data.nbytes:
                torch.frombuffer(move.target, dtype=torch.uint8).copy_(octets(data), non_blocking=True)
            event = torch.cuda.Event(blocking=True)
            event.record(stream)
        data.record_stream(stream)
        return event


def copy_bytes(source: int, target: memoryview) -> None:
    """Copy ``target.nbytes`` bytes from an address, without holding the interpreter."""
    if target.nbytes:
        ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(target)), source, target.nbytes)


def digest_of_live(data: torch.Tensor | np.ndarray[Any, Any]) -> str:
    """The digest of contiguous bytes as they are now, where they are; from a GPU they are brought over first."""
    return xxhash.xxh3_128_hexdigest(_bytes_of(data.cpu() if isinstance(data, torch.Tensor) else data))


def address_of(data: torch.Tensor | np.ndarray[Any, Any]) -> int:
    """Where the bytes of a contiguous tensor or array begin."""
    if isinstance(data, torch.Tensor):
        return data.data_ptr()
    return int(data.__array_interface__["data"][0])


def _bytes_of(data: torch.Tensor | np.ndarray[Any, Any]) -> memoryview:
    if not data.nbytes:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * data.nbytes).from_address(address_of(data))).cast("B")


def _on_host(data: torch.Tensor | np.ndarray[Any, Any]) -> bool:
    return not isinstance(data, torch.Tensor) or data.device.type == "cpu"
