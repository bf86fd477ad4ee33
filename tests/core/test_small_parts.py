"""Events, files, limits, names, settings."""

from __future__ import annotations

import json
import math
import os

import pytest

from perdure.core import errors
from perdure.core.errors import ConfigError
from perdure.core.events import EventFile, read_events
from perdure.core.files import write_atomic, write_json
from perdure.core.limits import Limits, Window
from perdure.core.paths import check_name
from perdure.core.progress import Position
from perdure.core.settings import Settings
from perdure.testing.clock import FakeClock


def test_lines_after_the_save_that_a_resume_began_with_are_superseded(tmp_path):
    path = tmp_path / "events.jsonl"
    first = EventFile(path)
    first.append([{"step": 1}, {"step": 2, "tail": True}, {"event": "saved", "checkpoint": "b", "step": 2}])
    first.append([{"step": 2, "body": True}, {"step": 3}])
    second = EventFile(path)
    second.append([{"event": "resumed", "checkpoint": "b", "from_step": 2, "step": 2}, {"step": 2, "again": True}])
    kept = [line for line in read_events(path) if "event" not in line]
    assert [{k: v for k, v in line.items() if k != "id"} for line in kept] == [
        {"step": 1}, {"step": 2, "tail": True}, {"step": 2, "again": True},
    ]  # fmt: skip


def test_killed_before_the_line_that_tells_of_a_save_lines_up_to_its_step_hold(tmp_path):
    path = tmp_path / "events.jsonl"
    EventFile(path).append([{"step": s} for s in (1, 2, 3)])
    EventFile(path).append([{"event": "resumed", "checkpoint": "b", "from_step": 2, "step": 2}])
    assert [line["step"] for line in read_events(path)] == [1, 2, 2]


def test_a_line_cut_by_a_kill_is_ignored_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    EventFile(path).append([{"step": 1}, {"step": 2}])
    os.truncate(path, path.stat().st_size - 5)
    EventFile(path).append([{"step": 3}])
    assert [e["step"] for e in read_events(path)] == [1, 3]


def test_a_line_read_twice_is_one_line(tmp_path):
    path = tmp_path / "events.jsonl"
    EventFile(path).append([{"step": 1}])
    path.write_text(path.read_text() * 2)
    assert len(list(read_events(path))) == 1


def test_no_events_file_means_no_events(tmp_path):
    assert list(read_events(tmp_path / "none")) == []


def test_a_failed_atomic_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_atomic(path, "text, not bytes")
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["file.json"]


def test_environment_over_script_over_platform():
    platform, script, env = Limits("12 h", "20 GB"), Limits(window="1 h"), Limits(disk="1 GB")
    limits = env.over(script.over(platform))
    assert (limits.window_s, limits.disk_bytes, limits.margin_s) == (3600, 10**9, None)


@pytest.mark.parametrize("bad", [{"window": "soon"}, {"disk": "much"}, {"margin": -1}])
def test_a_wrong_limit_is_refused_when_it_is_written(bad):
    with pytest.raises(ConfigError, match=f"limits.{next(iter(bad))}"):
        Limits(**bad)


def test_setting_the_wall_clock_back_does_not_move_the_window():
    clock = FakeClock()
    window = Window(clock, clock.monotonic(), 100)
    clock.forward(30)
    clock.set_wall(0)
    assert (window.elapsed_s, window.left_s) == (30, 70)


def test_without_a_limit_the_window_never_closes():
    assert Window(FakeClock(), 0).left_s == math.inf


@pytest.mark.parametrize("bad", ["a/b", "", "..", ".hidden", "a b", "ü", "x" * 101, "end.", None])
def test_a_name_that_cannot_be_a_folder_is_refused_and_another_proposed(bad):
    with pytest.raises(ConfigError) as caught:
        check_name(bad)
    proposed = caught.value.hint.split("'")[1]
    assert check_name(proposed) == proposed


def test_a_later_boundary_is_greater():
    boundaries = [
        Position(8, 1, 0, 4),
        Position(8, 1, 1, 0),
        Position(8, 2),
        Position(9, 2, 0, 1),
        Position(9, 3, finished=True),
    ]
    assert sorted(boundaries, key=lambda p: p.order) == boundaries


def test_nonsense_in_the_environment_is_named():
    with pytest.raises(ConfigError, match="PERDURE_SESSION_STARTED"):
        Settings.from_environment({"PERDURE_SESSION_STARTED": "noon"})
    with pytest.raises(ConfigError, match="PERDURE_WINDOW must be"):
        Settings.from_environment({"PERDURE_WINDOW": "long"})


def test_every_error_is_a_perdure_error_and_the_built_in_that_fits():
    tree = {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.PerdureError)
    }
    builtin = {"CannotCarryError": TypeError, "StateMismatchError": ValueError, "NoCheckpointError": FileNotFoundError,
               "UnreadableError": OSError, "DiskFullError": OSError, "RunLockedError": RuntimeError, "ConfigError": ValueError,
               "MissingExtraError": ImportError, "PlatformError": RuntimeError, "DataOrderError": RuntimeError}  # fmt: skip
    for name, base in builtin.items():
        assert issubclass(tree[name], base)
    assert issubclass(errors.SessionPaused, SystemExit)
    assert not issubclass(errors.SessionPaused, Exception)
    for name in tree:
        assert name in errors.__doc__


def test_messages_say_what_where_and_what_next():
    error = errors.DiskFullError("no room", path="/x", needed_bytes=5, free_bytes=1, hint="make some")
    assert str(error) == "no room\nhint: make some"
    assert (str(error.path), error.needed_bytes, error.free_bytes) == ("/x", 5, 1)
    mismatch = errors.StateMismatchError("does not fit", differences=["a: 1", "b: 2"])
    assert str(mismatch).splitlines() == ["does not fit", "  - a: 1", "  - b: 2"]
