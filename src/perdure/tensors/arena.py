"""Host memory for the copy of a state: laid out as the file will be, and used again for each save."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence

_PAGE_BYTES = mmap.PAGESIZE
_GROW = 1.01  # a state that grows a little does not need new memory at each save
_WIPEONFORK = 18  # madvise(2); the mmap module has no name for it


class Arena:
    """One block of memory that begins at a page, as direct writes want it.

    Children made by ``fork`` (data-loader workers) see zeros there: writing to pages that are shared with them
    would copy each of them first, and the state would be in memory twice. The place itself stays taken in them:
    where it was not (``MADV_DONTFORK``), a child that gave up its arena unmapped whatever it had put there itself.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._pinned = False

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return len(self._memory) if self._memory is not None else 0

    def lay_out(self, sizes: Sequence[int]) -> list[memoryview]:
        """Places for so many bytes each, one behind the other. What was laid out before is overwritten.

        Raises:
            OSError: There is not so much memory.
        """
        total = sum(sizes)
        if self.nbytes < total or self._memory is None:
            self.release()
            self._memory = _private(int(total * _GROW) + _PAGE_BYTES)
        whole = memoryview(self._memory)
        places = []
        begin = 0
        for size in sizes:
            places.append(whole[begin : begin + size])
            begin += size
        return places

    def pin(self) -> None:
        """Lock the pages for a GPU to write into directly (cudaHostRegister); without it copies are slower."""
        if self._memory is not None and not self._pinned:
            import torch

            address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
            self._pinned = int(torch.cuda.cudart().cudaHostRegister(address, self.nbytes, 0)) == 0

    def release(self) -> None:
        """Give the memory back, once nobody looks at it any more."""
        if self._memory is not None and self._pinned:
            import torch

            torch.cuda.cudart().cudaHostUnregister(ctypes.addressof(ctypes.c_char.from_buffer(self._memory)))
        self._memory, self._pinned = None, False


def _private(nbytes: int) -> mmap.mmap:
    nbytes += -nbytes % _PAGE_BYTES
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (_WIPEONFORK, mmap.MADV_HUGEPAGE):
        with contextlib.suppress(OSError):  # a kernel without it
            memory.madvise(advice)
    return memory
