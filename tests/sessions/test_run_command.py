"""``perdure run``: exit codes, signals, windows."""

import json
import os
import signal
import sys
import time

import psutil
import pytest

from perdure.platforms.place import Place
from perdure.platforms.report import RunReport, SessionReport
from perdure.relay.session import exit_code

POLITE = """
import os, signal, sys, time
stop = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: (stop.append(number), print("got", number, flush=True)))
open("started", "w").close()
end = time.monotonic() + 30
while len(stop) < int(sys.argv[1]) and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.2)
print("signals:", len(stop), flush=True)
sys.exit(75)
"""


@pytest.fixture
def script(tmp_path):
    def write(text, name="train.py"):
        (tmp_path / name).write_text(text)
        return name

    return write


def wait_for(path):
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_exit_code_of_a_script_that_ends_well_is_0_and_its_output_is_its_own(perdure, script):
    done = perdure(
        "run", script("import sys; print('out', *sys.argv[1:]); print('err', file=sys.stderr)"), "--", "--a", "b"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "out --a b\n", "err\n")


def test_a_failing_script_shows_its_own_traceback_and_nothing_of_ours(perdure, script):
    done = perdure("run", script("raise ValueError('mine')"))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: mine\n")
    assert "perdure" not in done.stderr


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("sys.exit(75)", 75)]
)
def test_the_code_of_a_script_is_handed_on(perdure, script, ending, code):
    assert perdure("run", script(f"import os, sys\n{ending}")).returncode == code


REPORTS_A_PAUSE = """
import json, os
json.dump({"version": 1, "status": "paused", "runs": []}, open(os.environ["PERDURE_SESSION_REPORT"], "w"))
"""


def test_a_paused_run_whose_script_ends_with_0_is_paused_all_the_same(perdure, script):
    assert perdure("run", script(REPORTS_A_PAUSE)).returncode == 75


def test_a_paused_run_ends_with_0_in_a_kaggle_batch_run(perdure, script):
    assert perdure("run", script("raise SystemExit(75)"), env={"KAGGLE_KERNEL_RUN_TYPE": "Batch"}).returncode == 0


def test_a_failure_after_a_pause_is_a_failure():
    report = SessionReport("paused", (RunReport("a", "x", "paused"),))
    assert exit_code(1, report, Place("local", "process", "runs")) == 1


def test_the_session_is_told_what_the_flags_say(perdure, script, tmp_path):
    name = script("import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'PERDURE' in k}))")
    done = perdure(
        "run", name, "--window", "2 h", "--disk", "3 GB", "--root", "here", "--input", "a", "--input", "b"
    )
    told = json.loads(done.stdout)
    assert told["PERDURE_WINDOW"] == "7200.000 s"
    assert told["PERDURE_DISK"] == "3000000000 B"
    assert told["PERDURE_ROOT"] == str(tmp_path / "here")
    assert told["PERDURE_INPUTS"] == f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}"
    assert float(told["PERDURE_SESSION_STARTED"]) > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_handed_on_to_the_script_once(start_perdure, script, tmp_path, number):
    process = start_perdure("run", script(POLITE), "--", 1)
    wait_for(tmp_path / "started")
    process.send_signal(number)
    if number != signal.SIGINT:
        process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    assert f"got {2 if number == signal.SIGINT else 15}" in output
    assert "signals: 1" in output


def test_a_second_ctrl_c_kills(start_perdure, script, tmp_path):
    process = start_perdure("run", script(POLITE), "--", 3)
    wait_for(tmp_path / "started")
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 137


def test_a_script_that_ignores_its_window_is_told_to_stop_and_then_killed(perdure, script):
    ignores = "import signal, time; signal.signal(15, lambda *_: print('told', flush=True)); [time.sleep(1) for _ in range(60)]"
    done = perdure("run", script(ignores), "--window", "4s")
    assert done.returncode == 137
    assert done.stdout == "told\n"
    assert "told to stop" in done.stderr
    assert "killed" in done.stderr


def test_workers_that_outlive_a_script_are_ended(perdure, script, tmp_path):
    leaves = f"""
import subprocess
child = subprocess.Popen([{sys.executable!r}, "-c", "import time; time.sleep(60)"], start_new_session=True)
open("pid", "w").write(str(child.pid))
"""
    assert perdure("run", script(leaves)).returncode == 0
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["nowhere"], "cannot start 'nowhere'"),
        (["--window", "soon", "--", "true"], "limits.window"),
        (["--carry", "*.pt", "--", "true"], "belong together"),
        (["--carry", "*.pt", "--resume-with", "--resume", "--", "true"], "where the path belongs"),
    ],
)
def test_nonsense_is_an_error_that_says_what_is_wrong(perdure, words, says):
    done = perdure("run", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
