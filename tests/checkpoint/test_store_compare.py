"""Two checkpoints are compared by what they hold, and a difference is named in words."""

from __future__ import annotations

import dataclasses
import math
import struct
from pathlib import Path

import pytest
from snapshots import open_store, snapshot, u8

from perdure.checkpoint.compare import compare
from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.values import encode
from perdure.core.progress import Position


def saved(folder: Path, *snapshots: Snapshot):
    store = open_store(folder)
    for item in snapshots:
        store.save(item)
    checkpoint = store.newest()
    store.close()
    return checkpoint


def differences(tmp_path: Path, one: Snapshot, two: Snapshot) -> list[str]:
    return [str(d) for d in compare(saved(tmp_path / "one", one), saved(tmp_path / "two", two))]


def test_the_same_state_from_other_sessions_and_other_files_is_identical(tmp_path):
    one = saved(tmp_path / "one", snapshot(100), snapshot(200), snapshot(300, session=3, reason="stop"))
    two = saved(tmp_path / "two", snapshot(300, training_s=9.0, libraries={"torch": "2.6"}))
    assert len(one.manifest.files) != len(two.manifest.files)
    assert one.manifest.run_id != two.manifest.run_id
    assert compare(one, two) == []


def floats(name: str, *numbers: float, dtype: str = "F32", shape=None) -> Buffer:
    data = struct.pack(f"<{len(numbers)}{'f' if dtype == 'F32' else 'd'}", *numbers)
    return Buffer(name, "tensor", dtype, shape or (len(numbers),), memoryview(data))


def state(*buffers: Buffer, values=None, **more) -> Snapshot:
    return Snapshot(Position(1), encode(values or {}, lambda *_: None), buffers, **more)


def test_the_first_differing_element_is_named(tmp_path):
    numbers = [0.5] * 6
    one = state(u8("a", b"same"), floats("model/w", *numbers, shape=(2, 3)))
    two = state(u8("a", b"same"), floats("model/w", *numbers[:4], 0.75, math.nan, shape=(2, 3)))
    assert differences(tmp_path, one, two) == ["model/w: element [1, 1] is 0.5 in the first, 0.75 in the second"]


def test_negative_zero_is_another_number(tmp_path):
    assert differences(tmp_path, state(floats("w", 0.0)), state(floats("w", -0.0))) == [
        "w: element [0] is 0.0 in the first, -0.0 in the second"
    ]


def test_an_element_beyond_the_first_megabyte_is_found(tmp_path):
    data = bytearray(3_000_000)
    other = bytearray(data)
    other[2_999_999] = 7
    (line,) = differences(tmp_path, state(u8("w", data)), state(u8("w", other)))
    assert line == "w: element [2999999] is 0 in the first, 7 in the second"


def test_types_that_python_has_no_number_for_are_shown_as_bits(tmp_path):
    def bf16(data: bytes) -> Snapshot:
        return state(Buffer("w", "tensor", "BF16", (), memoryview(data)))

    assert differences(tmp_path, bf16(b"\x80\x3f"), bf16(b"\x00\x40")) == [
        "w: element 0 is 0x3f80 in the first, 0x4000 in the second"
    ]


def test_missing_and_reshaped_entries_are_named(tmp_path):
    one = state(floats("both", 1.0, 2.0), floats("mine", 1.0))
    two = state(floats("both", 1.0, 2.0, shape=(2, 1)), floats("theirs", 1.0))
    assert differences(tmp_path, one, two) == [
        "both: shape (2,) in the first, (2, 1) in the second",
        "mine: only in the first",
        "theirs: only in the second",
    ]


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "a.b[1]: 2 in the first, 3 in the second"),
        ({"a": [1]}, {"a": [1, 2]}, "a: 1 items in the first, 2 in the second"),
        ({"a": 1}, {"a": 1.0}, "a: 1 in the first, 1.0 in the second"),
        ({"a": 0.0}, {"a": -0.0}, "a: 0.0 in the first, -0.0 in the second"),
        ({"a": (1, 2)}, {"a": (1, 3)}, "a[1]: 2 in the first, 3 in the second"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "values: the same keys in another order"),
        ({"a": 1}, {}, "a: only in the first"),
        ({}, {"a": {"b": 1}}, "a: only in the second"),
    ],
)
def test_values_are_compared_place_by_place(tmp_path, one, two, expected):
    assert differences(tmp_path, state(values=one), state(values=two)) == [expected]


def test_tuples_and_lists_differ(tmp_path):
    (line,) = differences(tmp_path, state(values={"a": (1,)}), state(values={"a": [1]}))
    assert line.startswith("a: ")


def test_position_and_metrics_count_and_nan_equals_nan(tmp_path):
    one = state(metrics={"loss": math.nan, "accuracy": 0.5})
    two = dataclasses.replace(one, position=Position(2), metrics={"loss": math.nan, "accuracy": 0.25})
    assert differences(tmp_path, one, two) == [
        "position.step: 1 in the first, 2 in the second",
        "metrics.accuracy: 0.5 in the first, 0.25 in the second",
    ]
