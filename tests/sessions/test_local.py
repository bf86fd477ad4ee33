"""A session on this machine is limited and ended as a hosted one is."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perdure.core.errors import ConfigError
from perdure.platforms.box import Box, used_bytes
from perdure.platforms.local import LocalLimits, LocalSession, SessionFolders, log_tail
from perdure.platforms.processes import SessionProcess

NAMESPACES = subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0
real_limits = pytest.mark.skipif(not NAMESPACES, reason="no mount namespaces on this machine")

FILL = """
import errno, os, pathlib
try:
    for n in range(40):
        pathlib.Path(f"part-{n}").write_bytes(bytes(100_000))
except OSError as error:
    print("full:", errno.errorcode[error.errno])
try:
    (pathlib.Path(os.environ["PERDURE_INPUTS"]) / "session-1" / "result").write_text("changed")
except OSError as error:
    print("inputs:", errno.errorcode[error.errno])
"""


def folders(work, name="session-2"):
    return SessionFolders(work / "working", work / "input", work / "outputs", work / name, work / "outputs" / name)


def run(work, code, limits=LocalLimits(), name="session-2"):
    session = LocalSession((sys.executable, "-c", code), folders(work, name), limits, os.environ)
    while session.poll():
        time.sleep(0.01)
    return session.finish(), session.folders


@real_limits
def test_the_outputs_of_earlier_sessions_are_seen_and_cannot_be_written_to(tmp_path):
    run(tmp_path, "open('result', 'w').write('mine')", name="session-1")
    end, kept = run(tmp_path, FILL)
    assert end.notes == ()
    assert "inputs: EROFS" in kept.log.read_text()
    assert (tmp_path / "outputs/session-1/result").read_text() == "mine"


@real_limits
def test_a_full_disk_is_felt_by_the_session_itself(tmp_path):
    run(tmp_path, "open('result', 'w').write('mine')", name="session-1")
    end, kept = run(tmp_path, FILL, LocalLimits(disk_bytes=1_000_000))
    assert "full: ENOSPC" in kept.log.read_text()
    assert end.how == "finished"
    assert used_bytes(kept.output) <= 1_000_000 + 4096


def test_the_working_folder_is_the_same_path_and_empty_in_each_session(tmp_path):
    code = "import os; print(os.getcwd(), os.listdir()); open('left', 'w')"
    logs = [run(tmp_path, code, LocalLimits(disk_bytes=10**6), name)[1].log.read_text() for name in ("s1", "s2")]
    assert logs == [f"{tmp_path / 'working'} []\n"] * 2


def test_a_session_is_killed_without_notice_when_its_window_ends_and_its_output_is_kept(tmp_path):
    code = "import signal, time; signal.signal(15, lambda *_: print('asked')); open('left', 'w'); time.sleep(60)"
    end, kept = run(tmp_path, code, LocalLimits(window_s=0.5))
    assert (end.how, end.code) == ("window", -9)
    assert os.listdir(kept.output) == ["left"]
    assert "asked" not in kept.log.read_text()


def test_the_session_is_told_its_window_its_budget_and_its_folders(tmp_path):
    code = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('PERDURE')}))"
    _, kept = run(tmp_path, code, LocalLimits(window_s=60, disk_bytes=10**7))
    told = json.loads(kept.log.read_text())
    assert told["PERDURE_WINDOW"] == "60.000 s"
    assert told["PERDURE_DISK"] == "10000000 B"
    assert told["PERDURE_ROOT"] == str(tmp_path / "working/perdure")
    assert told["PERDURE_INPUTS"] == str(tmp_path / "input")
    assert told["PERDURE_PLATFORM"] == "local"


def test_all_processes_of_a_killed_session_are_gone_also_those_in_groups_of_their_own(tmp_path):
    code = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"]
worker, detached = subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)
open("pids", "w").write(f"{worker.pid} {detached.pid}")
time.sleep(60)
"""
    session = LocalSession((sys.executable, "-c", code), folders(tmp_path), LocalLimits(), os.environ)
    pids = tmp_path / "working/pids"
    while not (pids.exists() and pids.read_text()):
        time.sleep(0.01)
    session.kill()
    end = session.finish()
    assert end.how == "killed"
    left = [
        pid for pid in map(int, (session.folders.output / "pids").read_text().split()) if psutil.pid_exists(pid)
    ]
    assert all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in left)


def test_the_mounts_of_a_session_are_gone_after_it(tmp_path):
    run(tmp_path, FILL, LocalLimits(disk_bytes=1_000_000))
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    marks = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])]
    assert marks == []


PROBE = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_local import FILL, LocalLimits, run
work = Path({work!r})
run(work, "open('result', 'w').write('mine')", name="session-1")
end, kept = run(work, FILL + {tail!r}, LocalLimits(disk_bytes=1_000_000))
print(json.dumps([end.how, list(end.notes), kept.log.read_text()]))
"""


def probe(tmp_path, *prefix, tail=""):
    code = PROBE.format(here=str(Path(__file__).parent), work=str(tmp_path / "work"), tail=tail)
    done = subprocess.run([*prefix, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@real_limits
@pytest.mark.skipif(os.geteuid() != 0, reason="drops a right that only root has")
def test_an_ordinary_user_gets_real_limits_too(tmp_path):
    how, notes, log = probe(tmp_path, "setpriv", "--bounding-set=-sys_admin")
    assert (how, notes) == ("finished", [])
    assert "full: ENOSPC" in log
    assert "inputs: EROFS" in log


@real_limits
def test_where_no_namespace_can_be_made_a_session_that_outgrows_its_disk_is_killed_and_that_is_said(tmp_path):
    refuse = 'for n in user mnt; do echo 0 > /proc/sys/user/max_${n}_namespaces; done; exec "$@"'
    how, notes, log = probe(
        tmp_path, "unshare", "-Ur", "sh", "-c", refuse, "sh", tail="import time; time.sleep(60)"
    )
    assert how == "disk"
    assert "no mount namespace here" in notes[0]
    assert "full:" not in log


def test_a_budget_larger_than_half_of_the_free_memory_is_watched_instead_and_that_is_said(tmp_path):
    box = Box(tmp_path / "working", tmp_path / "input", tmp_path / "outputs", psutil.virtual_memory().total)
    box.close()
    assert box.is_watched
    assert "half of the free memory" in box.notes[0]


def test_a_program_that_is_not_there_is_an_error_that_names_it(clean_environment):
    with pytest.raises(ConfigError, match="no-such-program"):
        SessionProcess(["no-such-program"], environment=clean_environment)


def test_the_tail_of_a_log_survives_bytes_that_are_no_text(tmp_path):
    (tmp_path / "log").write_bytes(b"one\n\xff\xfe two\nthree\n")
    assert log_tail(tmp_path / "log", 2) == ["�� two", "three"]
