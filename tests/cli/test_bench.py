"""``perdure bench`` measures on the real parts, says what it found, and leaves nothing behind."""

from __future__ import annotations

import json

import pytest

from perdure.checkpoint.store import Store
from perdure.cli import bench as command
from perdure.cli.main import main
from perdure.core.errors import DiskFullError
from perdure.core.say import say
from perdure.hardware.disk import block_of_memory, read_s, write_s
from perdure.hardware.host import Memory
from perdure.training import bench


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(bench, "_PROBE_BYTES", 4_000_000)


def test_the_json_holds_what_was_measured_and_nothing_is_left_on_the_disk(tmp_path, capfd):
    assert main(["bench", "--size", "3 MB", "--rounds", "1", "--folder", str(tmp_path), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert 2e6 < found["state_bytes"] < 4e6
    assert found["written_bytes"] >= found["state_bytes"]  # the state, whole, and not a part of it
    assert found["boundary_s"] < found["save_s"]
    assert all(found[f"{what}_bytes_per_s"] > 1e6 for what in ("write", "read", "copy"))
    assert 0 < found["resume_s"] < 60
    assert 10 <= found["interval_s"] <= 600
    assert found["interval_text"].startswith("every ") and "auto" in found["interval_text"]
    assert found["slow_down"] == pytest.approx(found["added_s"] / (found["interval_s"] + found["added_s"]))
    assert list(tmp_path.iterdir()) == []


def test_the_table_says_it_in_words_and_the_log_is_as_it_was(tmp_path, capfd):
    assert main(["bench", "--size", "1.5MB", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        "what",
        "state",
        "disk, writing",
        "disk, reading",
        "memory, copy and digest",
        "a step",
        "a checkpoint holds the boundary up",
        *[line.split("  ")[0] for line in out.splitlines() if line.startswith("and adds to the ")],
        "until it is on disk",
        "a resume, to its first step",
        'save_every="auto"',
        "which costs",
    ]
    assert "loses" in err and "of training on average" in err
    say("facts are told again")
    assert capfd.readouterr().err == "perdure: facts are told again\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--size", "many"], "--size must be"),
        (["--size", "1 kB"], "the least is 1 MB"),
        (["--folder", "/nowhere/at/all"], "there is no folder /nowhere/at/all"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments, said, capfd):
    assert main(["bench", *arguments]) == 2
    assert said in capfd.readouterr().err


def test_without_memory_or_room_it_does_not_begin(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(bench, "memory", lambda: Memory(10**18, 10**18))
    with pytest.raises(DiskFullError) as caught:
        bench.bench(tmp_path, 10**15)
    assert caught.value.needed_bytes > caught.value.free_bytes
    monkeypatch.setattr(bench, "memory", lambda: Memory(10**6, 10**6))
    assert main(["bench", "--folder", str(tmp_path)]) == 2
    assert "a smaller --size" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_fails_is_an_error_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    def refuse(*_):
        raise DiskFullError("the disk is full", path=tmp_path, needed_bytes=2, free_bytes=1)

    monkeypatch.setattr(Store, "save", refuse)
    assert main(["bench", "--size", "1 MB", "--rounds", "1", "--folder", str(tmp_path)]) == 1
    assert "was not written" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_it_writes_beside_the_runs_and_makes_no_folder_for_it(tmp_path):
    assert command._nearest(tmp_path / "not" / "there") == tmp_path


def test_the_disk_is_read_and_written_whole(tmp_path):
    memory = block_of_memory(3_000_000)
    assert len(memory) % 4096 == 0
    seconds, _ = write_s(tmp_path / "file", memory)
    assert seconds > 0
    assert (tmp_path / "file").read_bytes() == bytes(memory)
    assert all(read_s(tmp_path / "file", threads=threads)[0] > 0 for threads in (1, 3))
