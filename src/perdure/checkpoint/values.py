"""Plain Python values as JSON and back, exactly.

Plain JSON stays plain. Everything else is an object with a ``"$"`` key that names its kind; ``docs/format.md``
lists them. Types are matched exactly: a subclass is not its base, and comes back as what it was or not at all.
"""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any

from perdure.core.errors import CannotCarryError, CorruptError

TAG = "$"
"""The key that marks a JSON object as the form of something that JSON does not have."""

MAX_DEPTH = 100
"""Containers within containers; the JSON of the standard library gives up at a few times that."""

EncodeLeaf = Callable[[Any, str], dict[str, Any] | None]
"""Gives the JSON object of a value that this module does not know, or None for "not mine either"."""

EncodeKinds = Mapping[type, Callable[[Any, str], Any]]
"""Gives the form of a value of exactly one of these types, without asking a leaf: for what is frequent."""

DecodeLeaf = Callable[[dict[str, Any]], Any]
"""Gives the value of a JSON object whose tag this module does not know."""

_INT64 = range(-(2**63), 2**64)
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_PAIRS: dict[type, str] = {
    dict: "dict",
    OrderedDict: "OrderedDict",
    defaultdict: "defaultdict",
    Counter: "Counter",
}
_AS_THEY_ARE = frozenset({NoneType, bool})
_ITEMS: dict[type, str] = {tuple: "tuple", deque: "deque", set: "set", frozenset: "frozenset"}


def encode(value: Any, leaf: EncodeLeaf, path: str = "", kinds: EncodeKinds | None = None) -> Any:
    """The JSON form of a value.

    Args:
        value: None, bool, int, float, complex, str, bytes, range, or list, tuple, dict, OrderedDict, defaultdict
            (without its factory), Counter, deque, set, frozenset of such; the exact types.
        leaf: Asked for everything else, with the place in words.
        path: Where ``value`` is, for messages; places below it are written as a user would index them.
        kinds: Asked before ``leaf``, by exact type.

    Raises:
        CannotCarryError: Something in it has no data-only form, contains itself, or is nested too deeply.
    """
    try:
        return _Encoder(leaf, kinds or {}).encode(value, path)
    except RecursionError:
        raise _refusal(value, path, "is nested too deeply") from None


def decode(data: Any, leaf: DecodeLeaf) -> Any:
    """The value of a JSON form; the reverse of ``encode``.

    Raises:
        CorruptError: A tagged object is not of the form that ``encode`` gives.
    """
    if type(data) is list:
        return [decode(item, leaf) for item in data]
    if type(data) is not dict:
        return data
    if TAG not in data:
        return {key: decode(item, leaf) for key, item in data.items()}
    tag = data[TAG]
    build = _BUILDERS.get(tag) if type(tag) is str else None
    return leaf(data) if build is None else build(data, leaf)


class _Encoder:
    def __init__(self, leaf: EncodeLeaf, kinds: EncodeKinds) -> None:
        self._leaf = leaf
        self._kinds = kinds
        self._open: set[int] = set()  # the containers that we are inside of, outermost to innermost

    def encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in self._kinds:
            return self._kinds[kind](value, path)
        if kind in _AS_THEY_ARE:
            return value
        if kind in _SCALARS:
            return _SCALARS[kind](value)
        if kind is not list and kind not in _ITEMS and kind not in _PAIRS:
            return self._foreign(value, path)
        if id(value) in self._open:
            raise _refusal(value, path, "contains itself")
        if len(self._open) >= MAX_DEPTH:
            raise _refusal(value, path, f"is nested more than {MAX_DEPTH} levels deep")
        self._open.add(id(value))
        try:
            return self._pairs(value, path) if kind in _PAIRS else self._items(value, path)
        finally:
            self._open.discard(id(value))

    def _items(self, value: Any, path: str) -> Any:
        kind = type(value)
        ordered = kind not in (set, frozenset)
        items = [
            _SCALARS[type(item)](item)
            if type(item) in _SCALARS
            else self.encode(item, f"{path}[{index}]" if ordered else f"an element of {path or 'the set'}")
            for index, item in enumerate(value)
        ]
        if kind is list:
            return items
        tagged = {TAG: _ITEMS[kind], "v": items}
        return {**tagged, "maxlen": value.maxlen} if kind is deque else tagged

    def _pairs(self, value: dict[Any, Any], path: str) -> Any:
        if type(value) is dict and TAG not in value and _are_texts(value):
            return self._plain_pairs(value, path)
        pairs = [
            [self.encode(key, f"a key of {path or 'the dict'}"), self.encode(item, _at(path, key))]
            for key, item in value.items()
        ]
        return {TAG: _PAIRS[type(value)], "v": pairs}

    def _plain_pairs(self, value: dict[str, Any], path: str) -> dict[str, Any]:
        form = {}
        begin, end = (f'{path}["', '"]') if path else ("", "")
        for key, item in value.items():
            kind = type(item)
            if kind in self._kinds:  # nearly all of a model
                form[key] = self._kinds[kind](item, begin + key + end)
            elif kind in _SCALARS:
                form[key] = _SCALARS[kind](item)
            else:
                form[key] = item if kind in _AS_THEY_ARE else self.encode(item, begin + key + end)
        return form

    def _foreign(self, value: Any, path: str) -> Any:
        form = self._leaf(value, path)
        if form is None:
            raise _refusal(value, path, "cannot be saved as data")
        return form


def _refusal(value: Any, path: str, why: str) -> CannotCarryError:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shown = path if len(path) <= 160 else f"{path[:100]} ... {path[-50:]}"
    return CannotCarryError(
        f"{shown or 'the value'} of type {name} {why}",
        path=path,
        type_name=name,
        hint="keep numbers, strings, arrays, tensors and containers of them; make the rest anew in the script",
    )


def _at(path: str, key: Any) -> str:
    if type(key) is not str:
        return f"{path}[{key!r}]"
    return f'{path}["{key}"]' if path else key


def _are_texts(keys: Iterable[Any]) -> bool:
    for key in keys:  # noqa: SIM110  a generator takes twice as long, and this is asked for every dict of a state
        if type(key) is not str or not (key.isascii() or _is_text(key)):
            return False
    return True


def _is_text(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, as in the names of undecodable files
        return False
    return True


def _int(value: int) -> Any:
    return value if value in _INT64 else {TAG: "int", "v": hex(value)}


def _float(value: float) -> Any:
    if math.isfinite(value):
        return value
    bits = struct.pack(">d", value)
    name = next((n for n, known in _NOT_FINITE.items() if struct.pack(">d", known) == bits), bits.hex())
    return {TAG: "float", "v": name}


def _str(value: str) -> Any:
    if _is_text(value):
        return value
    return {TAG: "str", "v": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}


_SCALARS: dict[type, Callable[[Any], Any]] = {
    int: _int,
    float: _float,
    str: _str,
    complex: lambda z: {TAG: "complex", "v": [_float(z.real), _float(z.imag)]},
    bytes: lambda b: {TAG: "bytes", "v": base64.b64encode(b).decode()},
    range: lambda r: {TAG: "range", "v": [_int(r.start), _int(r.stop), _int(r.step)]},
}


def _malformed(data: dict[str, Any]) -> CorruptError:
    return CorruptError(f"a saved value is malformed: {str(data)[:80]}", path="manifest.json")


def _value(data: dict[str, Any], kind: type) -> Any:
    value = data.get("v")
    if type(value) is not kind:
        raise _malformed(data)
    return value


def _decode_items(data: dict[str, Any], leaf: DecodeLeaf) -> list[Any]:
    return [decode(item, leaf) for item in _value(data, list)]


def _decode_pairs(data: dict[str, Any], leaf: DecodeLeaf) -> Iterable[tuple[Any, Any]]:
    for pair in _value(data, list):
        if type(pair) is not list or len(pair) != 2:
            raise _malformed(data)
        yield decode(pair[0], leaf), decode(pair[1], leaf)


def _decode_float(data: dict[str, Any], _: DecodeLeaf) -> float:
    text = _value(data, str)
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    number: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return number


_BUILDERS: dict[str, Callable[[dict[str, Any], DecodeLeaf], Any]] = {
    "int": lambda data, _: int(_value(data, str), 16),
    "float": _decode_float,
    "complex": lambda data, leaf: complex(*_decode_items(data, leaf)),
    "str": lambda data, _: base64.b64decode(_value(data, str)).decode("utf-8", "surrogatepass"),
    "bytes": lambda data, _: base64.b64decode(_value(data, str)),
    "range": lambda data, leaf: range(*_decode_items(data, leaf)),
    "tuple": lambda data, leaf: tuple(_decode_items(data, leaf)),
    "deque": lambda data, leaf: deque(_decode_items(data, leaf), data.get("maxlen")),
    "set": lambda data, leaf: set(_decode_items(data, leaf)),
    "frozenset": lambda data, leaf: frozenset(_decode_items(data, leaf)),
    "dict": lambda data, leaf: dict(_decode_pairs(data, leaf)),
    "OrderedDict": lambda data, leaf: OrderedDict(_decode_pairs(data, leaf)),
    "defaultdict": lambda data, leaf: defaultdict(None, _decode_pairs(data, leaf)),
    "Counter": lambda data, leaf: Counter(dict(_decode_pairs(data, leaf))),
}
