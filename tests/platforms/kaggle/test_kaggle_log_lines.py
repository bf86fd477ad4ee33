"""A log's records as lines."""

import json

from perdure.platforms.kaggle.logs import LIVE, SESSION_KEY, events_of, lines_of, session_number


def record(data, stream="stdout"):
    return {"stream_name": stream, "time": 1.5, "data": data}


def test_records_are_put_together_to_lines_each_stream_for_itself():
    events = [
        record("one\ntw"),
        record("warn", "stderr"),
        record("o\n"),
        record("ing\n", "stderr"),
        record("three"),
    ]
    assert lines_of(events) == ("one", "two", "warning", "three")


def test_of_a_progress_bar_the_last_state_is_kept():
    assert lines_of([record("10%\r50%\r"), record("100%\n"), record("done\r\n")]) == ("100%", "done")


def test_a_kept_log_is_json_and_anything_else_is_taken_as_text():
    assert lines_of(events_of(json.dumps([record("one\n"), record("█ two\n")]))) == ("one", "█ two")
    assert lines_of(events_of("one\ntwo")) == ("one", "two")
    assert lines_of(events_of("17")) == ("17",)


def test_the_sessions_number_is_the_last_that_it_said():
    said = LIVE + json.dumps({SESSION_KEY: 42})
    assert session_number(["x", LIVE + "{broken", said, LIVE + json.dumps({"step": 3})]) == 42
    assert session_number([LIVE + json.dumps({SESSION_KEY: None}), "42"]) is None
