"""The bytes of a tensor on a card, brought over in pieces: a state larger than the host's memory can be saved."""

from __future__ import annotations

from collections.abc import Iterator

import torch

PIECE_BYTES = 8 * 1024 * 1024
"""Brought over at a time; each reader holds two of them."""

STREAM_FROM_BYTES = 1024 * 1024
"""Smaller tensors come over whole."""


class CardBytes:
    """Bytes on a card. They are copied each time they are asked for, and must not change in between.

    Args:
        octets: They, contiguous, as ``uint8``. All that was asked of the card for them is done.
    """

    def __init__(self, octets: torch.Tensor) -> None:
        self._octets = octets

    @property
    def nbytes(self) -> int:
        """How many."""
        return self._octets.nbytes

    def pieces(self) -> Iterator[memoryview]:
        """All of them, in order; each piece is valid until the one behind the next is asked for."""
        places = [self._place() for _ in range(2)]
        for number, begin in enumerate(range(0, self.nbytes, PIECE_BYTES)):
            part = self._octets[begin : begin + PIECE_BYTES]
            place = places[number % 2][: part.nbytes]
            place.copy_(part)
            yield place.numpy().data

    def _place(self) -> torch.Tensor:
        size = min(PIECE_BYTES, self.nbytes)
        if self._octets.is_cuda:
            try:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True)
            except RuntimeError:  # the system does not lock so much memory: slower without
                pass
        return torch.empty(size, dtype=torch.uint8)
