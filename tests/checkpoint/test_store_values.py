"""Plain values come back with their exact type and content, or are refused with their place."""

from __future__ import annotations

import enum
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.values import decode, encode
from perdure.core.errors import CannotCarryError, CorruptError


def no_leaf(*_):
    return None


def through_json(value):
    text = json.dumps(encode(value, no_leaf), allow_nan=False)
    return decode(json.loads(text), refuse)


def refuse(tag):
    raise AssertionError(tag)


def shape(value):
    """Everything that must be equal, in a form that tells 0.0 from -0.0, 1 from True, and NaN from NaN."""
    kind = type(value).__name__
    if isinstance(value, float):
        return kind, struct.pack(">d", value)
    if isinstance(value, complex):
        return kind, shape(value.real), shape(value.imag)
    if isinstance(value, dict):
        return kind, [(shape(k), shape(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, map(shape, value)))
    if isinstance(value, deque):
        return kind, value.maxlen, [shape(v) for v in value]
    if isinstance(value, (list, tuple)):
        return kind, [shape(v) for v in value]
    return kind, repr(value)


floats = st.floats() | st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack(">d", struct.pack(">Q", bits))[0])
text = st.text(st.characters()) | st.text(st.characters(categories=["Cs"])) | st.sampled_from(["$", "v", ""])
scalars = (
    st.none() | st.booleans() | st.integers() | floats | st.complex_numbers() | text | st.binary()
    | st.integers(-(2**70), 2**70) | st.builds(range, st.integers(-5, 5), st.integers(-5, 2**70))
)  # fmt: skip
keys = st.recursive(
    scalars.filter(lambda x: x == x),  # NaN is a key that nobody can look up
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)


def containers(inner):
    dicts = st.dictionaries(keys, inner, max_size=4) | st.dictionaries(text, inner, max_size=4)
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | dicts
        | dicts.map(OrderedDict)
        | dicts.map(lambda d: defaultdict(None, d))
        | st.dictionaries(keys, st.integers(), max_size=4).map(Counter)
        | st.builds(deque, st.lists(inner, max_size=4), st.none() | st.integers(0, 5))
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
    )


@given(st.recursive(scalars, containers, max_leaves=12))
def test_values_come_back_with_their_exact_type_and_content(value):
    assert shape(through_json(value)) == shape(value)


@given(st.integers(min_value=10**5000, max_value=10**5000 + 5))
def test_integers_of_any_size_come_back(value):
    assert through_json(value) == value


@given(st.integers(0, 2**64 - 1))
def test_every_bit_pattern_of_a_float_comes_back(bits):
    value = struct.unpack(">d", struct.pack(">Q", bits))[0]
    assert struct.pack(">d", through_json(value)) == struct.pack(">d", value)


words = st.text(max_size=5)
plain = st.none() | st.booleans() | st.integers(-9, 9) | words


@given(
    st.recursive(plain, lambda x: st.lists(x) | st.dictionaries(words.filter(lambda t: t != "$"), x), max_leaves=9)
)
def test_plain_json_stays_plain(value):
    assert encode(value, no_leaf) == value


def test_what_is_in_a_run_is_readable_json():
    value = {"rate": 0.1, "shape": (3, 4), "loss": deque([math.inf], 5), 7: "seven", "big": 2**100}
    assert encode(value, no_leaf) == {
        "$": "dict",
        "v": [
            ["rate", 0.1],
            ["shape", {"$": "tuple", "v": [3, 4]}],
            ["loss", {"$": "deque", "v": [{"$": "float", "v": "inf"}], "maxlen": 5}],
            [7, "seven"],
            ["big", {"$": "int", "v": "0x10000000000000000000000000"}],
        ],
    }


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    pass


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize("value", [object(), Level.LOW, Text("a"), Point(1, 2), len, {}.keys(), bytearray(b"a")])
def test_a_subclass_or_an_object_is_refused_and_not_flattened(value):
    with pytest.raises(CannotCarryError) as caught:
        encode({"history": [0, 1, 2, {"loss": value}]}, no_leaf)
    assert caught.value.path == 'history[3]["loss"]'
    assert caught.value.type_name.endswith(type(value).__name__)
    assert 'history[3]["loss"]' in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({(1, "a"): [object()]}, "run.vars[(1, 'a')][0]"),
        ((1, {"k": object()}), 'run.vars[1]["k"]'),
        (deque([object()]), "run.vars[0]"),
        ({frozenset([object()])}, "an element of an element of run.vars"),
        ({object(): 1}, "a key of run.vars"),
    ],
)
def test_the_place_is_written_as_the_user_would_index_it(value, path):
    with pytest.raises(CannotCarryError) as caught:
        encode(value, no_leaf, "run.vars")
    assert caught.value.path == path


def test_what_is_foreign_is_asked_for_with_its_place_and_comes_back():
    asked = []

    def leaf(value, path):
        asked.append(path)
        return {"$": "point", "x": value.x}

    encoded = encode({"a": [Point(1, 2)]}, leaf, "extra")
    assert encoded == {"a": [{"$": "point", "x": 1}]}
    assert asked == ['extra["a"][0]']
    assert decode(encoded, lambda tag: Point(tag["x"], 0)) == {"a": [Point(1, 0)]}


def test_a_value_that_contains_itself_is_refused():
    value = {"a": []}
    value["a"].append({"b": value})
    with pytest.raises(CannotCarryError, match="contains itself"):
        encode(value, no_leaf)


def test_the_same_list_twice_is_no_cycle():
    inner = [1]
    assert through_json([inner, inner, (), ((), ())]) == [[1], [1], (), ((), ())]


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {1: x}])
def test_deep_nesting_is_a_clear_error(wrap):
    value = 0
    for _ in range(5000):
        value = wrap(value)
    with pytest.raises(CannotCarryError, match="nested") as caught:
        encode(value, no_leaf, "x")
    assert len(str(caught.value)) < 1000
    for _ in range(99):
        value = value[0] if type(value) in (list, tuple) else value[1]


def test_what_is_as_deep_as_allowed_comes_back():
    value = 0
    for _ in range(100):
        value = {1: value}
    assert through_json(value) == value


@pytest.mark.parametrize(
    "data",
    [
        {"$": "tuple"},
        {"$": "dict", "v": [[1]]},
        {"$": "int", "v": 5},
        {"$": "bytes", "v": [1]},
        {"$": "Counter", "v": 1},
    ],
)
def test_a_malformed_tag_is_a_typed_error(data):
    with pytest.raises(CorruptError):
        decode([data], refuse)
