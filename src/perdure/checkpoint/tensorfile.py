"""Tensor files: real safetensors files that prove themselves.

The header of a file holds the digest of each of its regions, and the name of the file is the digest of its
header: name, header and bytes can be checked against one another without a manifest.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from perdure.checkpoint.manifest import Entry, digest_of
from perdure.checkpoint.pieces import BLOCK_BYTES
from perdure.checkpoint.snapshot import Buffer, Streamed

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


@dataclass(frozen=True)
class Hashed:
    """A buffer and the digest of its bytes."""

    buffer: Buffer
    digest: str


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
        """All of it, in order. What comes in pieces is proved once more: it was digested in an earlier pass.

        Raises:
            OSError: It is not what was digested.
        """
        yield self.head
        for part, entry in zip(self.parts, self.entries, strict=True):
            if isinstance(part, memoryview):
                yield part
                continue
            state = xxhash.xxh3_128()
            for piece in part.pieces():
                state.update(piece)
                yield piece
            if state.hexdigest() != entry.digest:
                raise OSError(errno.EIO, f"{entry.name} was changed while it was saved", self.file)


@dataclass(frozen=True)
class Region:
    """A region of a tensor file, as its header tells: absolute offset, size in bytes, digest."""

    name: str
    offset: int
    nbytes: int
    digest: str


def hash_buffer(buffer: Buffer) -> Hashed:
    """The buffer with its digest.

    Raises:
        ValueError: The number of bytes is not that of its dtype and shape, or safetensors has no such dtype.
    """
    size = ITEM_BYTES.get(buffer.dtype)
    if size is None:
        raise ValueError(f"buffer {buffer.name!r}: safetensors has no dtype {buffer.dtype!r}")
    if buffer.data.nbytes != size * math.prod(buffer.shape):
        raise ValueError(f"buffer {buffer.name!r}: {buffer.data.nbytes} bytes for {buffer.dtype} of {buffer.shape}")
    return Hashed(buffer, buffer.digest or _digest(buffer.data))


def _digest(data: memoryview | Streamed) -> str:
    if isinstance(data, memoryview):
        return digest_of(data)
    state = xxhash.xxh3_128()
    for piece in data.pieces():
        state.update(piece)
    return state.hexdigest()


def plan_file(hashed: Sequence[Hashed]) -> TensorFile:
    """Lay out one file for these buffers, the widest items first, so that each is aligned to its item size.

    Among these, those that end at a multiple of ``ALIGNMENT`` come first, so that all of them begin at one.
    """
    ordered = sorted(hashed, key=lambda h: (-ITEM_BYTES[h.buffer.dtype], h.buffer.data.nbytes % ALIGNMENT != 0))
    header: dict[str, Any] = {
        _METADATA: {"format": "perdure", _DIGESTS: " ".join(h.digest for h in ordered)},
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
    text += b" " * (-(8 + len(text)) % (BLOCK_BYTES if end >= LARGE_BYTES else ALIGNMENT))
    head = len(text).to_bytes(8, "little") + text
    file = f"tensors/{digest_of(head)}.safetensors"
    entries = tuple(
        Entry(
            name=item.buffer.name,
            kind=item.buffer.kind,
            dtype=item.buffer.dtype,
            shape=tuple(item.buffer.shape),
            file=file,
            offset=len(head) + header[_key(item.buffer.name)]["data_offsets"][0],
            nbytes=item.buffer.data.nbytes,
            digest=item.digest,
        )
        for item in ordered
    )
    return TensorFile(file, head, tuple(item.buffer.data for item in ordered), entries, len(head) + end)


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
