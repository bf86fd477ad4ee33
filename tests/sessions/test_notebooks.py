"""Notebooks under ``perdure run``: the kernel is owned, later cells are skipped after a pause, outputs are kept."""

import importlib.util
import json
import signal
import sys
import time

import psutil
import pytest

from perdure.core.errors import MissingExtraError
from perdure.platforms.command import session_command

nbformat = pytest.importorskip("nbformat")

PAUSES_INSIDE_WITH = """
import json, os
json.dump({"version": 1, "status": "paused", "runs": []}, open(os.environ["PERDURE_SESSION_REPORT"], "w"))
"""
TRAINS = """
import json, signal, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
open("started", "w").close()
step = 0
while not stop and step < 3000:
    step += 1
    time.sleep(0.01)
json.dump(step, open("saved.json", "w"))
print("saved", flush=True)
raise SystemExit(75)
"""


@pytest.fixture
def notebook(tmp_path):
    def write(*cells, name="book.ipynb", **metadata):
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=metadata
        )
        (tmp_path / name).write_text(nbformat.writes(book))
        return name

    return write


def outputs(path):
    book = nbformat.read(path, as_version=4)
    return ["".join(out.get("text", "") or out.get("ename", "") for out in cell.outputs) for cell in book.cells]


def test_a_notebook_is_run_to_its_end_and_written_with_its_outputs(perdure, notebook, tmp_path):
    done = perdure("run", notebook("import sys, os\nprint(sys.executable)", "print(os.getcwd())"))
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n{tmp_path}\n")
    assert outputs(tmp_path / "book.executed.ipynb") == [f"{sys.executable}\n", f"{tmp_path}\n"]
    assert outputs(tmp_path / "book.ipynb") == ["", ""]


def test_an_error_in_a_cell_is_shown_as_it_is_and_the_outputs_so_far_are_kept(perdure, notebook, tmp_path):
    done = perdure("run", notebook("print('before')", "1 / 0", "print('after')"))
    assert done.returncode == 1
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "nbclient" not in done.stderr
    assert outputs(tmp_path / "book.executed.ipynb") == ["before\n", "ZeroDivisionError", ""]


@pytest.mark.parametrize(
    ("ending", "code"),
    [("raise SystemExit(75)", 75), (PAUSES_INSIDE_WITH, 75), ("exit_ = __import__('sys').exit; exit_(3)", 3)],
)
def test_cells_after_the_one_that_ends_the_session_are_skipped(perdure, notebook, tmp_path, ending, code):
    done = perdure("run", notebook(ending, "print('later')", "print('still later')"))
    assert done.returncode == code
    assert "later" not in done.stdout
    if code == 75:
        assert "paused in cell 1: 2 later cells are skipped" in done.stderr


def test_a_sigterm_reaches_the_kernel_which_saves_before_it_is_let_go(start_perdure, notebook, tmp_path):
    process = start_perdure("run", notebook(TRAINS, "print('later')"))
    while not (tmp_path / "started").exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert json.loads((tmp_path / "saved.json").read_text()) > 0
    assert "later cell is skipped" in output
    assert outputs(tmp_path / "book.executed.ipynb")[0].startswith("saved\n")


def test_no_kernel_is_left_when_the_command_is_interrupted_twice(start_perdure, notebook, tmp_path):
    cell = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nwhile True:\n  try: time.sleep(60)\n  except KeyboardInterrupt: pass"
    process = start_perdure("run", notebook(cell))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_notebook_can_import_what_lies_beside_it(perdure, notebook, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/helper.py").write_text("name = 'helper'")
    name = notebook("import helper; print(helper.name)", name="project/book.ipynb")
    assert perdure("run", name).stdout == "helper\n"


def test_without_the_extra_the_error_says_how_to_install_it(notebook, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nbclient" else find(name))
    with pytest.raises(MissingExtraError, match=r"nbclient[\s\S]*pip install 'perdure\[notebook\]'"):
        session_command(str(tmp_path / notebook("1")), [])


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        ("no json", [], "cannot be read as a notebook"),
        (None, ["--", "--epochs", "3"], "a notebook takes no arguments"),
    ],
)
def test_what_is_no_notebook_or_has_arguments_is_refused(perdure, notebook, tmp_path, content, words, says):
    name = notebook("1")
    if content is not None:
        (tmp_path / name).write_text(content)
    done = perdure("run", name, *words)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_notebook_in_another_language_is_refused(perdure, notebook):
    spec = {"name": "ir", "language": "R", "display_name": "R"}
    done = perdure("run", notebook("1", kernelspec=spec))
    assert done.returncode == 2
    assert "a notebook in R" in done.stderr
