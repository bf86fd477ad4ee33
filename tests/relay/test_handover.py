"""What a session has left is judged by its own word, and by what really lies there."""

from __future__ import annotations

import dataclasses
import json

import pytest
from left_outputs import BEGAN_S, ENDED_S, RELAY, FolderPlatform, leave_marker, leave_run

from perdure.core.errors import CredentialsError, NotThereError, PlatformError, TransientPlatformError
from perdure.platforms.protocol import Handle, Observation, OutputFile
from perdure.relay.handover import collect
from perdure.relay.logs import follow_log, read_log
from perdure.relay.records import RunStand

HANDLE = Handle("local", "me/perdure-digits-1a2b3c4d-1", 1)
SOON_S, LATE_S = ENDED_S + 5, ENDED_S + 901


@pytest.fixture
def working(tmp_path):
    folder = tmp_path / "working"
    leave_marker(folder, "paused", reason="the window closes")
    leave_run(folder, [100, 200])
    return folder


@pytest.fixture
def platform(working):
    return FolderPlatform(working)


def collected(platform, tmp_path, now_s=SOON_S, *, number=1, relay=RELAY):
    return collect(platform, HANDLE, relay, number, tmp_path / "kept", now_s, ENDED_S)


def test_a_paused_session_says_where_its_run_stands(platform, tmp_path):
    found = collected(platform, tmp_path)
    stand = RunStand("digits", "paused", 200, 2, "step-000000200", 1000, "steps", 12.5, reason="the window closes")
    assert (found.outcome, found.reason, found.runs) == ("paused", "the window closes", (stand,))
    assert (found.started_s, found.ended_s, found.accelerator_s) == (BEGAN_S, ENDED_S, 3500.0)
    assert found.tail == ()


def test_only_small_files_travel(platform, tmp_path):
    found = collected(platform, tmp_path)
    run = "perdure/digits"
    small = {f"{run}/{name}" for name in ("run.json", "session.json", "events.jsonl")}
    newest = f"{run}/checkpoints/step-000000200/manifest.json"
    assert set(found.files) == {"perdure-session.json", *small, newest}
    assert set(platform.fetched) == set(found.files)
    assert all((tmp_path / "kept" / name).is_file() for name in found.files)


def test_a_second_collection_asks_for_nothing_again(platform, tmp_path):
    first = collected(platform, tmp_path)
    platform.fetched.clear()
    assert collected(platform, tmp_path) == first
    assert platform.fetched == []


def test_a_finished_session_is_finished(tmp_path):
    leave_marker(tmp_path / "working", "finished")
    leave_run(tmp_path / "working", [300], status="finished")
    found = collected(FolderPlatform(tmp_path / "working"), tmp_path)
    assert found.outcome == "finished"


def test_a_script_without_runs_can_finish(tmp_path):
    leave_marker(tmp_path / "working", "finished")
    found = collected(FolderPlatform(tmp_path / "working"), tmp_path)
    assert (found.outcome, found.runs) == ("finished", ())


def test_a_failed_script_shows_its_last_lines(tmp_path):
    leave_marker(tmp_path / "working", "failed", exit_code=1, tail=("ValueError: no such column",))
    found = collected(FolderPlatform(tmp_path / "working"), tmp_path)
    assert (found.outcome, found.reason) == ("failed", "the script ended with exit code 1")
    assert found.tail == ("ValueError: no such column",)


def test_a_refused_accelerator_keeps_its_reason(tmp_path):
    leave_marker(tmp_path / "working", "refused", reason="asked for 2 x T4, found Tesla P100")
    found = collected(FolderPlatform(tmp_path / "working"), tmp_path)
    assert (found.outcome, found.reason) == ("refused", "asked for 2 x T4, found Tesla P100")


def test_a_killed_session_is_gone_on_from_by_what_it_left(tmp_path):
    leave_marker(tmp_path / "working", "running")
    leave_run(tmp_path / "working", [100], status="running")
    seen = Observation("failed", "ERROR", "exceeded the max allowed execution duration")
    found = collected(FolderPlatform(tmp_path / "working", seen), tmp_path)
    assert (found.outcome, found.reason) == ("killed", "exceeded the max allowed execution duration")
    assert (found.runs[0].step, found.runs[0].status) == (100, "running")
    assert found.ended_s is None
    assert found.accelerator_s == ENDED_S - BEGAN_S  # hours ran on after its last word
    assert found.tail == ("step 100", "step 200")


def test_a_lagging_output_is_waited_for(platform, tmp_path):
    platform.alter = lambda files: []
    assert collected(platform, tmp_path) is None
    platform.alter = lambda files: files
    assert collected(platform, tmp_path).outcome == "paused"


def test_an_output_that_never_comes_counts_as_none_after_the_lag(platform, tmp_path):
    platform.alter = lambda files: []
    platform.seen = Observation("stopped", "CANCEL_ACKNOWLEDGED")
    found = collected(platform, tmp_path, LATE_S)
    assert found.outcome == "no-output"
    assert "it was stopped before it could say how it stood" in found.reason
    assert found.tail == ("step 100", "step 200")


def test_a_session_that_was_deleted_left_nothing(platform, tmp_path):
    def gone(*_):
        raise NotThereError("there is no kernel me/perdure-digits-1a2b3c4d-1, or it is not shown")

    platform.files = platform.observe = gone
    platform.log_error = NotThereError("gone")
    assert collected(platform, tmp_path) is None
    found = collected(platform, tmp_path, LATE_S)
    assert (found.outcome, found.whole) == ("no-output", False)
    assert "there is no kernel" in found.reason


def test_an_output_without_its_marker_is_nobodys(platform, tmp_path):
    platform.alter = lambda files: [file for file in files if file.name != "perdure-session.json"]
    assert collected(platform, tmp_path) is None
    assert collected(platform, tmp_path, LATE_S).outcome == "no-output"


@pytest.mark.parametrize("other", [{"relay": "ffffffff"}, {"number": 2}])
def test_the_output_of_another_session_is_refused(platform, tmp_path, other):
    found = collected(platform, tmp_path, **other)
    assert (found.outcome, found.runs) == ("no-output", ())
    assert "session 1 of relay 1a2b3c4d" in found.reason


def _smaller(files, part):
    return [dataclasses.replace(f, size_bytes=f.size_bytes - 1) if part in f.name else f for f in files]


def _tensors_of(working, step):
    manifest = json.loads((working / f"perdure/digits/checkpoints/step-{step:09d}/manifest.json").read_text())
    return set(manifest["files"])


def test_an_output_cut_short_falls_back_to_the_older_whole_checkpoint(platform, working, tmp_path):
    (torn,) = _tensors_of(working, 200) - _tensors_of(working, 100)
    platform.alter = lambda files: _smaller(files, torn)
    assert collected(platform, tmp_path) is None  # it may still grow
    found = collected(platform, tmp_path, LATE_S)
    assert (found.outcome, found.runs[0].step, found.runs[0].checkpoint) == ("paused", 100, "step-000000100")
    assert "did not come whole" in found.reason
    assert torn in found.reason


def test_a_finished_session_cut_short_is_not_finished(tmp_path):
    leave_marker(tmp_path / "working", "finished")
    leave_run(tmp_path / "working", [100, 200], status="finished")
    (torn,) = _tensors_of(tmp_path / "working", 200) - _tensors_of(tmp_path / "working", 100)
    platform = FolderPlatform(tmp_path / "working")
    platform.alter = lambda files: [file for file in files if torn not in file.name]
    found = collected(platform, tmp_path, LATE_S)
    assert (found.outcome, found.runs[0].status, found.runs[0].step) == ("paused", "paused", 100)


def test_nothing_whole_is_no_output(platform, tmp_path):
    platform.alter = lambda files: [file for file in files if "/tensors/" not in file.name]
    found = collected(platform, tmp_path, LATE_S)
    assert (found.outcome, found.runs[0].checkpoint, found.runs[0].step) == ("no-output", None, 0)


def test_a_checkpoint_that_the_session_told_of_is_missed(platform, tmp_path):
    platform.alter = lambda files: [file for file in files if "step-000000200" not in file.name]
    assert collected(platform, tmp_path) is None
    found = collected(platform, tmp_path, LATE_S)
    assert found.runs[0].step == 100
    assert "step-000000200 is not in the output" in found.reason


def test_a_damaged_manifest_is_not_believed(platform, working, tmp_path):
    path = working / "perdure/digits/checkpoints/step-000000200/manifest.json"
    path.write_text(path.read_text().replace("interval", "interval "))
    found = collected(platform, tmp_path, LATE_S)
    assert (found.runs[0].step, found.outcome) == (100, "paused")


def test_a_session_killed_before_its_first_save_is_not_waited_for(tmp_path):
    leave_marker(tmp_path / "working", "running")
    leave_run(tmp_path / "working", [], status="running", checkpoint="step-000000200", resumed_from=200)
    found = collected(FolderPlatform(tmp_path / "working"), tmp_path)
    assert (found.outcome, found.runs[0].checkpoint) == ("killed", None)


def test_sizes_that_the_platform_does_not_name_are_taken_as_right(platform, tmp_path):
    platform.alter = lambda files: [dataclasses.replace(file, size_bytes=None) for file in files]
    assert collected(platform, tmp_path).runs[0].step == 200


def test_names_that_lead_out_of_the_folder_are_never_asked_for(platform, tmp_path):
    evil = ["../../evil/run.json", "/etc/run.json", "a\\..\\run.json", "caf\udce9/run.json"]
    platform.alter = lambda files: [*files, *(OutputFile(name, 3) for name in evil)]
    collected(platform, tmp_path)
    assert not set(evil) & set(platform.fetched)


def test_a_small_file_that_is_listed_and_gone_does_not_stop_the_rest(platform, tmp_path):
    platform.fails = {"perdure/digits/events.jsonl": NotThereError("gone")}
    found = collected(platform, tmp_path)
    assert (found.outcome, found.runs[0].step) == ("paused", 200)


def test_a_transient_error_judges_nothing(platform, tmp_path):
    platform.fails = {"perdure/digits/session.json": TransientPlatformError("503")}
    with pytest.raises(TransientPlatformError):
        collected(platform, tmp_path, LATE_S)
    found = collected(platform, tmp_path, ENDED_S + 4 * 900)  # it will not get better
    assert (found.outcome, found.runs[0].step) == ("paused", 200)


def test_lost_credentials_judge_nothing(platform, tmp_path):
    platform.fails = {"perdure-session.json": CredentialsError("401")}
    with pytest.raises(CredentialsError):
        collected(platform, tmp_path, LATE_S)


def test_a_log_that_cannot_be_had_costs_nothing(platform, tmp_path):
    platform.log_error = PlatformError("the log cannot be decoded")
    assert collected(platform, tmp_path).outcome == "paused"


def test_a_log_outlives_its_session(platform, tmp_path):
    platform.lines = ("█ 50 %", "café \udce9")
    collected(platform, tmp_path)
    platform.log_error = PlatformError("the kernel was deleted")
    log = read_log(platform, HANDLE, tmp_path / "kept")
    assert (log.lines, log.complete) == (("█ 50 %", "café \\udce9"), True)


def test_a_log_is_followed_to_its_end(platform, tmp_path):
    platform.seen = Observation("running", "RUNNING")
    platform.lines = ("one",)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        platform.lines += (f"line {len(waits)}",)
        if len(waits) == 2:
            platform.seen = Observation("complete")

    assert list(follow_log(platform, HANDLE, tmp_path, sleep=sleep)) == ["one", "line 1", "line 2"]


def test_several_runs_are_judged_each_by_its_own(tmp_path):
    working = tmp_path / "working"
    leave_marker(working, "paused", report=({"name": "third", "status": "running", "folder": "perdure/third"},))
    leave_run(working, [100], name="first", status="finished")
    leave_run(working, [40], name="second")
    found = collected(FolderPlatform(working), tmp_path)
    assert [(run.name, run.step, run.checkpoint) for run in found.runs] == [
        ("first", 100, "step-000000100"),
        ("second", 40, "step-000000040"),
        ("third", 0, None),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"plan": {"count": NaN}, "speeds": {"steps_per_s": Infinity}}',
        '{"plan": {"count": Infinity}, "speeds": [1]}',
        '{"plan": {"count": 1' + "0" * 400 + "}}",
        "[" * 100_000,
    ],
)
def test_numbers_that_are_none_do_not_stop_a_relay(platform, working, tmp_path, text):
    (working / "perdure/digits/session.json").write_text(text)
    found = collected(platform, tmp_path)
    assert (found.outcome, found.runs[0].count, found.runs[0].steps_per_s) == ("paused", None, None)
