"""How the command behaves: exit codes, streams, colour, errors without a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from perdure.cli import main as main_module
from perdure.cli.main import main
from perdure.cli.output import fitted
from perdure.core.errors import ConfigError, CorruptError

PERDURE = [sys.executable, "-c", "import sys; from perdure.cli.main import main; sys.exit(main())"]
ESCAPE = "\x1b["


def in_a_terminal(arguments: list[str], **environment: str) -> str:
    """What a command shows where stdout is a terminal."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", **environment}
    subprocess.run([*PERDURE, *arguments], stdout=slave, stderr=slave, env=env, check=False)
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:  # Linux says EIO at the end
        pass
    os.close(master)
    return shown.decode()


def test_a_line_that_is_too_long_is_broken_between_words_below_its_column() -> None:
    hours = "  hours     GPU 30.0 h left of 30.0 h, 27 s used, 30 s reserved"
    assert fitted(hours, len(hours)) == [hours]
    assert fitted(hours, 50) == ["  hours     GPU 30.0 h left of 30.0 h, 27 s used,", "            30 s reserved"]
    row = "  1        paused   370   t4x2  the window closes in a moment"
    assert fitted(row, 54) == ["  1        paused   370   t4x2  the window closes in a", " " * 32 + "moment"]
    assert all(len(piece) <= 40 for piece in fitted(row, 40))
    address = "  page      https://www.kaggle.com/code/you/perdure-train-1f0c22ab-2"
    assert fitted(address, 40) == [address]


def test_version(capsys) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{version('perdure')}\n"


def test_without_a_command_the_help_is_shown(capsys) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: perdure ")
    for command in ("demo", "run", "rehearse", "status", "checkpoints", "verify"):
        assert f"\n  {command} " in out


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["statsu"], "error: no such command 'statsu'. Did you mean 'status'?", "hint: see perdure --help"),
        (["status", "--jsn"], "error: no such option: --jsn", "hint: see perdure status --help"),
        (
            ["relay", "start", "train.py", "--epochs", "3"],
            "error: no such option: --epochs",
            "hint: see perdure relay start --help; flags of your script come behind --",
        ),
        (["status", "--root"], "error: option '--root' requires an argument", "hint: see perdure --help"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(capsys, arguments: list[str], error: str, hint: str) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(error)
    assert captured.err.splitlines()[-1] == hint


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CorruptError("it is damaged", path="x", hint="look at it"), 1),
        (ConfigError("it is nonsense", hint="look at it"), 2),
    ],
)
def test_an_error_is_what_and_hint_and_never_a_traceback(monkeypatch, capsys, error: Exception, code: int) -> None:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(main_module, "app", app)
    assert main([]) == code
    assert capsys.readouterr().err == f"error: {error.args[0]}\nhint: look at it\n"


def test_ctrl_c_is_quiet_and_ends_with_130(monkeypatch, capsys) -> None:
    app = typer.Typer()

    @app.command()
    def wait() -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(main_module, "app", app)
    assert main([]) == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_reader_that_goes_away_is_no_error(make_run) -> None:
    for number in range(3):
        make_run(f"run-{number}", session={})
    shell = f'{subprocess.list2cmdline(PERDURE[:2])} "$0" status | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", shell, PERDURE[2]], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_colour_in_a_terminal_only_and_never_under_no_color(make_run) -> None:
    make_run("digits", session={"status": "finished"})
    assert ESCAPE in in_a_terminal(["status"])
    assert ESCAPE not in in_a_terminal(["status"], NO_COLOR="1")
    assert ESCAPE not in subprocess.run([*PERDURE, "status"], capture_output=True, text=True).stdout


def test_long_lines_are_not_wrapped_in_a_pipe(make_run) -> None:
    make_run("digits", session={"reason": "because " * 60})
    done = subprocess.run([*PERDURE, "status"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "40"})
    assert "because " * 59 in done.stdout


@pytest.mark.parametrize("name", ["[bold]", "a[/]b", "{x}"])
def test_what_users_write_is_shown_as_it_is(make_run, capsys, name: str) -> None:
    make_run("digits", session={"reason": name})
    main(["status"])
    assert f"why         {name}\n" in capsys.readouterr().out


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_an_empty_answer(tmp_path: Path, capsys) -> None:
    (tmp_path / "runs").symlink_to("runs")
    for command in ("status", "checkpoints", "verify"):
        assert main([command]) == 1
        assert capsys.readouterr().err.startswith("error: the folder of runs cannot be listed: ")
