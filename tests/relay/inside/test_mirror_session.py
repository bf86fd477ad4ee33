"""Checkpoints that leave a session while it runs: only whole ones, proven to be there, never at training's cost."""

from __future__ import annotations

import json
import shutil
import threading
import time
from dataclasses import replace

import pytest

from perdure.checkpoint.search import find_checkpoints
from perdure.checkpoint.verify import verify
from perdure.core.errors import CredentialsError, PlatformError, TransientPlatformError
from perdure.core.paths import RunPaths
from perdure.relay.inside import mirror_kaggle
from perdure.relay.inside.mirror import Mirror, _hold, bring_from_mirror, without_password
from perdure.relay.inside.mirror_files import FilesTarget
from perdure.relay.inside.mirror_kaggle import KaggleTarget
from perdure.relay.inside.order import Expected, read_order
from perdure.testing.kaggle import Emulator, Rules
from relay.inside.hosted import RELAY, expected, leave_run, order, run


@pytest.fixture
def read(tmp_path):
    def read_with(**more):
        path = tmp_path / "order.json"
        path.write_text(json.dumps(order(**more)))
        return read_order(path)

    return read_with


def hold(folder, step):
    return _hold(folder / "checkpoints" / f"step-{step:09d}")


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def wait_for(what, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


# below any address


def test_a_mirror_holds_the_newest_checkpoint_of_each_run_and_nothing_older(tmp_path):
    target = FilesTarget(f"file://{tmp_path}/mirror", RELAY)
    target.probe()
    folder, other = leave_run(tmp_path, 3, 7), leave_run(tmp_path, 2, name="other")
    target.put([hold(folder, 3), hold(other, 2)])
    target.put([hold(folder, 7), hold(other, 2)])
    there = tmp_path / "mirror" / RELAY
    found = find_checkpoints(there)
    assert [(item.manifest.run, item.manifest.step) for item in found] == [("digits", 7), ("other", 2)]
    assert [verify(item.folder).problems for item in found] == [(), ()]
    needed = {file for item in found for file in item.manifest.files}
    assert {f"tensors/{path.name}" for path in there.rglob("*.safetensors")} == needed


def test_what_is_there_already_is_not_sent_again(tmp_path):
    target = FilesTarget(f"file://{tmp_path}/mirror", RELAY)
    folder = leave_run(tmp_path, 3, 7)
    target.put([hold(folder, 3)])
    before = {path.name: path.stat().st_ino for path in (tmp_path / "mirror").rglob("*.safetensors")}
    written = []
    write = target._write
    target._write = lambda name, parts: (written.append(name), write(name, parts))
    target.put([hold(folder, 7)])
    shared = {file for file in hold(folder, 7).about.files if file.rpartition("/")[2] in before}
    assert shared  # the frozen part
    assert not [name for name in written if name.removeprefix("digits/") in shared]


def test_a_checkpoint_that_is_pruned_while_it_is_sent_arrives_whole(tmp_path):
    target = FilesTarget(f"file://{tmp_path}/mirror", RELAY)
    folder = leave_run(tmp_path, 3)
    kept = hold(folder, 3)
    shutil.rmtree(folder)
    target.put([kept])
    (found,) = find_checkpoints(tmp_path / "mirror")
    assert verify(found.folder).problems == ()


def test_what_does_not_arrive_as_sent_is_no_success_and_the_older_one_stays(tmp_path):
    target = FilesTarget(f"file://{tmp_path}/mirror", RELAY)
    folder = leave_run(tmp_path, 3, 7)
    target.put([hold(folder, 3)])
    write = target._write
    target._write = lambda name, parts: write(name, [b"".join(parts)[:-1]] if "tensors" in name else parts)
    with pytest.raises(TransientPlatformError, match="does not show digits/tensors/.* as it was sent"):
        target.put([hold(folder, 7)])
    whole = [item for item in find_checkpoints(tmp_path / "mirror") if not verify(item.folder).problems]
    assert [item.manifest.step for item in whole] == [3]


def test_a_session_can_begin_from_the_mirror_where_no_input_holds_it(tmp_path):
    url = f"file://{tmp_path}/mirror"
    FilesTarget(url, RELAY).put([hold(leave_run(tmp_path / "earlier", 7), 7)])
    show = "import os\nprint('inputs', os.environ['PERDURE_INPUTS'])\nexit(75)"
    what = order(expects=[expected(7)], mirror={"to": url, "every_s": 60.0})
    done = run(tmp_path, {"train.py": show}, what)
    assert (done.code, done.marker.status) == (0, "paused")
    assert done.marker.resumed[0]["step"] == 7
    assert "/mirrored" in done.out


def test_a_mirror_that_lacks_the_checkpoint_or_cannot_be_read_leads_to_no_fresh_start(tmp_path, read):
    url = f"file://{tmp_path}/mirror"
    FilesTarget(url, RELAY).put([hold(leave_run(tmp_path / "earlier", 3), 3)])
    lacking = [Expected("digits", 7, "step-000000007")]
    folder = tmp_path / "brought"
    assert bring_from_mirror(read(mirror={"to": url}), lacking, folder) == [folder]
    assert not folder.exists()
    assert bring_from_mirror(read(mirror={"to": "nosuch://x"}), lacking, folder) == []
    assert bring_from_mirror(read(mirror={"to": "kaggle"}), lacking, folder) == []
    what = order(expects=[expected(7)], mirror={"to": "nosuch://x", "every_s": 60.0})
    done = run(tmp_path, {"train.py": "print('ran')"}, what)
    assert done.marker.status == "refused"


def test_addresses_are_shown_without_what_is_secret_in_them():
    assert without_password("sftp://me:secret@host/a/b?token=x") == "sftp://host/a/b"
    assert without_password("kaggle") == "kaggle"


# in a thread beside the training


class Scripted:
    """A target that does what it is told."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.put_steps = []

    def probe(self):
        return "nowhere"

    def put(self, kept):
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        self.put_steps.append([(item.about.run, item.about.step) for item in kept])

    def bring(self, expects, folder):
        pass


@pytest.fixture
def mirrored(tmp_path, read):
    """Starts a mirror of the runs below a folder; all notes come back."""
    started = []

    def start(target, resumed=(), **more):
        notes = []
        what = read(mirror={"to": "s3://bucket", "every_s": 0.05})
        mirror = Mirror(what, tmp_path / "root", resumed, notes.append, target, **more)
        mirror.start()
        started.append(mirror)
        return notes

    yield start
    for mirror in started:
        mirror.finish()


def test_only_what_is_new_is_sent_and_the_marker_says_what_is_held(tmp_path, mirrored):
    earlier = leave_run(tmp_path / "earlier", 5, name="fold-1")
    target = Scripted()
    notes = mirrored(target, [earlier / "checkpoints" / "step-000000005"])
    wait_for(lambda: target.put_steps)
    leave_run(tmp_path / "root", 3, 7)
    wait_for(lambda: target.put_steps[-1] == [("digits", 7), ("fold-1", 5)])
    time.sleep(0.3)  # several looks at the same
    assert len(target.put_steps) <= 3  # it may have been seen between its two saves
    assert notes[0]["state"] == "ready"
    wait_for(lambda: len(notes[-1]["held"]) == 2)
    assert notes[-1]["held"][0] == {"run": "digits", "step": 7, "epoch": 0, "checkpoint": "step-000000007"}


def test_a_failure_is_said_once_tried_again_and_costs_nothing(tmp_path, mirrored, capfd):
    leave_run(tmp_path / "root", 7)
    target = Scripted(OSError("no route"), OSError("no route"), PlatformError("quota of the data set"))
    notes = mirrored(target)
    wait_for(lambda: target.put_steps)
    said = capfd.readouterr().err
    assert said.count("a checkpoint could not be mirrored: OSError: no route; training goes on") == 1
    assert said.count("quota of the data set") == 1
    assert [note["state"] for note in notes[:4]] == ["ready", "failing", "failing", "failing"]
    wait_for(lambda: notes[-1]["state"] == "ready")
    assert notes[-1]["reason"] == ""


def test_a_mirror_that_cannot_be_used_is_said_at_once(mirrored, capfd):
    target = Scripted()
    target.probe = lambda: (_ for _ in ()).throw(CredentialsError("this session has no token for Kaggle"))
    notes = mirrored(target)
    wait_for(lambda: notes)
    assert notes == [
        {"to": "s3://bucket", "state": "off", "reason": "this session has no token for Kaggle", "held": []}
    ]
    assert "checkpoints cannot be mirrored: this session has no token for Kaggle" in capfd.readouterr().err


def test_nothing_is_held_where_the_next_save_needs_the_room(tmp_path, mirrored):
    leave_run(tmp_path / "root", 7)
    target = Scripted()
    notes = mirrored(target, disk_bytes=10_000)
    wait_for(lambda: notes[-1]["state"] == "failing" if notes else False)
    assert "are too little to hold" in notes[-1]["reason"]
    assert not target.put_steps


def test_a_damaged_checkpoint_is_never_sent(tmp_path, mirrored):
    folder = leave_run(tmp_path / "root", 7)
    for path in (folder / "tensors").iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    target = Scripted()
    notes = mirrored(target)
    wait_for(lambda: notes[-1]["state"] == "failing" if notes else False)
    assert not target.put_steps
    assert "is damaged" in notes[-1]["reason"]


def test_a_target_that_hangs_does_not_hold_the_end_up(tmp_path, read):
    leave_run(tmp_path / "root", 7)
    forever, begun = threading.Event(), threading.Event()
    target = Scripted()
    target.put = lambda kept: (begun.set(), forever.wait())
    what = replace(read(mirror={"to": "s3://bucket", "every_s": 0.05}), margin_s=0.2)
    mirror = Mirror(what, tmp_path / "root", [], lambda _: None, target)
    mirror.start()
    assert begun.wait(30)
    mirror.finish()
    assert mirror._thread.is_alive()
    forever.set()


# in a private data set, through the real client


@pytest.fixture
def emulator(tmp_path, monkeypatch):
    with Emulator(tmp_path / "kaggle", Rules(dataset_ready_s=0.3)) as emulator:
        for name, value in {
            **emulator.environment(),
            "HOME": str(tmp_path),
            "KAGGLE_CONFIG_DIR": str(tmp_path),
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KAGGLEHUB_VERBOSITY", "error")
        monkeypatch.setenv("TQDM_DISABLE", "1")
        monkeypatch.setattr(mirror_kaggle, "_FIRST_POLL_S", 0.05)
        yield emulator


def version(emulator):
    """The newest version of the data set, as a session would see it."""
    (dataset,) = emulator.store.world.datasets.values()
    return dataset, emulator.store.dataset_folder(dataset, dataset.versions[-1].number)


def test_a_private_data_set_holds_the_newest_version_whole(tmp_path, emulator):
    target = KaggleTarget(RELAY, ready_most_s=30.0)
    where = target.probe()
    assert where == f"the private data set emulated-user/perdure-{RELAY}-mirror"
    folder, other = leave_run(tmp_path, 3, 7), leave_run(tmp_path, 2, name="other")
    target.put([hold(folder, 3), hold(other, 2)])
    kept = [hold(folder, 7), hold(other, 2)]
    shutil.rmtree(folder / "tensors")  # pruned by the training meanwhile
    target.put(kept)  # waits until the one before is processed: Kaggle would refuse
    dataset, there = version(emulator)
    assert dataset.private
    assert len(dataset.versions) == 1  # older ones were deleted
    found = find_checkpoints(there)
    assert [(item.manifest.run, item.manifest.step) for item in found] == [("digits", 7), ("other", 2)]
    assert [verify(item.folder).problems for item in found] == [(), ()]
    assert json.loads((there / "perdure-mirror.json").read_text())["runs"][0]["step"] == 7
    assert RunPaths(there / "digits").run_json.exists()


def test_a_later_session_goes_on_with_the_data_set_of_the_first(tmp_path, emulator):
    folder = leave_run(tmp_path, 3, 7)
    first = KaggleTarget(RELAY, ready_most_s=30.0)
    first.probe()
    first.put([hold(folder, 3)])
    second = KaggleTarget(RELAY, ready_most_s=30.0)
    second.probe()
    assert [item.manifest.step for item in find_checkpoints(version(emulator)[1])] == [
        3
    ]  # probing takes nothing away
    second.put([hold(folder, 7)])
    assert [item.manifest.step for item in find_checkpoints(version(emulator)[1])] == [7]


def test_a_data_set_that_is_never_ready_is_a_failure(tmp_path, emulator):
    target = KaggleTarget(RELAY, ready_most_s=0.5)
    emulator.switch(dataset_stuck=True)
    target.probe()
    with pytest.raises(TransientPlatformError, match="is not ready: blobs_received"):
        target.put([hold(leave_run(tmp_path, 3), 3)])


def test_a_session_without_a_token_says_so(tmp_path, emulator, monkeypatch):
    for name in ("KAGGLE_USERNAME", "KAGGLE_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("kagglehub.config._kaggle_credentials", None)
    monkeypatch.setattr("kagglehub.config.get_kaggle_credentials", lambda: None)
    with pytest.raises(CredentialsError, match="no token"):
        KaggleTarget(RELAY).probe()
