"""Whether two checkpoints hold the same state, and where they differ."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from perdure.checkpoint.manifest import Entry
from perdure.checkpoint.opened import Checkpoint
from perdure.checkpoint.tensorfile import ITEM_BYTES
from perdure.checkpoint.values import TAG, encode

_STRUCT = {
    **{"BOOL": "?", "U8": "B", "I8": "b", "U16": "H", "I16": "h", "F16": "e"},
    **{"U32": "I", "I32": "i", "F32": "f", "U64": "Q", "I64": "q", "F64": "d"},
}
_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Difference:
    """One difference.

    Attributes:
        path: Where: the name of an entry, or a place in the values.
        what: The difference in words.
    """

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def compare(a: Checkpoint, b: Checkpoint) -> list[Difference]:
    """Compare two checkpoints, entry by entry and value by value.

    Bytes count, and where they lie in files does not. Not compared: run, identity, count of saves, session,
    reason, times, libraries.

    Returns:
        The differences: position, entries in the order of ``a``, values, metrics. Empty if they are identical.

    Raises:
        CorruptError, UnreadableError: The bytes of an entry can no longer be read.
    """
    first, second = a.manifest, b.manifest
    metrics = [{name: encode(value, lambda *_: None) for name, value in m.metrics.items()} for m in (first, second)]
    return [
        *_values("position", asdict(first.position), asdict(second.position)),
        *_entries(a, b),
        *_values("", first.values, second.values),
        *_values("metrics", *metrics),
    ]


def _entries(a: Checkpoint, b: Checkpoint) -> Iterator[Difference]:
    theirs = {entry.name: entry for entry in b.manifest.entries}
    for mine in a.manifest.entries:
        other = theirs.pop(mine.name, None)
        if other is None:
            yield Difference(mine.name, "only in the first")
            continue
        for field in ("kind", "dtype", "shape"):
            one, two = getattr(mine, field), getattr(other, field)
            if one != two:
                yield Difference(mine.name, f"{field} {one} in the first, {two} in the second")
                break
        else:
            if mine.digest != other.digest:
                yield Difference(mine.name, _first_element(mine, a.buffer(mine.name), b.buffer(mine.name)))
    for name in theirs:
        yield Difference(name, "only in the second")


def _first_element(entry: Entry, one: memoryview, two: memoryview) -> str:
    """Where two buffers of one dtype and shape differ first, and how."""
    begin = next(
        i for i in range(0, entry.nbytes, _CHUNK_BYTES) if one[i : i + _CHUNK_BYTES] != two[i : i + _CHUNK_BYTES]
    )
    byte = next(i for i in range(begin, entry.nbytes) if one[i] != two[i])
    size = ITEM_BYTES.get(entry.dtype, 1)
    number = byte // size
    items = [view[number * size : (number + 1) * size] for view in (one, two)]
    shown = [_item(entry.dtype, item) for item in items]
    return f"element {_index(number, entry.shape)} is {shown[0]} in the first, {shown[1]} in the second"


def _item(dtype: str, data: memoryview) -> str:
    if dtype not in _STRUCT:
        return f"0x{bytes(reversed(data)).hex()}"
    return repr(struct.unpack(f"<{_STRUCT[dtype]}", data)[0])


def _index(number: int, shape: tuple[int, ...]) -> str:
    index: list[int] = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        index.insert(0, place)
    return str(index) if index else "0"


def _values(path: str, one: Any, two: Any) -> Iterator[Difference]:
    """Differences between two JSON trees; -0.0 and 0.0 differ, and so do 1 and 1.0."""
    if type(one) is dict and type(two) is dict and one.get(TAG) == two.get(TAG):
        yield from _objects(path, one, two)
    elif type(one) is list and type(two) is list:
        for index, (left, right) in enumerate(zip(one, two, strict=False)):
            yield from _values(f"{path}[{index}]", left, right)
        if len(one) != len(two):
            yield Difference(path or "values", f"{len(one)} items in the first, {len(two)} in the second")
    elif _text(one) != _text(two):
        yield Difference(path or "values", f"{_short(one)} in the first, {_short(two)} in the second")


def _objects(path: str, one: dict[str, Any], two: dict[str, Any]) -> Iterator[Difference]:
    if TAG not in one and list(one) != list(two) and set(one) == set(two):
        yield Difference(path or "values", "the same keys in another order")
    for key in {**one, **two}:
        place = path if key == "v" and TAG in one else f"{path}.{key}" if path else key
        if key not in two:
            yield Difference(place, "only in the first")
        elif key not in one:
            yield Difference(place, "only in the second")
        else:
            yield from _values(place, one[key], two[key])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
