"""``status``, ``checkpoints``, ``verify``: right, quick to read, and without a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.main import main
from perdure.core.paths import RunPaths

GONE = 2**22 - 7
"""A process id that nobody has."""


def flip_a_byte(run: RunPaths) -> Path:
    """Damage the newest tensor file in the middle of its data."""
    path = max(run.tensors.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    return path


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(folder.rglob("*"))}


def test_status_says_where_each_run_stands(make_run, capsys) -> None:
    make_run("digits", session={})
    make_run("flowers", session={"status": "finished", "reason": "", "plan": {"unit": "steps", "count": 20}})
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "digits  paused, step 20, epoch 2 of 5\n" in out
    assert "  why         the window closes\n" in out
    assert "  session     2 on local, process, last heard of" in out
    assert "  checkpoint  step 20, just now, 4.0 kB\n" in out
    assert "  speed       8.25 steps/s, 20 ms a save, saves every 10 steps\n" in out
    assert "flowers  finished, step 20 of 20\n" in out


def test_a_running_session_tells_when_its_window_closes(make_run, capsys) -> None:
    make_run("digits", session={"status": "running", "pid": os.getpid()})
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "digits  running, " in out
    assert "window closes in 12 s" in out


def test_a_session_whose_process_is_gone_was_killed(make_run, capsys) -> None:
    make_run("digits", session={"status": "running", "pid": GONE})
    main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["runs"][0]["status"] == "killed"


def test_a_session_on_another_machine_is_believed(make_run, capsys) -> None:
    make_run("digits", session={"status": "running", "pid": GONE, "host": "elsewhere"})
    main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["runs"][0]["status"] == "running"


def test_status_of_a_run_without_a_session_file_is_read_from_its_checkpoints(make_run, capsys) -> None:
    make_run("digits")
    assert main(["status"]) == 0
    assert "digits  unknown, step 20\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\x00"])
def test_a_damaged_session_file_is_said_and_is_no_crash(make_run, capsys, text: str) -> None:
    make_run("digits", session={}).session_json.write_text(text)
    assert main(["status"]) == 0
    assert "  problem     session.json is damaged" in capsys.readouterr().out


def test_status_in_json_holds_the_session_file_and_the_newest_checkpoint(make_run, root: Path, capsys) -> None:
    make_run("digits", session={})
    main(["status", "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["step"] == 20
    assert run["speeds"]["steps_per_s"] == 8.25
    assert run["newest"]["bytes"] == 4000
    assert run["folder"] == str(root / "digits")


def test_no_runs_is_an_answer_and_no_error(capsys) -> None:
    for command in ("status", "checkpoints", "verify"):
        assert main([command]) == 0
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "below" in captured.err
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == []


@pytest.mark.parametrize("command", ["status", "checkpoints", "verify"])
def test_a_misspelt_run_gets_a_suggestion(make_run, capsys, command: str) -> None:
    make_run("digits")
    assert main([command, "digit"]) == 1
    err = capsys.readouterr().err
    assert "error: there is no run 'digit' below " in err
    assert "hint: did you mean 'digits'?" in err


def test_checkpoints_are_listed_newest_first(make_run, capsys) -> None:
    make_run("digits", steps=(10, 20, 30))
    assert main(["checkpoints", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["step"] for each in answer["checkpoints"]] == [30, 20, 10]
    newest = answer["checkpoints"][0]
    assert newest["healthy"]
    assert newest["bytes"] == 4000
    assert newest["metrics"] == {"loss": 1 / 30}
    assert answer["disk_bytes"]["digits"] > 12000


def test_a_checkpoint_with_a_missing_file_is_listed_with_its_problem(make_run, capsys) -> None:
    run = make_run("digits")
    max(run.tensors.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns).unlink()
    assert main(["checkpoints"]) == 0
    out = capsys.readouterr().out
    assert "damaged: " in out
    assert "step-000000010" in out


def test_verify_proves_every_checkpoint(make_run, capsys) -> None:
    make_run("digits")
    assert main(["verify"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("ok       ") == 2
    assert captured.err == "2 checkpoints verified\n"


def test_verify_names_a_flipped_byte_with_its_file_and_entry(make_run, capsys) -> None:
    run = make_run("digits")
    damaged = flip_a_byte(run)
    assert main(["verify", "digits"]) == 1
    captured = capsys.readouterr()
    assert f"damaged  {run.checkpoints / 'step-000000020'}" in captured.out
    assert damaged.name in captured.out
    assert "model/weight" in captured.out
    assert captured.err == "1 of 2 checkpoints damaged\n"


def test_verify_in_json_says_the_same(make_run, capsys) -> None:
    flip_a_byte(make_run("digits"))
    assert main(["verify", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["bad"] == 1
    assert [each["ok"] for each in answer["checkpoints"]] == [False, True]


def test_verify_takes_any_folder_that_holds_checkpoints(make_run, root: Path, tmp_path: Path, capsys) -> None:
    run = make_run("digits")
    root.rename(tmp_path / "input")
    for folder in ("input", "input/digits", "input/digits/checkpoints/step-000000020"):
        assert main(["verify", folder]) == 0
        assert "verified" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["verify", "empty"]) == 1
    assert "error: there is no checkpoint below empty\n" in capsys.readouterr().err
    assert not run.folder.exists()


@pytest.mark.parametrize("command", ["status", "checkpoints", "verify"])
def test_reading_leaves_no_trace(make_run, root: Path, command: str, capsys) -> None:
    make_run("digits", session={})
    before = tree(root)
    assert main([command, "--root", str(root)]) == 0
    assert tree(root) == before


@pytest.mark.parametrize("command", ["status", "checkpoints", "verify"])
def test_a_folder_that_may_only_be_read_is_enough(make_run, root: Path, command: str) -> None:
    make_run("digits", session={})
    read_only = (
        'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && ! touch "$0/x" 2>&- || exit 99; exec "$@"'
    )
    program = "import sys; from perdure.cli.main import main; sys.exit(main())"
    perdure = [sys.executable, "-c", program, command, "--root", str(root)]
    box = ["unshare", "-Urm", "sh", "-c", read_only, str(root)]
    done = subprocess.run([*box, *perdure], capture_output=True, text=True)
    if done.returncode == 99 or "unshare:" in done.stderr:
        pytest.skip("no mount namespace here")
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout


def test_the_folder_of_runs_can_come_from_the_environment(
    make_run, root: Path, monkeypatch, capsys, tmp_path
) -> None:
    make_run("digits", session={})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PERDURE_ROOT", str(root))
    main(["status"])
    assert "digits" in capsys.readouterr().out
