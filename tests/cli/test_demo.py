"""``perdure demo`` is a real proof: real kills, a real window, real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli import demo as demo_module
from perdure.cli.main import main
from perdure.demo import driver
from perdure.demo.driver import Demo, DemoSession

pytestmark = pytest.mark.xdist_group("demo")  # one worker, one demo

PERDURE = [sys.executable, "-c", "import sys; from perdure.cli.main import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The answer of one real demo.

    Its window is a few seconds. On a machine that is busy with other tests, a session may be killed by its window
    before the process has ended; identical it must be each time, and one of three must end in time.
    """
    for _ in range(3):
        answer = one_demo(tmp_path_factory.mktemp("demo"))
        assert answer["identical"]
        if any(session["how"] == "paused" for session in answer["sessions"]):
            break
    return answer


def one_demo(folder: Path) -> dict:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    command = [*PERDURE, "demo", "--json", "--seed", "7"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_sessions_are_killed_one_runs_out_of_time_and_the_end_is_identical(demo: dict) -> None:
    assert demo["identical"]
    assert demo["differences"] == []
    endings = [session["how"] for session in demo["sessions"]]
    assert endings[:2] == ["killed", "killed"]
    assert endings.count("paused") == 1
    assert endings[-1] == "finished"


def test_each_session_goes_on_from_what_the_one_before_left(demo: dict) -> None:
    steps = [session["step"] for session in demo["sessions"]]
    assert steps == sorted(steps)
    assert 0 < steps[0] < steps[1] < demo["steps"] == steps[-1]


def test_the_session_with_a_window_ends_before_it_closes(demo: dict) -> None:
    paused = next(session for session in demo["sessions"] if session["how"] == "paused")
    assert paused["seconds"] < paused["window_s"]
    assert "window" in paused["reason"]


def test_the_model_recognises_digits_it_has_not_seen_when_a_stranger_loads_it(demo: dict) -> None:
    from safetensors.torch import load_file
    from torch import load
    from torch.utils.data import DataLoader

    from perdure.demo.digits import build_model, evaluate, load_data

    held_out = DataLoader(load_data()[1], batch_size=360)
    for path, tensors in zip(demo["models"], (load(demo["models"][0]), load_file(demo["models"][1])), strict=True):
        model = build_model()
        model.load_state_dict(tensors)
        assert evaluate(model, held_out) == pytest.approx(demo["accuracy"]), path
    assert demo["accuracy"] > 0.9


def test_the_run_it_leaves_can_be_looked_at_and_verifies(demo: dict, capsys) -> None:
    assert main(["status", "--root", demo["runs"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["status"] == "finished"
    assert main(["verify", "--root", demo["runs"]]) == 0


def test_a_difference_is_said_and_is_exit_code_1(monkeypatch, capsys, tmp_path: Path) -> None:
    sessions = (DemoSession(1, "finished", "", 10, 1.0, None),)
    bad = Demo(False, ("model/fc.weight: other values",), sessions, 0.9, 10, (), str(tmp_path), "digits.py", 3.0)
    monkeypatch.setattr(demo_module, "_watched", lambda out, seed: bad)
    assert main(["demo"]) == 1
    out = capsys.readouterr().out
    assert "compared with the uninterrupted training: NOT identical\n  - model/fc.weight: other values\n" in out
    assert main(["demo", "--json"]) == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert main(["demo", "--out", "mine"]) == 2
    assert "is there and not the demo's" in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch, capsys) -> None:
    there = driver.importlib.util.find_spec
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: None if name == "sklearn" else there(name))
    assert main(["demo"]) == 1
    assert capsys.readouterr().err.endswith("error: the demo needs scikit-learn\nhint: pip install scikit-learn\n")


def test_a_session_that_fails_by_itself_is_an_error_with_the_end_of_its_log(
    monkeypatch, capsys, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('the reason')")
    monkeypatch.setattr("perdure.demo.leg.SCRIPT", broken)
    assert main(["demo"]) == 1
    err = capsys.readouterr().err
    assert "error: session 1 of the demo failed:" in err
    assert "RuntimeError: the reason" in err
