"""Buffers that are there already: digested by several threads, while the first of them are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from perdure.checkpoint.snapshot import Buffer, Hashed
from perdure.checkpoint.tensorfile import check_buffers, file_order, hash_buffer

_ALONE_BYTES = 64 * 1024 * 1024  # from here on digests are worth some threads
_BATCH_BYTES = 4 * 1024 * 1024  # given to a thread at a time
_THREADS = 4


class AtHand:
    """An ``Arrival`` of memory that nobody changes until the save is over.

    Args:
        buffers: What is to be saved.
        healthy: Tells whether all parameters are healthy; asked while the buffers are written.

    Raises:
        ValueError: The buffers are not what they say.

    Attributes:
        buffers: In the order of a tensor file.
    """

    def __init__(self, buffers: Sequence[Buffer], healthy: Callable[[], bool]) -> None:
        check_buffers(buffers)
        self.buffers = sorted(buffers, key=lambda buffer: file_order(buffer.dtype, buffer.data.nbytes))
        self._healthy = healthy

    def arrive(self) -> Iterator[Hashed]:
        """As ``Arrival.arrive``."""
        if sum(buffer.data.nbytes for buffer in self.buffers) < _ALONE_BYTES:
            yield from map(hash_buffer, self.buffers)
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            for batch in pool.map(_hash_all, _batches(self.buffers)):
                yield from batch

    def approve(self, hashed: Sequence[Hashed]) -> bool:
        """As ``Arrival.approve``."""
        return self._healthy()


def _hash_all(buffers: Sequence[Buffer]) -> list[Hashed]:
    return [hash_buffer(buffer) for buffer in buffers]


def _batches(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    batch: list[Buffer] = []
    nbytes = 0
    for buffer in buffers:
        batch.append(buffer)
        nbytes += buffer.data.nbytes
        if nbytes >= _BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
