"""Damaged, missing, unreadable and newer checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from snapshots import assert_holds, assert_no_debris, flip, make_store, open_store, saved_run, snapshot, tree

from perdure.checkpoint.debris import drop_checkpoint
from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.reader import check_sizes
from perdure.checkpoint.store import Keep
from perdure.checkpoint.verify import verify
from perdure.checkpoint.writer import publish
from perdure.core.errors import CorruptError, FormatVersionError, NoCheckpointError, UnreadableError


@pytest.fixture
def folder(tmp_path) -> Path:
    saved_run(tmp_path / "digits", [100, 200, 300])
    return tmp_path / "digits"


def newest_files(folder: Path) -> list[str]:
    """The manifest of the newest checkpoint and the tensor file that only it uses."""
    found = make_store(folder).list()
    only = set(found[0].manifest.files) - set(found[1].manifest.files)
    return [f"checkpoints/{found[0].folder.name}/manifest.json", *only]


def shared_file(folder: Path) -> str:
    found = make_store(folder).list()
    (file,) = set(found[0].manifest.files) & set(found[1].manifest.files)
    return file


def assert_falls_back(folder: Path, named: str) -> None:
    """verify names the file; newest() gives the older one, sets the bad one aside, and the run goes on."""
    bad = folder / "checkpoints" / "step-000000300"
    problems = verify(bad).problems
    assert problems
    assert any(Path(named).name in problem for problem in problems)
    with pytest.raises(CorruptError) as caught:
        open_checkpoint(bad)
    assert any(Path(named).name in problem for problem in caught.value.problems)
    store = open_store(folder)
    assert_holds(store.newest(), snapshot(200))
    assert len(store.reports) == 1
    assert "step-000000300" in store.reports[0]
    assert "quarantine" in store.reports[0]
    assert not bad.exists()
    assert (folder / "quarantine" / "step-000000300").is_dir()
    store.save(snapshot(300))
    assert_holds(store.newest(), snapshot(300))
    store.close()
    shutil.rmtree(folder / "quarantine")
    assert_no_debris(folder)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_torn_file_is_set_aside_and_the_older_checkpoint_is_used(folder, which, share):
    path = folder / newest_files(folder)[which]
    os.truncate(path, int(path.stat().st_size * share))
    assert_falls_back(folder, path.name)


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_file_is_set_aside_and_the_older_checkpoint_is_used(folder, which):
    path = folder / newest_files(folder)[which]
    path.unlink()
    if which:
        assert_falls_back(folder, path.name)
    else:
        assert open_store(folder).newest().manifest.step == 200  # without a manifest it never was one


def test_a_file_with_something_appended_is_set_aside(folder):
    path = folder / newest_files(folder)[1]
    path.write_bytes(path.read_bytes() + b"x")
    assert_falls_back(folder, path.name)


@pytest.mark.parametrize("which", [0, 1])
def test_one_flipped_byte_anywhere_is_found(folder, which, tmp_path):
    name = newest_files(folder)[which]
    original = tmp_path / "original"
    shutil.copytree(folder, original)
    size = (folder / name).stat().st_size
    for place in [*range(0, min(size, 400), 7), *range(0, size, max(1, size // 60)), size - 1]:
        bits = 0x01 if place % 2 else 0xFF
        flip(folder / name, place, bits)
        problems = verify(folder / "checkpoints" / "step-000000300").problems
        assert any(Path(name).name in problem for problem in problems), place
        assert make_store(folder).newest().manifest.step == 200, place
        flip(folder / name, place, bits)
    flip(folder / name, size // 2)
    assert_falls_back(folder, name)


def test_verify_names_the_entry(folder):
    name = newest_files(folder)[1]
    flip(folder / name, -1)
    verdict = verify(folder / "checkpoints" / "step-000000300")
    assert len(verdict.problems) == 1
    assert "entry model/head" in verdict.problems[0]
    assert (verdict.entries, verdict.bytes) == (3, 65_000)


def test_verify_finds_damage_in_what_only_older_checkpoints_use(folder):
    flip(folder / shared_file(folder), -1)  # the head of step 100, long pruned
    verdict = verify(folder / "checkpoints" / "step-000000300" / "manifest.json")
    assert "not used by this checkpoint" in verdict.problems[0]
    assert_holds(make_store(folder).newest(), snapshot(300))


def test_a_whole_checkpoint_has_no_problems(folder):
    assert verify(folder / "checkpoints" / "step-000000300").problems == ()
    with pytest.raises(NoCheckpointError):
        verify(folder)


def test_none_whole_is_an_error_and_nothing_is_moved(folder):
    flip(folder / shared_file(folder), 400)
    before = tree(folder)
    store = open_store(folder)
    with pytest.raises(CorruptError) as caught:
        store.newest()
    assert len(caught.value.problems) == 2
    assert "step-000000300" in caught.value.problems[0]
    assert "entry model/backbone" in caught.value.problems[0]
    assert caught.value.hint
    store.close()
    assert tree(folder) == before | {"lock": tree(folder)["lock"]}


def test_a_run_whose_manifests_are_all_torn_keeps_its_tensor_files(folder):
    for manifest in folder.glob("checkpoints/*/manifest.json"):
        os.truncate(manifest, 100)
    before = sorted(tree(folder))
    store = open_store(folder)
    with pytest.raises(CorruptError):
        store.newest()
    assert store.peek() is None
    assert all(item.problem for item in store.list())
    store.close()
    assert sorted(tree(folder)) == before


def change_version(folder: Path, step: int) -> None:
    path = folder / "checkpoints" / f"step-{step:09d}" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))


def test_only_a_newer_format_is_an_error_that_says_so(folder):
    for step in (200, 300):
        change_version(folder, step)
    store = open_store(folder)
    with pytest.raises(FormatVersionError) as caught:
        store.newest()
    assert (caught.value.found, caught.value.supported) == (2, 1)
    assert "newer" in caught.value.hint
    assert "version 2" in verify(folder / "checkpoints" / "step-000000300").problems[0]


def test_beside_a_newer_format_the_older_checkpoint_is_used_and_the_newer_stays(folder):
    change_version(folder, 300)
    kept = ["checkpoints/step-000000300/manifest.json"] + [f for f in tree(folder) if f.startswith("tensors/")]
    store = open_store(folder)
    assert_holds(store.newest(), snapshot(200))
    assert "skipped" in store.reports[0]
    for step in (210, 220, 230):
        store.save(snapshot(step))
    assert set(kept) <= set(tree(folder))


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "checkpoints").write_text("not a folder")
    for look in (make_store(folder).newest, make_store(folder).peek, make_store(folder).list):
        with pytest.raises(UnreadableError):
            look()
    with pytest.raises(UnreadableError):
        open_store(folder)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_what_we_may_not_read_is_not_an_empty_folder(folder, tmp_path):
    tmp_path.chmod(0o755)
    (folder / "checkpoints").chmod(0o700)

    def look() -> None:
        os.seteuid(65534)
        try:
            with pytest.raises(UnreadableError):
                make_store(folder).newest()
            with pytest.raises(UnreadableError):
                make_store(tmp_path / "other", inputs=[folder]).newest()
            with pytest.raises(UnreadableError):
                open_store(tmp_path / "not" / "mine")
        finally:
            os.seteuid(0)

    parents = [p for p in tmp_path.parents if p.stat().st_mode & 0o005 != 0o005]
    modes = [p.stat().st_mode for p in parents]
    for parent in parents:
        parent.chmod(0o755)
    try:
        look()
    finally:
        for parent, mode in zip(parents, modes, strict=True):
            parent.chmod(mode)


def test_an_unreadable_newest_one_is_skipped_and_not_moved(folder):
    manifest = folder / newest_files(folder)[0]
    manifest.unlink()
    manifest.mkdir()  # reading a folder fails with EISDIR, for root too
    store = open_store(folder)
    assert_holds(store.newest(), snapshot(200))
    assert "skipped" in store.reports[0]
    assert manifest.is_dir()


def test_reading_without_open_changes_nothing(folder):
    flip(folder / newest_files(folder)[1], -1)
    before = tree(folder)
    store = make_store(folder)
    assert_holds(store.newest(), snapshot(200))
    assert "skipped" in store.reports[0]
    assert store.peek().step == 300
    assert tree(folder) == before


def test_a_manifest_from_a_stranger_cannot_point_out_of_the_run_folder(folder):
    import xxhash

    path = folder / newest_files(folder)[0]
    for evil in ("../../etc/passwd", "/etc/passwd", "tensors/../lock"):
        fields = json.loads(path.read_text())
        fields.pop("digest")
        fields["entries"][0]["file"] = evil
        body = json.dumps(fields).encode()[:-1]
        path.write_bytes(body + b',\n"digest": "%s"\n}\n' % xxhash.xxh3_128_hexdigest(body).encode())
        with pytest.raises(CorruptError):
            open_checkpoint(path)


def test_a_run_json_that_was_cut_short_is_written_anew_with_the_same_identity(folder):
    identity = json.loads((folder / "run.json").read_text())["run_id"]
    os.truncate(folder / "run.json", 10)
    store = open_store(folder)
    assert store.run_id == identity
    assert json.loads((folder / "run.json").read_text())["run_id"] == identity


def test_at_most_two_bad_ones_are_kept_for_inspection(tmp_path):
    folder = tmp_path / "digits"
    for step in range(100, 800, 100):
        store = open_store(folder, keep=Keep(last=3))
        store.newest()
        store.save(snapshot(step))
        store.save(snapshot(step + 50))
        flip(folder / newest_files(folder)[1], -1)
        store.close()
    assert len(list((folder / "quarantine").iterdir())) == 2
    assert len(tree(folder)) < 50


def test_foreign_files_in_the_folder_are_left_alone(folder):
    (folder / "checkpoints" / "notes.txt").write_text("mine")
    (folder / "checkpoints" / "step-000000001").mkdir()
    (folder / "checkpoints" / "step-000000001" / "mine.txt").write_text("mine")
    store = open_store(folder)
    assert_holds(store.newest(), snapshot(300))
    store.save(snapshot(400))
    assert (folder / "checkpoints" / "step-000000001" / "mine.txt").read_text() == "mine"
    assert (folder / "checkpoints" / "notes.txt").read_text() == "mine"


def test_one_that_is_pruned_while_it_is_read_is_gone_and_not_damaged(folder, monkeypatch):
    newest = folder / "checkpoints" / "step-000000300"
    only = folder / newest_files(folder)[1]

    def prune_then_check(checked, manifest):
        if checked == newest:
            drop_checkpoint(newest)
            only.unlink()
        return check_sizes(checked, manifest)

    for look in (open_checkpoint, verify):
        original = shutil.copytree(folder, folder.with_name("original"))
        monkeypatch.setattr(sys.modules[look.__module__], "check_sizes", prune_then_check)
        with pytest.raises(NoCheckpointError):
            look(newest)
        monkeypatch.undo()
        shutil.rmtree(folder)
        original.rename(folder)
    original = shutil.copytree(folder, folder.with_name("original"))
    monkeypatch.setattr("perdure.checkpoint.search.check_sizes", prune_then_check)
    assert [item.manifest.step for item in make_store(folder).list()] == [200]
    monkeypatch.undo()
    shutil.rmtree(folder)
    original.rename(folder)
    monkeypatch.setattr("perdure.checkpoint.opened.check_sizes", prune_then_check)
    store = make_store(folder)
    assert_holds(store.newest(), snapshot(200))
    assert store.reports == []


def test_a_file_of_which_less_came_than_was_announced_is_not_published(tmp_path):
    with pytest.raises(OSError, match="3 bytes came instead of 5"):
        publish(tmp_path / "file", [b"abc"], 5)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_stays_readable_while_its_files_are_removed(folder):
    checkpoint = open_checkpoint(folder / "checkpoints" / "step-000000300")
    shutil.rmtree(folder)
    assert_holds(checkpoint, snapshot(300))


def test_bytes_that_rot_after_opening_are_noticed(folder):
    checkpoint = open_checkpoint(folder / "checkpoints" / "step-000000300")
    flip(folder / newest_files(folder)[1], -1)
    with pytest.raises(CorruptError, match="model/head"):
        checkpoint.buffer("model/head")


def test_a_folder_survives_copy_zip_and_move(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copied")
    subprocess.run(["python3", "-m", "zipfile", "-c", "run.zip", "digits/"], cwd=tmp_path, check=True)
    subprocess.run(["python3", "-m", "zipfile", "-e", "run.zip", "unzipped"], cwd=tmp_path, check=True)
    folder.rename(tmp_path / "moved")
    identity = json.loads((tmp_path / "moved" / "run.json").read_text())["run_id"]
    for place in ("copied", "unzipped/digits", "moved"):
        store = open_store(tmp_path / place)
        assert store.run_id == identity
        assert_holds(store.newest(), snapshot(300))
        store.save(snapshot(400))
        store.close()
        assert_no_debris(tmp_path / place)
