from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError
from perdure.core.intervals import (
    Interval,
    format_bytes,
    format_duration,
    format_number,
    parse_bytes,
    parse_duration,
    parse_interval,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90 s", 90),
        ("5 min", 300),
        ("5min", 300),
        ("1.5 h", 5400),
        ("250 ms", 0.25),
        ("1 day", 86400),
        ("2 Hours", 7200),
    ],
)
def test_durations_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "bad", ["", "5", "min", "-5 min", "0 s", "5 parsecs", "nan s", "1e999 s", None, True, float("inf"), -3]
)
def test_nonsense_is_no_duration_and_the_error_says_what_is_one(bad):
    with pytest.raises(ConfigError, match="window") as caught:
        parse_duration(bad, what="window")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("value", "interval"),
    [
        ("auto", Interval("auto")),
        ("5 min", Interval("seconds", 300)),
        ("200 steps", Interval("steps", 200)),
        ("1 step", Interval("steps", 1)),
        ("1 epoch", Interval("epochs", 1)),
        (timedelta(minutes=2), Interval("seconds", 120)),
    ],
)
def test_the_interval_types_of_save_every(value, interval):
    assert parse_interval(value) == interval


@pytest.mark.parametrize(
    "bad", [5, 0.5, "5", "0 steps", "1.5 epochs", "-1 epoch", "often", "", None, timedelta(0), "0 min", True]
)
def test_nonsense_for_save_every_is_refused_with_what_would_do(bad):
    with pytest.raises(ConfigError, match="save_every"):
        parse_interval(bad)


def test_a_bare_number_is_refused_since_it_does_not_say_of_what():
    with pytest.raises(ConfigError, match="say of what"):
        parse_interval(5)


@pytest.mark.parametrize(
    ("text", "count"), [("200MB", 200e6), ("20 GB", 20e9), ("1GiB", 2**30), ("5 kb", 5000), (17, 17)]
)
def test_sizes_as_people_write_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("bad", ["", "20", "many", "0 B", "-1 GB", 0, -5, True, None, 1.5])
def test_nonsense_is_no_size(bad):
    with pytest.raises(ConfigError):
        parse_bytes(bad)


@given(st.floats(min_value=1e-3, max_value=1e7))
def test_a_formatted_duration_is_never_far_from_the_truth(seconds):
    text = format_duration(seconds)
    parts = text.split()
    total = sum(parse_duration(f"{n} {u}", what="x") for n, u in zip(parts[::2], parts[1::2]) if float(n) > 0)
    assert abs(total - seconds) <= max(0.06 * seconds, 0.0006)


@given(st.integers(min_value=1, max_value=10**15))
def test_a_formatted_size_is_never_far_from_the_truth(count):
    assert abs(parse_bytes(format_bytes(count)) - count) <= 0.06 * count + 1


@pytest.mark.parametrize(
    ("value", "text"), [(0.02134, "0.0213"), (12.34, "12.3"), (99.96, "100"), (1543.2, "1543"), (2e6, "2000000")]
)
def test_a_number_for_people_has_three_figures_and_no_power_of_ten(value, text):
    assert format_number(value) == text
