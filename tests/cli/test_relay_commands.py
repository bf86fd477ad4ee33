"""The commands of the relay, on sessions of this machine: real processes, a real database."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from perdure.cli.main import main
from perdure.relay.home import HOME, Home
from perdure.relay.store import Store

PERDURE = [sys.executable, "-c", "import sys; from perdure.cli.main import main; sys.exit(main())"]
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "project" / "work.py"
        path.parent.mkdir()
        path.write_text(text)
        return str(path)

    return write


def start(*arguments: str) -> int:
    return main(["relay", "start", "--on", "local", *arguments])


def state(tmp_path: Path) -> str:
    with Store(Home(tmp_path / "home")) as store:
        return store.find("work").state


def wait_for(done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < until_s, "it does not come"
        time.sleep(0.05)


def test_one_command_brings_a_script_to_its_end_and_its_output_here(script, tmp_path: Path, capsys) -> None:
    target = script(
        "import os, sys\nprint('hello', *sys.argv[1:])\nopen('got.txt', 'w').write(os.environ['WORD'])\n"
    )
    assert start("--env", "WORD=yes", "--expect", "1 min", target, "--", "a", "b") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].startswith("work  work.py on local as ")
    assert re.search(r"^  project   1 file, \d+ B; packed, with Perdure, ", captured.out, re.MULTILINE)
    assert "  expected  1 session, " in captured.out
    assert "work: session 1 finished: " in captured.out
    assert captured.err.endswith("work: everything is in relays/work\n")
    assert (tmp_path / "relays/work/got.txt").read_text() == "yes"

    assert main(["relay", "logs"]) == 0
    shown = capsys.readouterr().out
    assert "hello a b\n" in shown
    assert "@perdure" not in shown
    assert main(["relay", "status", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)["relay"]
    assert (value["name"], value["state"], value["sessions"][0]["outcome"]) == ("work", "done", "finished")
    assert main(["relay", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["work", "done", "local", "1"]
    assert main(["relay", "fetch", "--out", "again"]) == 0
    assert (tmp_path / "again/got.txt").read_text() == "yes"
    assert main(["relay", "fetch", "--out", "again/got.txt/below"]) == 1
    assert "below cannot be written: Not a directory\nhint: make room" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["relay", "logs", "work", "--session", "7"]) == 2
    assert capsys.readouterr().err == "error: work has no session 7\nhint: it has 1\n"
    assert main(["relay", "stop", "work"]) == 1
    assert main(["relay", "watch"]) == 0


def test_a_script_that_fails_twice_needs_its_user_who_sees_why(script, capsys) -> None:
    assert start(script("raise ValueError('there is no data')\n")) == 1
    captured = capsys.readouterr()
    assert "needs-you: the script failed twice" in captured.out
    assert "perdure relay resume work" in captured.err
    assert main(["relay", "status"]) == 0
    assert "    ValueError: there is no data\n" in capsys.readouterr().out
    assert main(["relay", "resume", "work"]) == 0
    assert capsys.readouterr().out.startswith("work  active: ")


def test_the_driver_may_go_and_the_relay_goes_on(script, tmp_path: Path, capfd) -> None:
    go = tmp_path / "go"
    target = script(f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)\n")
    process = subprocess.Popen([*PERDURE, "relay", "start", "--on", "local", target])
    wait_for(lambda: "session 1 runs" in capfd.readouterr().out)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert "session 1 goes on by itself" in capfd.readouterr().err
    assert state(tmp_path) == "active"
    go.touch()
    assert main(["relay", "watch"]) == 0
    out = capfd.readouterr().out
    assert "session 1 finished" in out
    assert "session 2" not in out


def test_in_the_background_it_is_driven_and_after_the_death_of_that_driver_it_can_be_stopped(
    script, tmp_path: Path, capsys
) -> None:
    assert start("--detach", script("import time\ntime.sleep(600)\n")) == 0
    assert "work is driven in the background" in capsys.readouterr().out
    wait_for(lambda: "1 running for" in _shown(capsys))
    (driver,) = [each for each in psutil.process_iter(["cmdline"]) if _drives(each, tmp_path)]
    driver.kill()
    driver.wait(PATIENCE_S)
    assert main(["relay", "stop", "work", "--now"]) == 0
    assert "\n  it was killed; what it had saved stays\n" in capsys.readouterr().out
    wait_for(lambda: main(["relay", "watch", "--once"]) == 0 and state(tmp_path) == "stopped")


def _shown(capsys) -> str:
    capsys.readouterr()
    main(["relay", "status", "work"])
    return capsys.readouterr().out


def _drives(process: psutil.Process, tmp_path: Path) -> bool:
    try:
        return "relay" in (process.info["cmdline"] or ()) and process.environ().get(HOME) == str(tmp_path / "home")
    except psutil.Error:
        return False


def test_a_dry_run_shows_all_and_leaves_nothing(script, tmp_path: Path, capsys) -> None:
    assert start("--dry-run", script("print()\n")) == 0
    assert "  project   1 file" in capsys.readouterr().out
    assert list((tmp_path / "home/relays").iterdir()) == []
    assert main(["relay", "list"]) == 0
    assert capsys.readouterr().out == ""


def test_secrets_that_would_travel_readable_are_noted_and_never_shown(script, tmp_path: Path, capsys) -> None:
    secret = "hf_" + "aB3dE6gH9k" * 4
    flags = ["--env", "GREETING=hello", "--env", f"HUB={secret}", "--mirror", "ftp://me:word@host/folder"]
    assert start("--dry-run", *flags, script("print()\n"), "--", "--hub", secret) == 0
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    for what in ("HUB", "argument 2 looks like a token of Hugging Face and", "the password in --mirror"):
        assert f"{what} travels as plain text" in shown
    assert "GREETING" not in shown
    assert secret not in shown
    assert "word@" not in shown


def test_a_wrong_path_is_said_before_an_account_is_asked_for(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path))  # nothing is in it
    assert main(["relay", "start", "trian.py"]) == 1
    assert capsys.readouterr().err.startswith(f"error: nothing to run: there is no file trian.py in {tmp_path}\n")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--on", "colab"], "there is no platform 'colab'"),
        (["--accelerator", "t4x2"], "local has no accelerator 't4x2'"),
        (["--window", "3 d"], "a session on local with machine lasts 12 h at most"),
        (["--window", "1 s"], "a session of 1 s leaves no time to train"),
        (["--window", "soon"], "--window must be a duration"),
        (["--env", "WORD"], "--env takes NAME=VALUE, got 'WORD'"),
        (["--when-exhausted", "cry"], "--when-exhausted takes wait, cpu or stop, got 'cry'"),
        (["--dataset", "flowers"], "--dataset flowers is no name of one"),
        (["--model", "google/gemma"], "--model google/gemma is no name of one"),
        (["--mirror", "kaggle", "--no-internet"], "--mirror needs the network"),
        (["--mirror", "bucket"], "--mirror bucket is neither kaggle nor an address"),
        (["--name", "a b"], "the name of a relay may hold letters"),
        (["--out", "."], "the finished run is to lie in "),
        (["--out", f"{__file__}/out"], "is no folder"),
        (["--project", "/usr"], "is not in the project"),
    ],
)
def test_nonsense_is_refused_before_anything_is_packed(script, tmp_path: Path, capsys, flags, error) -> None:
    assert start(*flags, script("print()\n")) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {error}") or error in captured.err.splitlines()[0]
    assert "\nhint: " in captured.err
    assert captured.out == ""
    assert not list((tmp_path / "home").glob("relays/*/bundle*"))


def test_a_secret_in_the_project_is_refused_before_anything_is_packed(script, tmp_path: Path, capsys) -> None:
    target = script("print()\n")
    (Path(target).parent / "kaggle.json").write_text(
        '{"username": "me", "key": "0123456789abcdef0123456789abcdef"}'
    )
    assert start(target) == 1
    assert "kaggle.json" in capsys.readouterr().err
    assert not list((tmp_path / "home").glob("relays/*/bundle*"))


@pytest.mark.parametrize(
    "command", [["status"], ["watch"], ["logs"], ["fetch"], ["status", "digits"], ["stop", "digits"]]
)
def test_a_relay_that_is_not_there_is_said(capsys, command: list[str]) -> None:
    assert main(["relay", *command]) in (1, 2)
    assert "there is no relay" in capsys.readouterr().err


def test_names_are_found_for_relays_that_have_none() -> None:
    from perdure.relay.opening import Wish, _name

    assert _name(Wish(Path("my train.py")), ()) == "my-train"
    assert _name(Wish(Path("train.py")), ("train", "train-2")) == "train-3"
    Path("relays/train/run").mkdir(parents=True)
    assert _name(Wish(Path("train.py")), ()) == "train-2"
    assert _name(Wish(Path("train.py"), out=Path("elsewhere")), ()) == "train"


def test_the_help_is_there_and_loads_nothing_heavy() -> None:
    code = "import sys; from perdure.cli.main import main; main(['relay', 'start', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert "--when-exhausted" in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"torch", "numpy", "kaggle", "kagglesdk", "apprise", "fsspec", "requests"}


def test_what_a_start_packed_that_died_is_taken_away_a_day_later(tmp_path: Path) -> None:
    from perdure.relay.opening import sweep

    home, now_s = Home(tmp_path / "home"), 1_800_000_000.0
    for relay_id, age_s in (("0a0a0a0a", 90_000), ("0b0b0b0b", 90_000), ("0c0c0c0c", 60)):
        home.relay(relay_id).mkdir(parents=True)
        home.bundle(relay_id).touch()
        os.utime(home.relay(relay_id), (now_s - age_s, now_s - age_s))
    sweep(home, ["0b0b0b0b"], now_s)
    assert sorted(path.name for path in (tmp_path / "home/relays").iterdir()) == ["0b0b0b0b", "0c0c0c0c"]
