"""A session of a relay from its first line to its marker, as a hosted platform runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
import time

import pytest

from checkpoint.snapshots import flip
from perdure.core.errors import CorruptError, FormatVersionError, NoCheckpointError
from perdure.relay.bundle import make_bundle
from perdure.relay.inside import needs
from perdure.relay.inside.marker import MARKER, Marker
from relay.inside.hosted import RELAY, digest, expected, leave_run, order, pack, run, start
from relay.project import write_project


def script(text):
    return textwrap.dedent(text)


# the script and its surroundings


def test_a_script_gets_its_arguments_variables_modules_and_files(tmp_path):
    main = script(
        """
        import json, os, sys
        from lib.helper import NAME
        import top
        print("said", sys.argv[1:], os.environ["GREETING"], NAME, top.X, open("conf/a.yaml").read())
        open("result.txt", "w").write("made")
        open("table.csv", "a").write("more")
        open("conf/new.txt", "w").write("new")
        """
    )
    files = {
        "scripts/train.py": main,
        "scripts/lib/helper.py": "NAME = 'helped'",
        "top.py": "X = 7",
        "conf/a.yaml": "rate: 1",
        "table.csv": "a\n",
    }
    what = order("scripts/train.py", arguments=["--rate", "0.1", "ä ß"], environment={"GREETING": 'it\'s "me"\n'})
    done = run(tmp_path, files, what)
    assert "said ['--rate', '0.1', 'ä ß'] it's \"me\"\n helped 7 rate: 1" in done.out
    assert done.code == 0
    # what the script made or changed is output; what only travelled is not
    assert done.output == ["conf/new.txt", MARKER, "result.txt", "table.csv"]
    assert (done.working / "table.csv").read_text() == "a\nmore"
    marker = done.marker
    assert (marker.relay, marker.session, marker.status, marker.exit_code) == (RELAY, 2, "finished", 0)
    assert marker.started_s <= marker.ended_s <= time.time() + 1
    assert marker.environment["python"] == sys.version.split()[0]
    assert not list(tmp_path.glob("perdure-relay-*"))  # nothing is left of the bundle


def test_on_an_emulated_platform_the_script_is_told_of_that_platform(tmp_path):
    where = "from perdure.platforms.detect import detect\nplace = detect()\nprint('on', place.platform, place.mode)"
    done = run(tmp_path, {"train.py": where}, KAGGLE_KERNEL_RUN_TYPE="Batch")
    assert "on kaggle batch" in done.out
    assert done.code == 0


def test_what_a_script_writes_beside_itself_or_a_module_of_its_own_is_output(tmp_path):
    main = """
        from pathlib import Path
        import lib.paths
        (Path(__file__).parent / "plots").mkdir()
        (Path(__file__).parent / "plots" / "loss.txt").write_text("0.1")
        (lib.paths.TOP / "table.txt").write_text("1")
        """
    files = {
        "scripts/train.py": script(main),
        "lib/paths.py": "from pathlib import Path\nTOP = Path(__file__).resolve().parent.parent",
    }
    done = run(tmp_path, files, order("scripts/train.py"))
    assert (done.code, done.marker.status) == (0, "finished")
    assert done.output == [MARKER, "scripts/plots/loss.txt", "table.txt"]


def test_a_script_that_fails_leaves_its_reason_and_the_end_of_its_log(tmp_path):
    done = run(tmp_path, {"train.py": "print('before')\nraise ValueError('no such layer')"})
    assert done.code == 1
    assert done.marker.status == "failed"
    assert done.marker.reason == "the script failed with exit code 1"
    assert done.marker.exit_code == 1
    assert "ValueError: no such layer" in done.marker.tail
    assert "before" in done.marker.tail


def test_a_script_that_is_killed_is_said_to_be(tmp_path):
    done = run(tmp_path, {"train.py": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"})
    assert (done.code, done.marker.status) == (1, "failed")
    assert done.marker.reason == "the script was killed by SIGKILL (out of memory, perhaps)"


def test_a_session_whose_own_process_is_killed_still_has_a_marker_that_says_so(tmp_path):
    kill = """
        import os, signal, time
        open("pid", "w").write(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
        """
    process, working = start(tmp_path, {"train.py": script(kill)})
    process.wait(timeout=60)
    marker = Marker.read(working)
    assert (marker.status, marker.reason) == ("failed", "the session's process was killed by signal 9")
    orphan = int((working / "pid").read_text())
    os.kill(orphan, signal.SIGKILL)


def test_asked_to_stop_a_session_ends_paused_and_well(tmp_path):
    wait = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        print("ready", flush=True)
        time.sleep(60)
        """
    process, working = start(tmp_path, {"train.py": script(wait)})
    while "ready" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0  # anything else marks a version as failed on Kaggle
    assert Marker.read(working).status == "paused"


def test_a_script_that_ignores_the_end_of_its_window_ends_before_it_all_the_same(tmp_path):
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    done = run(tmp_path, {"train.py": stubborn}, order(window_s=6.0, margin_s=3.0))
    assert done.code == 1
    assert "ended when its window closed, and has saved nothing" in done.marker.reason
    assert done.marker.ended_s - done.marker.started_s < 60.0


def test_a_run_that_says_it_is_not_finished_is_no_success(tmp_path):
    report = {"status": "running", "runs": [{"name": "digits", "folder": "/x", "status": "running", "step": 5}]}
    write = f"import os\nopen(os.environ['PERDURE_SESSION_REPORT'], 'w').write('''{json.dumps(report)}''')"
    done = run(tmp_path, {"train.py": write})
    assert done.marker.status == "failed"
    assert done.marker.reason == "the script ended without an error, and its run 'digits' is running"


# the bundle on its way


def test_a_bundle_in_an_input_is_found_by_name_and_digest_wherever_it_is_mounted(tmp_path):
    data = pack({"train.py": "print('ran')"})
    for place, content in (("datasets/me/old", b"another"), ("datasets/me/perdure-code/deep", data)):
        (tmp_path / "in" / place).mkdir(parents=True)
        (tmp_path / "in" / place / "perdure-bundle.bin").write_bytes(content)
    (tmp_path / "in" / "perdure-bundle.bin").symlink_to("nowhere")  # a mount that is listed and not ready
    done = run(tmp_path, {}, cargo=data, in_source=False, inputs=[tmp_path / "in"])
    assert done.code == 0
    assert "ran" in done.out


def test_a_bundle_that_is_not_there_is_said_and_the_marker_tells_which_session_it_was(tmp_path):
    data = pack({"train.py": "print('ran')"})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "perdure-bundle.bin").write_bytes(b"cut short")
    done = run(tmp_path, {}, cargo=data, in_source=False, inputs=[tmp_path / "in"])
    assert done.code == 1
    assert (done.marker.relay, done.marker.session, done.marker.status) == (RELAY, 2, "failed")
    assert "without the right digest" in done.marker.reason


def test_a_target_that_is_no_longer_there_is_said(tmp_path):
    done = run(tmp_path, {"other.py": ""})
    assert done.marker.status == "failed"
    assert "there is no file" in done.marker.reason


# going on


def test_the_expected_checkpoint_is_found_at_any_depth_proved_and_handed_on(tmp_path):
    leave_run(tmp_path / "in" / "notebooks" / "me" / "perdure-x" / "perdure", 3, 7)
    show = "import os\nprint('inputs', os.environ['PERDURE_INPUTS'], os.environ['PERDURE_ROOT'])\nexit(75)"
    done = run(tmp_path, {"train.py": show}, order(expects=[expected(7)]), inputs=[tmp_path / "in"])
    assert done.code == 0
    assert f"inputs {tmp_path / 'in'} {done.working / 'perdure'}" in done.out
    (resumed,) = done.marker.resumed
    assert (resumed["run"], resumed["step"], resumed["checkpoint"]) == ("digits", 7, "step-000000007")
    assert resumed["digest"].startswith("xxh3-128:")


def test_a_script_that_ends_without_an_error_and_without_its_run_is_not_finished(tmp_path):
    leave_run(tmp_path / "in", 7)
    silent = "try:\n    1 / 0\nexcept Exception as error:\n    print(error)"
    done = run(tmp_path, {"train.py": silent}, order(expects=[expected(7)]), inputs=[tmp_path / "in"])
    assert (done.code, done.marker.status) == (1, "failed")
    assert "did not go on with its run 'digits'" in done.marker.reason


def test_an_input_that_is_mounted_late_is_waited_for(tmp_path):
    (tmp_path / "in").mkdir()
    late = order(expects=[expected(7)], mount_wait_s=60.0)
    process, working = start(tmp_path, {"train.py": "print('ran')\nexit(75)"}, late, inputs=[tmp_path / "in"])
    deadline = time.monotonic() + 30
    while '"found": null' not in _text(working / MARKER) and time.monotonic() < deadline:
        time.sleep(0.05)
    leave_run(tmp_path / "ready", 7)
    os.rename(tmp_path / "ready", tmp_path / "in" / "late")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "ran" in out
    assert Marker.read(working).resumed[0]["step"] == 7


def _text(path):
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("damage", ["missing", "older only", "byte flipped", "cut short"])
def test_nothing_starts_afresh_where_the_expected_checkpoint_is_not_whole(tmp_path, damage):
    folder = leave_run(tmp_path / "in", 3, 7)
    tensors = sorted((folder / "tensors").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    if damage == "missing":
        shutil.rmtree(tmp_path / "in")
    elif damage == "older only":
        shutil.rmtree(folder / "checkpoints" / "step-000000007")
    elif damage == "byte flipped":
        data = bytearray(tensors[-1].read_bytes())
        data[-1] ^= 1
        tensors[-1].write_bytes(data)
    else:
        os.truncate(tensors[-1], 100)
    done = run(tmp_path, {"train.py": "print('ran')"}, order(expects=[expected(7)]), inputs=[tmp_path / "in"])
    assert done.code == 0
    assert "ran" not in done.out.splitlines()
    assert done.marker.status == "refused"
    assert "'digits' was to go on from step-000000007" in done.marker.reason
    assert "nothing was started afresh" in done.marker.reason


@pytest.mark.parametrize("size", [None, 100])
def test_after_a_refusal_an_older_whole_checkpoint_will_do_for_one_that_stays_damaged(tmp_path, size):
    folder = leave_run(tmp_path / "in", 2, 3, 7)
    tensors = sorted((folder / "tensors").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    os.truncate(tensors[-1], 100) if size else flip(tensors[-1], 10)
    main = """
        import sys
        from perdure.checkpoint.store import Store
        from perdure.core.paths import RunPaths
        from perdure.core.settings import Settings
        told = Settings.from_environment()
        store = Store(RunPaths(told.root / "digits"), "digits", inputs=told.inputs)
        store.open({})
        print("found", store.newest().manifest.step)
        sys.exit(75)
        """
    what = order(expects=[expected(7)], older=True)
    done = run(tmp_path, {"train.py": script(main)}, what, inputs=[tmp_path / "in"])
    assert (done.marker.status, done.marker.resumed[0]["step"]) == ("paused", 3)
    assert "found 3" in done.out


def test_a_run_that_begins_afresh_although_its_checkpoint_is_there_is_stopped(tmp_path):
    leave_run(tmp_path / "in", 7)
    report = {"status": "running", "runs": [{"name": "digits", "folder": "/x", "status": "running", "step": 1}]}
    main = f"""
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        open(os.environ["PERDURE_SESSION_REPORT"], "w").write('''{json.dumps(report)}''')
        time.sleep(60)
        """
    done = run(tmp_path, {"train.py": script(main)}, order(expects=[expected(7)]), inputs=[tmp_path / "in"])
    assert (done.code, done.marker.status) == (0, "refused")
    assert done.marker.reason == "the run 'digits' began afresh, though its checkpoint of step 7 is there"


# notebooks


def notebook(*cells):
    code = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": cell}
        for cell in cells
    ]
    return json.dumps({"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})


def test_a_notebook_is_run_and_comes_back_with_its_outputs(tmp_path):
    book = notebook("import helper", "print('cell', helper.X, open('conf.txt').read())")
    done = run(tmp_path, {"book.ipynb": book, "helper.py": "X = 3", "conf.txt": "read"}, order("book.ipynb"))
    assert (done.code, done.marker.status) == (0, "finished")
    assert "cell 3 read" in done.out
    assert "cell 3 read" in (done.working / "book.executed.ipynb").read_text()


def test_the_source_also_runs_in_a_kernel_where_a_clean_end_must_not_raise(tmp_path, monkeypatch):
    from perdure.platforms.notebook import NotebookSession
    from perdure.platforms.source import CARGO_NAME, build_source

    data = pack({"train.py": "print('from the script')"})
    (tmp_path / "kernel.ipynb").write_text(notebook(build_source(order(), data, CARGO_NAME, digest(data)), "2 + 3"))
    monkeypatch.setenv("PERDURE_INPUTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code = NotebookSession(tmp_path / "kernel.ipynb", tmp_path / "out.ipynb", None).run()
    assert code == 0
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    assert "from the script" in str(cells[0]["outputs"])
    assert "5" in str(cells[1]["outputs"])


# a real training


def test_a_training_is_stopped_and_finished_by_the_next_session(tmp_path):
    write_project(tmp_path / "project")
    bundle = make_bundle(tmp_path / "project", "train.py", tmp_path / "bundle.tar.xz")
    cargo = bundle.path.read_bytes()
    (tmp_path / "one").mkdir()
    slowly = order(session=1, window_s=600.0, environment={"EPOCHS": "2", "PAUSE_S": "0.2"})
    process, working = start(tmp_path / "one", {}, slowly, cargo=cargo)
    beats = (json.loads(line[9:]) for line in process.stdout if line.startswith("@perdure "))
    beat = next(each for each in beats if each["runs"] and each["runs"][0]["step"] > 0)
    assert (beat["session"], beat["runs"][0]["name"], beat["runs"][0]["unit"]) == (1, "digits", "epochs")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    marker = Marker.read(working)
    stand = marker.report[0]
    assert (process.returncode, marker.status, stand["status"]) == (0, "paused", "paused")
    assert (stand["folder"], stand["count"]) == ("perdure/digits", 2)
    assert beat["runs"][0]["step"] <= stand["step"] < 90
    (tmp_path / "two").mkdir()
    what = order(expects=[expected(stand["step"])], environment={"EPOCHS": "2"}, window_s=600.0)
    second = run(tmp_path / "two", {}, what, cargo=cargo, inputs=[working])
    assert (second.code, second.marker.status) == (0, "finished")
    assert second.marker.report[0]["resumed_from"] == stand["step"]
    assert second.marker.report[0]["step"] == 90
    assert "perdure/digits/export/digits-step-000000090.safetensors" in second.output
    assert "train.py" not in second.output


# what the image lacks


def test_a_missing_package_is_named_and_pip_is_asked_only_where_there_is_internet(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(needs, "NEEDED", {"json": "json", "no_such_module": "no-such-package"})
    monkeypatch.setattr(
        needs, "_install", lambda packages, folder: asked.append((packages, folder)) or "no network"
    )
    path = tmp_path / "order.json"
    path.write_text(json.dumps(order()))
    assert (
        needs.provide(path)
        == "this image lacks no-such-package, which Perdure needs: with --internet the relay installs it"
    )
    assert not asked
    path.write_text(json.dumps(order(internet=True)))
    assert needs.provide(path).endswith("and pip could not install it: no network")
    assert asked == [(["no-such-package"], tmp_path / "packages")]
    monkeypatch.setattr(needs, "NEEDED", {"json": "json"})
    assert needs.provide(path) == ""


# the marker


def test_a_marker_comes_back_as_it_was_written(tmp_path):
    marker = Marker(RELAY, 3, "slug", "paused", "the window closes", 75, 1.5, 2.5, {"asked": {"name": "t4x2"}}, 1.0)
    marker.write(tmp_path)
    assert Marker.read(tmp_path) == marker
    assert marker.is_over
    assert not Marker(RELAY, 3, "slug", "running").is_over


def test_what_is_no_marker_is_said_to_be_none(tmp_path):
    with pytest.raises(NoCheckpointError):
        Marker.read(tmp_path)
    for text in (
        "{",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 1, "relay": "x", "session": 1, "slug": "", "status": "odd"}',
        '{"format": 1, "relay": "x", "session": Infinity, "slug": "", "status": "paused"}',
        "[" * 100_000,
    ):
        (tmp_path / MARKER).write_text(text)
        with pytest.raises(CorruptError):
            Marker.read(tmp_path)
    (tmp_path / MARKER).write_text('{"format": 2}')
    with pytest.raises(FormatVersionError):
        Marker.read(tmp_path)


def test_times_that_nobody_can_add_up_count_as_not_said(tmp_path):
    marker = Marker(RELAY, 3, "slug", "running", started_s=float("nan"), accelerator_s=float("inf"))
    (tmp_path / MARKER).write_text(json.dumps({"format": 1, **vars(marker), "ended_s": 1e300}))
    found = Marker.read(tmp_path)
    assert (found.started_s, found.ended_s, found.accelerator_s) == (0.0, None, 0.0)
