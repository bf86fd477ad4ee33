"""What a relay has come to is brought whole, proven, and put in its place at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from left_outputs import RELAY, FolderPlatform, leave_marker, leave_run

from checkpoint.snapshots import flip
from perdure.checkpoint.verify import verify
from perdure.core.digests import digest
from perdure.core.errors import CorruptError, DiskFullError, NotThereError, RelayError, TransientPlatformError
from perdure.platforms.protocol import Handle
from perdure.relay.fetching import fetch_run
from perdure.relay.records import Relay, RelayOrder, RunSource, RunStand, SessionRecord, Standing


def relay_of(sources, outcomes) -> Relay:
    """A relay whose runs are held by sessions: ``{run: (step, session)}``, with the outcome of each session."""
    order = RelayOrder("digits", "train.py", Path("p"), "local", "none", 60.0, Path("out"), Path("b"), "xxh3-128:0")
    sessions = tuple(
        SessionRecord(n, f"s-{n}", "collected", "none", 60.0, 0.0, Handle("local", str(n)), outcome=outcome)
        for n, outcome in enumerate(outcomes, 1)
    )
    runs = tuple(
        RunSource(RunStand(name, "finished", step, 0, f"step-{step:09d}"), session)
        for name, (step, session) in sources.items()
    )
    return Relay(RELAY, order, "active", "", 1, 0.0, sessions=sessions, standing=Standing(runs=runs))


def leave_export(folder: Path, name: str = "digits-step-200.safetensors", data: bytes = b"weights" * 100) -> Path:
    (folder / "export").mkdir(parents=True, exist_ok=True)
    model = folder / "export" / name
    model.write_bytes(data)
    (folder / "export/torch").mkdir(exist_ok=True)
    (folder / "export/torch/config.json").write_text("{}")
    files = [
        {"file": name, "format": "safetensors", "digest": digest(model), "companions": []},
        {"file": "torch", "format": "folder", "digest": digest(folder / "export/torch"), "companions": []},
    ]
    (folder / "export/model-card.json").write_text(json.dumps({"format_version": 1, "models": [{"files": files}]}))
    return model


@pytest.fixture
def working(tmp_path):
    folder = tmp_path / "left"
    leave_marker(folder, "finished")
    leave_export(leave_run(folder, [100, 200], status="finished"))
    (folder / "perdure/digits/.session.json.77.tmp").write_text("half")
    (folder / "submission.csv").write_text("id,label\n1,7\n")
    return folder


@pytest.fixture
def platform(working):
    return FolderPlatform(working, outputs={"1": working})


@pytest.fixture
def relay():
    return relay_of({"digits": (200, 1)}, ["finished"])


def files_of(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_the_run_its_models_and_other_files_come_and_are_proven(platform, working, relay, tmp_path):
    seen = []
    found = fetch_run(platform, relay, tmp_path / "out", lambda there, total: seen.append((there, total)))
    out = tmp_path / "out"
    left = files_of(working) - {
        "perdure-session.json",
        "perdure/digits/lock",
        "perdure/digits/.session.json.77.tmp",
    }
    assert files_of(out) == left | {"perdure-relay.json"}
    assert all((out / name).read_bytes() == (working / name).read_bytes() for name in left)
    assert [p.name for p in found.checkpoints] == ["step-000000200", "step-000000100"]
    assert {p.name for p in found.models} == {"digits-step-200.safetensors", "torch"}
    assert found.others == (out / "submission.csv",)
    assert found.size_bytes == sum((working / name).stat().st_size for name in left)
    assert not verify(found.checkpoints[0]).problems
    assert seen[-1][1] == found.size_bytes
    assert max(there for there, _ in seen) <= found.size_bytes
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


def test_what_is_there_already_is_not_brought_again(platform, relay, tmp_path):
    first = fetch_run(platform, relay, tmp_path / "out")
    platform.fetched.clear()
    assert fetch_run(platform, relay, tmp_path / "out") == first
    assert fetch_run(platform, relay, tmp_path / "out", tensors=False) == first
    assert platform.fetched == []


def test_without_tensors_no_checkpoint_is_pretended(platform, relay, tmp_path):
    found = fetch_run(platform, relay, tmp_path / "out", tensors=False)
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert not (tmp_path / "out/perdure/digits/tensors").exists()
    assert (found.checkpoints, len(found.models)) == ((), 2)
    assert len(fetch_run(platform, relay, tmp_path / "out").checkpoints) == 2  # and now with them


def test_nothing_looks_finished_before_it_is(platform, relay, tmp_path):
    platform.fails = {"perdure/digits/export/digits-step-200.safetensors": TransientPlatformError("reset")}
    with pytest.raises(TransientPlatformError):
        fetch_run(platform, relay, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = list(platform.fetched)
    platform.fails, platform.fetched = {}, []
    fetch_run(platform, relay, tmp_path / "out")
    came = [name for name in before if name != "perdure/digits/export/digits-step-200.safetensors"]
    assert not set(came) & set(platform.fetched)  # it went on where it was


def _damage(names, times):
    """``fetch`` that damages files so many times."""
    left = dict.fromkeys(names, times)

    def alter(platform):
        real = platform.fetch

        def fetch(handle, wanted, target, progress=None):
            paths = real(handle, wanted, target, progress)
            for name in wanted:
                if left.get(name, 0) > 0:
                    left[name] -= 1
                    flip(target / name, (target / name).stat().st_size // 2)
            return paths

        platform.fetch = fetch

    return alter


def _tensors(working, step, other):
    def named(at):
        path = working / f"perdure/digits/checkpoints/step-{at:09d}/manifest.json"
        return set(json.loads(path.read_text())["files"])

    return ["perdure/digits/" + name for name in named(step) - named(other)]


def test_a_file_damaged_on_its_way_is_brought_once_more(platform, working, relay, tmp_path):
    model = "perdure/digits/export/digits-step-200.safetensors"
    manifest = "perdure/digits/checkpoints/step-000000200/manifest.json"
    _damage([*_tensors(working, 200, 100), model, manifest], 1)(platform)
    found = fetch_run(platform, relay, tmp_path / "out")
    assert not verify(found.checkpoints[0]).problems
    assert found.remarks == ()
    assert digest(tmp_path / "out" / model) == digest(working / model)


@pytest.mark.parametrize("what", ["tensors", "manifest", "model", "folder"])
def test_a_file_that_stays_damaged_is_refused(platform, working, relay, tmp_path, what):
    names = {
        "tensors": _tensors(working, 200, 100),
        "manifest": ["perdure/digits/checkpoints/step-000000200/manifest.json"],
        "model": ["perdure/digits/export/digits-step-200.safetensors"],
        "folder": ["perdure/digits/export/torch/config.json"],
    }[what]
    _damage(names, 9)(platform)
    with pytest.raises(CorruptError, match="not what was written|not whole"):
        fetch_run(platform, relay, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_comes_short_is_not_taken_for_whole(platform, working, relay, tmp_path):
    real, short = platform.fetch, True

    def fetch(handle, wanted, target, progress=None):
        paths = real(handle, wanted, target, progress)
        if short and "submission.csv" in wanted:
            os.truncate(target / "submission.csv", 5)
        return paths

    platform.fetch = fetch
    with pytest.raises(CorruptError, match="submission.csv is listed and does not come whole"):
        fetch_run(platform, relay, tmp_path / "out")
    short = False
    fetch_run(platform, relay, tmp_path / "out")
    assert (tmp_path / "out/submission.csv").read_bytes() == (working / "submission.csv").read_bytes()


def test_an_older_checkpoint_that_stays_damaged_is_left_out_and_named(relay, tmp_path):
    working = tmp_path / "left"
    leave_run(working, [100, 200], status="finished", frozen=0)  # nothing that they could share
    platform = FolderPlatform(working, outputs={"1": working})
    _damage(_tensors(working, 100, 200), 9)(platform)
    found = fetch_run(platform, relay, tmp_path / "out")
    assert [p.name for p in found.checkpoints] == ["step-000000200"]
    assert "step-000000100" in found.remarks[0]
    assert not list((tmp_path / "out").rglob("step-000000100"))


def test_a_model_that_its_card_names_and_the_output_lacks_is_missed(platform, relay, tmp_path):
    platform.alter = lambda files: [file for file in files if not file.name.endswith("-200.safetensors")]
    with pytest.raises(CorruptError, match=r"digits-step-200.safetensors is named by the card"):
        fetch_run(platform, relay, tmp_path / "out")


def test_runs_come_each_from_the_session_that_holds_it(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    leave_export(leave_run(first, [100], name="early", status="finished"))
    leave_run(first, [50], name="late")
    leave_run(second, [], name="early", status="finished")  # opened again, and nothing left to do
    leave_run(second, [80, 120], name="late", status="finished")
    (first / "notes.txt").write_text("old")
    (second / "notes.txt").write_text("new")
    for number, folder in enumerate((first, second), 1):
        leave_marker(folder, "paused", number=number)
    platform = FolderPlatform(second, outputs={"1": first, "2": second})
    relay = relay_of({"early": (100, 1), "late": (120, 2)}, ["paused", "finished"])
    found = fetch_run(platform, relay, tmp_path / "out")
    assert {p.relative_to(tmp_path / "out/perdure").as_posix() for p in found.checkpoints} == {
        "early/checkpoints/step-000000100",
        "late/checkpoints/step-000000120",
        "late/checkpoints/step-000000080",
    }
    assert (tmp_path / "out/notes.txt").read_text() == "new"
    assert (tmp_path / "out/perdure/early/export/digits-step-200.safetensors").is_file()


def test_a_model_exported_by_a_later_session_than_the_last_checkpoint_comes_too(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    leave_run(first, [100], status="finished")  # killed before its export
    leave_export(leave_run(second, [], status="finished"))
    platform = FolderPlatform(second, outputs={"1": first, "2": second})
    found = fetch_run(platform, relay_of({"digits": (100, 1)}, ["killed", "finished"]), tmp_path / "out")
    assert len(found.checkpoints) == 1
    assert len(found.models) == 2


def test_what_the_script_left_in_any_session_comes_the_newest_of_each_name(tmp_path):
    folders = [tmp_path / str(number) for number in range(1, 5)]
    for number, folder in enumerate(folders, 1):
        leave_run(folder, [100 * number])
        (folder / f"night-{number}.png").write_text("plot")
        (folder / "log.csv").write_text(str(number))
    (folders[0] / "table").write_text("a file at first")
    (folders[3] / "table").mkdir()
    (folders[3] / "table" / "a.csv").write_text("then a folder")
    platform = FolderPlatform(folders[3], outputs={str(n): folder for n, folder in enumerate(folders, 1)})
    real = platform.files

    def files(handle):
        if handle.ref == "2":
            raise NotThereError("deleted")
        return real(handle)

    platform.files = files
    relay = relay_of({"digits": (300, 3)}, ["paused", "paused", "paused", "failed"])
    found = fetch_run(platform, relay, tmp_path / "out")
    left = {name for name in files_of(tmp_path / "out") if not name.startswith("perdure")}
    assert left == {"night-1.png", "night-3.png", "night-4.png", "log.csv", "table/a.csv"}
    assert (tmp_path / "out/log.csv").read_text() == "4"
    assert [path.name for path in found.checkpoints] == ["step-000000300"]
    assert "session 2" in " ".join(found.remarks)


def test_odd_names_come_and_those_that_cannot_are_named(platform, working, relay, tmp_path):
    for folder in (".hydra", "__pycache__", ".ipynb_checkpoints"):
        (working / folder).mkdir()
        (working / folder / "config.yaml").write_text("x")
    odd = ["12:30.txt", "new\nline", " a b ", "x.part"]
    for name in [*odd, "back\\slash", "caf\udce9.txt"]:
        (working / name).write_text("x")
    found = fetch_run(platform, relay, tmp_path / "out")
    others = {path.relative_to(tmp_path / "out").as_posix() for path in found.others}
    assert others == {*odd, "submission.csv", ".hydra/config.yaml"}
    assert [remark.partition(" is left")[0] for remark in found.remarks] == [r"'back\\slash'", r"'caf\udce9.txt'"]
    assert fetch_run(platform, relay, tmp_path / "out") == found


def test_what_the_user_has_removed_is_brought_again(platform, relay, tmp_path):
    fetch_run(platform, relay, tmp_path / "out")
    (tmp_path / "out/submission.csv").unlink()
    fetch_run(platform, relay, tmp_path / "out")
    assert (tmp_path / "out/submission.csv").is_file()


def test_a_newer_fetch_replaces_an_older_one(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    leave_run(first, [100])
    leave_run(second, [300], status="finished")
    platform = FolderPlatform(second, outputs={"1": first, "2": second})
    fetch_run(platform, relay_of({"digits": (100, 1)}, ["paused"]), tmp_path / "out")
    fetch_run(platform, relay_of({"digits": (300, 2)}, ["paused", "finished"]), tmp_path / "out")
    assert [p.name for p in (tmp_path / "out/perdure/digits/checkpoints").iterdir()] == ["step-000000300"]


@pytest.mark.parametrize("name", ["notes.txt", "perdure/digits/mine.txt"])
def test_files_of_the_user_are_never_replaced(platform, relay, tmp_path, name):
    if name != "notes.txt":
        fetch_run(platform, relay, tmp_path / "out", tensors=False)
    (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(RelayError, match="was not fetched for this relay"):
        fetch_run(platform, relay, tmp_path / "out")
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_an_empty_folder_is_no_obstacle(platform, relay, tmp_path):
    (tmp_path / "out").mkdir()
    assert fetch_run(platform, relay, tmp_path / "out").checkpoints


def test_a_full_disk_is_told_before_anything_large_comes(platform, relay, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr("perdure.relay.placing.shutil.disk_usage", lambda _: usage)
    with pytest.raises(DiskFullError):
        fetch_run(platform, relay, tmp_path / "out")
    assert not any("tensors" in name for name in platform.fetched)


def test_a_relay_that_has_left_nothing_says_so(platform, tmp_path):
    with pytest.raises(RelayError, match="left anything yet"):
        fetch_run(platform, relay_of({}, ["no-output"]), tmp_path / "out")


SLOW = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from left_outputs import FolderPlatform
from test_fetching import relay_of
from perdure.relay.fetching import fetch_run
left, out = Path(sys.argv[1]), Path(sys.argv[2])
platform = FolderPlatform(left, outputs={"1": left})
real = platform.fetch
def fetch(handle, names, folder, progress=None):
    for name in names:
        real(handle, [name], folder, progress)
        print(name, flush=True)
        time.sleep(0.05)
platform.fetch = fetch
fetch_run(platform, relay_of({"digits": (200, 1)}, ["finished"]), out)
"""


def test_two_processes_do_not_fill_one_folder(platform, working, relay, tmp_path):
    here = Path(__file__).parent
    command = [sys.executable, "-c", SLOW.replace("0.05", "60"), str(working), str(tmp_path / "out"), str(here)]
    child = subprocess.Popen([*command, str(here.parent)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(TransientPlatformError, match=f"another process .pid {child.pid}. fetches into"):
        fetch_run(platform, relay, tmp_path / "out")
    child.kill()
    child.wait()
    child.stdout.close()
    assert fetch_run(platform, relay, tmp_path / "out").checkpoints


def test_a_fetch_killed_anywhere_is_gone_on_with(platform, working, relay, tmp_path):
    out = tmp_path / "out"
    here = Path(__file__).parent
    script = tmp_path / "slow.py"
    script.write_text(textwrap.dedent(SLOW))
    command = [sys.executable, str(script), str(working), str(out), str(here), str(here.parent)]
    for lines in (1, 3, 3):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert child.stdout is not None
        for _ in range(lines):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert not out.exists()
    found = fetch_run(platform, relay, out)
    assert [verify(folder).problems for folder in found.checkpoints] == [(), ()]
