"""The platform on this machine: real processes, limited as hosted ones are, that outlive who submitted them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perdure.core.errors import ConfigError, NotThereError, RefusedError, UncertainError
from perdure.platforms import host, local_platform
from perdure.platforms.local_platform import MACHINE, NONE, LocalPlatform, from_place
from perdure.platforms.protocol import Handle, Observation, Submission
from perdure.platforms.reach import reach
from perdure.relay.bundle import Bundle, make_bundle

WITHIN_S = 60.0


@pytest.fixture
def platform(tmp_path: Path) -> LocalPlatform:
    return LocalPlatform(tmp_path / "place", window_s=60.0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A project whose script does what its argument says."""
    project = tmp_path_factory.mktemp("project")
    (project / "train.py").write_text("import sys\nexec(sys.argv[1])\n")
    return make_bundle(project, "train.py", tmp_path_factory.mktemp("bundle") / "bundle.tar.xz")


def submission(bundle: Bundle, script: str, slug: str = "perdure-test-1", **changed: object) -> Submission:
    order = {
        "format": 1,
        "relay": "0123abcd",
        "session": 1,
        "slug": slug,
        "target": "train.py",
        "arguments": [script],
        "window_s": 60.0,
        "margin_s": 1.0,
        "mount_wait_s": 1.0,
        "cargo": {"name": "perdure-bundle.bin", "digest": bundle.digest},
    }
    values = {"accelerator": "none", "window_s": 60.0, **changed}
    return Submission(slug, bundle.path, order, **values)  # type: ignore[arg-type]


def ended(platform: LocalPlatform, handle: Handle) -> Observation:
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        seen = platform.observe(handle)
        if seen.ended:
            return seen
        time.sleep(0.05)
    raise AssertionError(platform.logs(handle).lines)


def wait_for(platform: LocalPlatform, handle: Handle, line: str) -> None:
    until_s = time.monotonic() + WITHIN_S
    while line not in platform.logs(handle).lines:
        assert time.monotonic() < until_s, platform.logs(handle).lines
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_session_runs_the_project_and_leaves_its_output(
    platform: LocalPlatform, bundle: Bundle, tmp_path: Path
) -> None:
    script = (
        "import os, pathlib\npathlib.Path('deep').mkdir()\npathlib.Path('deep/out.bin').write_bytes(b'12345')\n"
    )
    handle = platform.submit(
        submission(bundle, script + "print('cards:', repr(os.environ['CUDA_VISIBLE_DEVICES']))")
    )
    assert platform.find("perdure-test-1") == handle
    assert ended(platform, handle).state == "complete"
    log = platform.logs(handle)
    assert log.complete
    assert "cards: ''" in log.lines
    sizes = {each.name: each.size_bytes for each in platform.files(handle)}
    assert sizes["deep/out.bin"] == 5
    assert "perdure-session.json" in sizes
    seen: list[tuple[int, int]] = []
    (path,) = platform.fetch(
        handle, ["deep/out.bin"], tmp_path / "here", lambda done, whole: seen.append((done, whole))
    )
    assert path.read_bytes() == b"12345"
    assert seen == [(5, 5)]
    with pytest.raises(NotThereError):
        platform.fetch(handle, ["deep/none.bin"], tmp_path / "here")


def test_the_output_of_an_earlier_session_is_an_input_that_cannot_be_written_to(
    platform: LocalPlatform, bundle: Bundle, tmp_path: Path
) -> None:
    first = platform.submit(submission(bundle, "open('state.txt', 'w').write('from the first')"))
    ended(platform, first)
    (platform.folder / "inputs/datasets/me/data").mkdir(parents=True)
    (platform.folder / "inputs/datasets/me/data/x.csv").write_text("1,2")
    script = """
import os, pathlib
root = pathlib.Path(os.environ['PERDURE_INPUTS'])
print(sorted(str(p.relative_to(root)) for p in root.rglob('*') if p.name in ('state.txt', 'x.csv')))
state = root / 'notebooks/local/perdure-test-1/state.txt'
print(state.read_text())
try:
    state.write_text('spoiled')
except OSError as error:
    print(type(error).__name__)
"""
    second = platform.submit(submission(bundle, script, "perdure-test-2", sessions=(first,), datasets=("me/data",)))
    ended(platform, second)
    lines = platform.logs(second).lines
    assert "['datasets/me/data/x.csv', 'notebooks/local/perdure-test-1/state.txt']" in lines
    assert "from the first" in lines
    if os.geteuid() != 0 or host.read(Path(second.ref)).notes == ():  # root writes where it likes, without a mount
        assert "OSError" in lines or "PermissionError" in lines
    platform.fetch(first, ["state.txt"], tmp_path / "here")
    assert (tmp_path / "here/state.txt").read_text() == "from the first"


def test_a_large_bundle_lies_beside_the_source(
    platform: LocalPlatform, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_platform, "INLINE_BYTES", 1000)
    handle = platform.submit(submission(bundle, "print('carried')"))
    assert ended(platform, handle).state == "complete"
    assert "carried" in platform.logs(handle).lines
    assert (Path(handle.ref) / "source.py").stat().st_size < bundle.size_bytes


def test_an_input_that_is_not_there_is_refused_before_anything_begins(
    platform: LocalPlatform, bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError) as caught:
        platform.submit(submission(bundle, "", datasets=("me/none",)))
    assert caught.value.code == "sources"
    assert platform.find("perdure-test-1") is None


def test_stop_lets_a_session_end_and_now_kills_it(platform: LocalPlatform, bundle: Bundle, tmp_path: Path) -> None:
    script = (
        "import pathlib, time\npathlib.Path('saved').write_text('x')\nprint('begun', flush=True)\ntime.sleep(60)\n"
    )
    handle = platform.submit(submission(bundle, script))
    wait_for(platform, handle, "begun")
    assert platform.files(handle) == ()
    assert platform.observe(handle).state == "running"
    assert platform.stop(handle, now=True).done
    assert platform.observe(handle).state == "stopped"
    assert "saved" in {each.name for each in platform.files(handle)}
    kind = platform.submit(submission(bundle, script, "perdure-test-2"))
    wait_for(platform, kind, "begun")
    assert platform.stop(kind, now=False).done
    assert ended(platform, kind).state in ("complete", "failed")


def test_a_session_is_killed_at_the_end_of_its_window(
    platform: LocalPlatform, bundle: Bundle, tmp_path: Path
) -> None:
    script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('begun', flush=True)\ntime.sleep(60)"
    handle = platform.submit(submission(bundle, script, window_s=4.0))
    seen = ended(platform, handle)
    assert (seen.state, seen.message) == ("failed", "it was killed at the end of its window")


_SUBMITTER = """
import sys, pathlib, pickle
from perdure.platforms.local_platform import LocalPlatform
platform = LocalPlatform(pathlib.Path(sys.argv[1]), window_s=60.0)
platform.submit(pickle.loads(pathlib.Path(sys.argv[2]).read_bytes()))
print("submitted", flush=True)
input()
"""


def test_a_session_outlives_the_process_that_submitted_it(
    platform: LocalPlatform, bundle: Bundle, tmp_path: Path
) -> None:
    script = "import time\nprint('begun', flush=True)\ntime.sleep(2)\nprint('end', flush=True)\n"
    (tmp_path / "submission").write_bytes(pickle.dumps(submission(bundle, script)))
    command = [sys.executable, "-c", _SUBMITTER, str(platform.folder), str(tmp_path / "submission")]
    submitter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert submitter.stdout is not None
    assert submitter.stdout.readline() == "submitted\n"
    os.kill(submitter.pid, signal.SIGKILL)
    submitter.communicate()
    handle = platform.find("perdure-test-1")
    assert handle is not None
    assert ended(platform, handle).state == "complete"
    assert "end" in platform.logs(handle).lines


def test_a_session_whose_host_died_is_ended_for_good(
    platform: LocalPlatform, bundle: Bundle, tmp_path: Path
) -> None:
    script = "import os, time\nprint('begun', flush=True)\nopen('pid', 'w').write(str(os.getpid()))\nprint('written', flush=True)\ntime.sleep(60)\n"
    handle = platform.submit(submission(bundle, script))
    wait_for(platform, handle, "written")
    os.kill(host.read(Path(handle.ref)).pid, signal.SIGKILL)
    seen = ended(platform, handle)
    assert seen.state == "failed"
    assert "died" in seen.message
    (path,) = platform.fetch(handle, ["pid"], tmp_path / "here")
    assert not is_alive(int(path.read_text()))


def test_a_host_that_does_not_say_that_it_is_there_is_looked_for_and_not_started_again(
    platform: LocalPlatform, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "START_WITHIN_S", 0.01)  # too short for any process
    with pytest.raises(UncertainError):
        platform.submit(submission(bundle, "print(1)"))
    with pytest.raises(UncertainError):  # the folder is used: another attempt is none
        platform.submit(submission(bundle, "print(1)"))
    handle = platform.find("perdure-test-1")
    assert handle is not None
    assert ended(platform, handle).ended


def test_a_new_process_reaches_the_same_place(tmp_path: Path) -> None:
    place = {"folder": str(tmp_path), "window_s": 30, "disk_bytes": 1000, "pace": {"poll_s": 0.5}}
    platform = reach("local", place)
    assert (platform.name, platform.window_s("none"), platform.pace.poll_s) == ("local", 30.0, 0.5)
    assert [each.name for each in platform.accelerators] == [MACHINE.name, NONE.name]
    assert platform.quota() == ()
    assert platform.account()
    assert platform.find("perdure-none-1") is None
    with pytest.raises(ConfigError, match="cannot be set up"):
        from_place({})
