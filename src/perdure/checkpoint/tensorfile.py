"""Tensor files: real safetensors files that prove themselves.

The header of a file holds the digest of each of its regions, and the name of the file is the digest of its
header: name, header and bytes can be checked against one another without a manifest.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from perdure.checkpoint.manifest import Entry, digest_of
from perdure.checkpoint.pieces import BLOCK_BYTES
from perdure.checkpoint.snapshot import Buffer, Hashed, Streamed

ALIGNMENT = 64
"""The data of a file begins at a multiple of this; every region then lies at a multiple of its item size."""

LARGE_BYTES = 1024 * 1024
"""From here on it begins at a whole block, so that it can be written, and read, past the page cache."""

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""The names of types that safetensors has, and their sizes in bytes."""

_METADATA = "__metadata__"
_DIGESTS = "xxh3_128"
_DIGEST_CHARACTERS = 32


@dataclass(frozen=True)
class TensorFile:
    """A tensor file as it will be written.

    Attributes:
        file: Its name, relative to the run folder.
        head: Everything before the data.
        parts: The data, in order.
        entries: Its regions, in the order of ``parts``.
        nbytes: Its size.
    """

    file: str
    head: bytes
    parts: tuple[memoryview | Streamed, ...]
    entries: tuple[Entry, ...]
    nbytes: int

    def content(self) -> Iterator[bytes | memoryview]:
        """All of it, in order.

        Raises:
            OSError: As for ``content_of``.
        """
        yield self.head
        for part, entry in zip(self.parts, self.entries, strict=True):
            yield from content_of(part, entry.name, entry.digest)


def content_of(data: memoryview | Streamed, name: str, digest: str) -> Iterator[memoryview]:
    """The bytes of a buffer. What comes in pieces is proved once more: it was digested in an earlier pass.

    Raises:
        OSError: It is not what was digested.
    """
    if isinstance(data, memoryview):
        yield data
        return
    state = xxhash.xxh3_128()
    for piece in data.pieces():
        state.update(piece)
        yield piece.toreadonly()  # is gathered then: by the time it is written there may be another in its place
    if state.hexdigest() != digest:
        raise OSError(errno.EIO, f"{name} was changed while it was saved")


@dataclass(frozen=True)
class Region:
    """A region of a tensor file, as its header tells: absolute offset, size in bytes, digest."""

    name: str
    offset: int
    nbytes: int
    digest: str


def check_buffers(buffers: Sequence[Buffer]) -> None:
    """Check that they can be saved.

    Raises:
        ValueError: Two have one name; the number of bytes of one is not that of its dtype and shape, or
            safetensors has no such dtype.
    """
    if len({buffer.name for buffer in buffers}) != len(buffers):
        raise ValueError("two buffers of the snapshot have one name")
    for buffer in buffers:
        size, nbytes = ITEM_BYTES.get(buffer.dtype), buffer.data.nbytes
        if size is None:
            raise ValueError(f"buffer {buffer.name!r}: safetensors has no dtype {buffer.dtype!r}")
        if nbytes != size * math.prod(buffer.shape):
            raise ValueError(f"buffer {buffer.name!r}: {nbytes} bytes for {buffer.dtype} of {buffer.shape}")


def hash_buffer(buffer: Buffer) -> Hashed:
    """The buffer with its digest."""
    return Hashed(buffer, _digest(buffer.data))


def _digest(data: memoryview | Streamed) -> str:
    if isinstance(data, memoryview):
        return digest_of(data)
    state = xxhash.xxh3_128()
    for piece in data.pieces():
        state.update(piece)
    return state.hexdigest()


def file_order(dtype: str, nbytes: int) -> tuple[int, bool]:
    """Sort key of buffers in a file: the widest items first, so that each is aligned to its item size.

    Among these, those that end at a multiple of ``ALIGNMENT`` come first, so that all of them begin at one.
    """
    return -ITEM_BYTES[dtype], nbytes % ALIGNMENT != 0


def head_room(buffers: Sequence[Buffer]) -> int:
    """Bytes that the head of a file takes at most, whichever of these buffers it holds; a multiple of a block."""
    return len(_head([Hashed(buffer, "0" * _DIGEST_CHARACTERS) for buffer in buffers], BLOCK_BYTES))


def plan_file(hashed: Sequence[Hashed], room: int = 0) -> TensorFile:
    """Lay out one file for these buffers.

    Args:
        hashed: They.
        room: Where its data begin, if that was decided before it was known which buffers it would hold.
    """
    ordered = sorted(hashed, key=lambda item: file_order(item.buffer.dtype, item.buffer.data.nbytes))
    data_bytes = sum(item.buffer.data.nbytes for item in ordered)
    head = _head(ordered, room or (BLOCK_BYTES if data_bytes >= LARGE_BYTES else ALIGNMENT))
    file = f"tensors/{digest_of(head)}.safetensors"
    ends = itertools.accumulate((item.buffer.data.nbytes for item in ordered), initial=len(head))
    entries = tuple(
        Entry(
            name=item.buffer.name,
            kind=item.buffer.kind,
            dtype=item.buffer.dtype,
            shape=tuple(item.buffer.shape),
            file=file,
            offset=offset,
            nbytes=item.buffer.data.nbytes,
            digest=item.digest,
        )
        for item, offset in zip(ordered, ends, strict=False)
    )
    return TensorFile(file, head, tuple(item.buffer.data for item in ordered), entries, len(head) + data_bytes)


def _head(ordered: Sequence[Hashed], multiple: int) -> bytes:
    """Everything before the data, filled up with spaces to a multiple of so many bytes."""
    header: dict[str, Any] = {
        _METADATA: {"format": "perdure", _DIGESTS: " ".join(item.digest for item in ordered)},
    }
    end = 0
    for item in ordered:
        begin, end = end, end + item.buffer.data.nbytes
        header[_key(item.buffer.name)] = {
            "dtype": item.buffer.dtype,
            "shape": list(item.buffer.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % multiple)
    return len(text).to_bytes(8, "little") + text


def _key(name: str) -> str:
    """The name of a buffer in a header, where one word is taken; the manifest has the true name."""
    return f"{name}_" if name.startswith(_METADATA) and not name.strip("_").removeprefix("metadata") else name


def read_regions(head: bytes) -> list[Region]:
    """The regions that a header names.

    Args:
        head: The file up to its data: eight bytes of length and the JSON header.

    Raises:
        ValueError: It is not a header of a tensor file of Perdure.
    """
    try:
        header = json.loads(head[8:])
        digests = header.pop(_METADATA)[_DIGESTS].split()
        spans = [(name, *item["data_offsets"]) for name, item in header.items()]
        return [
            Region(name, len(head) + begin, end - begin, digest)
            for (name, begin, end), digest in zip(spans, digests, strict=True)
        ]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no header of a tensor file: {error!r}") from None
