"""Reading past the page cache what is not in it: to bring it in there first would cost a copy, and the memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from perdure.checkpoint.pieces import BLOCK_BYTES

_O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class PastCache:
    """Open files, read past the page cache where that is possible, and through it where it has the bytes.

    Args:
        files: Descriptors, open for reading; they stay the caller's.
        wanted: The names of those that will be read.
    """

    def __init__(self, files: Mapping[str, int], wanted: Iterable[str]) -> None:
        self._files = files
        self._direct: dict[str, int] = {}
        if _O_DIRECT and _NOWAIT:
            for file in wanted:
                with contextlib.suppress(OSError):  # a file system without it, or no /proc
                    self._direct[file] = os.open(
                        f"/proc/self/fd/{files[file]}", os.O_RDONLY | os.O_CLOEXEC | _O_DIRECT
                    )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._direct.values():
            os.close(fd)
        self._direct.clear()

    def read_into(self, file: str, target: memoryview, offset: int) -> int:
        """Fill memory from a place in a file; the count of bytes that were there.

        Args:
            file: Which.
            target: Whole blocks that begin at a page, or the rest of such.
            offset: In bytes.

        Raises:
            OSError: As the system says.
        """
        fd = self._direct.get(file)
        if fd is not None and offset % BLOCK_BYTES == 0 and not self._is_cached(file, target, offset):
            with contextlib.suppress(OSError):  # larger blocks; of anything else the other way tells
                return os.preadv(fd, [target], offset)
        return os.preadv(self._files[file], [target], offset)

    def _is_cached(self, file: str, target: memoryview, offset: int) -> bool:
        """Whether the first block is in the page cache; the others are as a rule where that one is."""
        try:
            return os.preadv(self._files[file], [target[:BLOCK_BYTES]], offset, _NOWAIT) > 0
        except OSError:
            return False
