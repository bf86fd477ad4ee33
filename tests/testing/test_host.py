"""A session on this machine outlives the process that started it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from perdure.core.errors import NotThereError, PlatformError
from perdure.platforms import host
from perdure.platforms.host import HostFolder, HostSpec

ENDED = ("ended", "dead")


def python(code, **more):
    return HostSpec((sys.executable, "-c", code), **more)


def wait_for(look):
    while not look():
        time.sleep(0.02)


def wait_for_end(folder):
    wait_for(lambda: host.read(folder).state in ENDED)
    return host.read(folder)


def test_a_session_runs_to_its_end_and_leaves_its_output_and_its_log(tmp_path):
    host.start(tmp_path / "s", python("print('hello'); open('left', 'w').write('mine')"))
    state = wait_for_end(tmp_path / "s")
    assert (state.state, state.how, state.code) == ("ended", "finished", 0)
    assert state.started_s <= state.ended_s
    assert (tmp_path / "s/output/left").read_text() == "mine"
    assert HostFolder(tmp_path / "s").log.read_text() == "hello\n"
    assert not os.path.exists(state.temporary)


def test_it_goes_on_when_its_starter_is_killed(tmp_path):
    starter = f"""
import os, signal, sys
from pathlib import Path
from perdure.platforms import host
code = "import time; time.sleep(0.5); open('left', 'w')"
host.start(Path({str(tmp_path / "s")!r}), host.HostSpec((sys.executable, "-c", code)))
os.killpg(0, signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", starter], start_new_session=True).returncode == -signal.SIGKILL
    assert wait_for_end(tmp_path / "s").how == "finished"
    assert os.listdir(tmp_path / "s/output") == ["left"]


def test_its_inputs_cannot_be_written_to_and_lie_where_they_were_asked_for(tmp_path):
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier/result").write_text("mine")
    code = """
import os, pathlib
file = pathlib.Path(os.environ["PERDURE_INPUTS"], "notebooks/me/first/result")
print(file.read_text())
try:
    (file.parent / "more").write_text("")
except OSError as error:
    print("refused")
"""
    inputs = {"notebooks/me/first": str(tmp_path / "earlier")}
    host.start(tmp_path / "s", python(code, inputs=inputs, platform="kaggle"))
    wait_for_end(tmp_path / "s")
    lines = HostFolder(tmp_path / "s").log.read_text().splitlines()
    assert lines[0] == "mine"
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"]).returncode == 0:  # root may write where it wants
        assert lines[1] == "refused"
    assert os.listdir(tmp_path / "earlier") == ["result"]


def test_a_hosted_platform_tells_its_session_nothing_of_limits(tmp_path):
    code = "import os; print(sorted(n for n in os.environ if n.startswith('PERDURE_')), os.environ['MORE'])"
    spec = python(code, window_s=60, platform="kaggle", environment={"MORE": "x"})
    host.start(tmp_path / "s", spec, {"PATH": os.environ["PATH"], "PERDURE_WINDOW": "1 s"})
    wait_for_end(tmp_path / "s")
    assert HostFolder(tmp_path / "s").log.read_text() == "['PERDURE_INPUTS', 'PERDURE_SESSION_ID'] x\n"


def test_the_window_ends_it_and_its_output_stays(tmp_path):
    host.start(tmp_path / "s", python("open('left', 'w'); import time; time.sleep(60)", window_s=0.5))
    assert (wait_for_end(tmp_path / "s").how, os.listdir(tmp_path / "s/output")) == ("window", ["left"])


def test_it_can_be_asked_to_stop(tmp_path):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); print('up', flush=True); time.sleep(60)"
    host.start(tmp_path / "s", python(code))
    log = HostFolder(tmp_path / "s").log
    wait_for(lambda: log.exists() and log.read_text() == "up\n")
    host.ask_stop(tmp_path / "s")
    state = wait_for_end(tmp_path / "s")
    assert (state.how, state.code) == ("failed", 3)


def test_a_kill_ends_it_and_what_it_wrote_stays(tmp_path):
    host.start(tmp_path / "s", python("open('left', 'w'); import time; time.sleep(60)"))
    wait_for((tmp_path / "s/working/left").exists)
    assert (host.kill(tmp_path / "s").how, os.listdir(tmp_path / "s/output")) == ("killed", ["left"])


def test_a_host_that_was_killed_is_told_from_one_that_runs_and_its_session_is_ended(tmp_path):
    folder = tmp_path / "s"
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    host.start(folder, python(code))
    wait_for(lambda: (folder / "working/pid").exists() and (folder / "working/pid").read_text())
    orphan = int((folder / "working/pid").read_text())
    os.kill(host.read(folder).pid, signal.SIGKILL)
    assert wait_for_end(folder).state == "dead"
    assert host.settle(folder).state == "dead"
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE
    assert (folder / "output/pid").read_text() == str(orphan)


def test_another_process_with_the_same_id_is_not_taken_for_the_host(tmp_path):
    folder = HostFolder(tmp_path)
    host.start(tmp_path, python("pass"))
    wait_for_end(tmp_path)
    ended = host.read_state(folder)
    host.write_state(folder, replace(ended, state="running", pid=os.getpid()))
    assert host.read(tmp_path).state == "dead"


def test_a_host_whose_starter_died_before_it_began_is_dead_after_a_while_and_then_never_begins(tmp_path):
    folder = HostFolder(tmp_path)
    folder.spec.write_text('{"format": 1, "command": ["true"]}')
    assert host.read(tmp_path).state == "queued"
    long_ago = time.time() - host.START_WITHIN_S - 1
    os.utime(folder.spec, (long_ago, long_ago))
    assert host.settle(tmp_path).state == "dead"
    host._spawn(folder, dict(os.environ))  # late after all
    assert (wait_for_end(tmp_path).how, folder.log.exists()) == ("killed", False)


def test_a_folder_is_good_for_one_host(tmp_path):
    with pytest.raises(NotThereError):
        host.read(tmp_path)
    host.start(tmp_path, python("pass"))
    with pytest.raises(PlatformError, match="was started in"):
        host.start(tmp_path, python("pass"))
    wait_for_end(tmp_path)


def test_a_program_that_is_not_there_is_a_failed_session_that_says_so(tmp_path):
    host.start(tmp_path, HostSpec(("true",), inputs={"x": "/no/such/folder"}))
    state = wait_for_end(tmp_path)
    assert (state.state, state.how, state.code) == ("ended", "failed", 127)
    assert "/no/such/folder" in HostFolder(tmp_path).log.read_text()
