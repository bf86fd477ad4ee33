"""A save that is written while its buffers still arrive: the same checkpoint, sooner, and nothing if it comes to nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import assert_holds, assert_no_debris, data_of, open_store, snapshot, steps, tree, u8

from perdure.checkpoint import saves
from perdure.checkpoint.athand import AtHand
from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.sharing import MAX_FILES
from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.tensorfile import ITEM_BYTES, hash_buffer
from perdure.checkpoint.verify import verify
from perdure.core.errors import RunLockedError
from perdure.core.progress import Position


@pytest.fixture(autouse=True)
def _stream_everything(monkeypatch) -> None:
    monkeypatch.setattr(saves, "STREAM_FROM_BYTES", 1)


def arriving(folder: Path) -> Path:
    return next((folder / "tensors").glob(".arriving*.tmp"), folder / "none")


class OneByOne(AtHand):
    """Each buffer is there when it is let go."""

    def __init__(self, buffers, healthy=lambda: True) -> None:
        super().__init__(buffers, healthy)
        self.go = [threading.Event() for _ in buffers]

    def arrive(self):
        for buffer, go in zip(self.buffers, self.go, strict=True):
            assert go.wait(60)
            yield hash_buffer(buffer)


def test_the_first_is_on_its_way_to_the_disk_before_the_last_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("perdure.checkpoint.writer.CHUNK_BYTES", 4096)
    store = open_store(tmp_path / "digits")
    first, last = u8("first", data_of("first", 1, 40_960)), u8("last", data_of("last", 1, 40_960))
    arrival = OneByOne([first, last])
    done = []
    saving = threading.Thread(target=lambda: done.append(store.save(Snapshot(Position(1), {}, ()), arrival)))
    saving.start()
    arrival.go[0].set()
    end = time.monotonic() + 60
    while not (
        arriving(store.paths.folder).exists() and bytes(first.data) in arriving(store.paths.folder).read_bytes()
    ):
        assert time.monotonic() < end
        time.sleep(0.005)
    assert not list(store.paths.folder.glob("tensors/*.safetensors"))
    arrival.go[1].set()
    saving.join()
    assert_holds(open_checkpoint(done[0].folder), Snapshot(Position(1), {}, (first, last)))
    assert_no_debris(store.paths.folder)


@pytest.mark.parametrize("where", ["arrive", "approve"])
def test_what_comes_to_nothing_leaves_nothing(tmp_path, where):
    class Torn(AtHand):
        def arrive(self):
            for number, item in enumerate(super().arrive()):
                if where == "arrive" and number == 1:
                    raise RuntimeError("torn")
                yield item

        def approve(self, hashed):
            raise RuntimeError("torn")

    store = open_store(tmp_path / "digits")
    store.save(snapshot(1))
    before = tree(store.paths.folder)
    with pytest.raises(RuntimeError, match="torn"):
        store.save(snapshot(2), Torn(snapshot(2).buffers, lambda: True))
    assert tree(store.paths.folder) == before
    store.save(snapshot(3))
    assert steps(store.paths.folder) == [3, 1]
    assert_no_debris(store.paths.folder)


def test_where_no_thread_can_be_begun_the_save_is_written_without_one(tmp_path, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    store = open_store(tmp_path / "digits")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr("perdure.checkpoint.writer.CHUNK_BYTES", 4096)
    store.save(snapshot(1, frozen=60_000))
    monkeypatch.undo()
    assert_holds(store.newest(), snapshot(1, frozen=60_000))
    assert_no_debris(store.paths.folder)


def test_health_is_that_of_the_arrival(tmp_path):
    store = open_store(tmp_path / "digits")
    assert not store.save(snapshot(1), AtHand(snapshot(1).buffers, lambda: False)).manifest.healthy
    assert store.save(snapshot(2)).manifest.healthy


def test_what_is_on_disk_already_is_not_written_again_though_it_was_expected_to_have_changed(tmp_path):
    store = open_store(tmp_path / "digits")
    store.save(snapshot(1, frozen=900_000, moving=100_000))
    for step in (2, 3):
        saved = store.save(snapshot(step, frozen=900_000, moving=100_000))
        assert saved.bytes_written < 110_000
        assert_holds(store.newest(), snapshot(step, frozen=900_000, moving=100_000))
    assert_no_debris(store.paths.folder)


def test_room_in_the_head_that_nobody_needs_is_not_written(tmp_path):
    store = open_store(tmp_path / "digits")
    still = [u8(f"layer{i}/weight", data_of("still", i, 500)) for i in range(2000)]
    store.save(Snapshot(Position(1), {}, [*still, u8("head", data_of("head", 1, 50_000))]))
    saved = store.save(Snapshot(Position(2), {}, [*still, u8("head", data_of("head", 2, 50_000))]))
    files = {file: nbytes for file, nbytes in saved.manifest.files.items() if nbytes < 500_000}
    assert sum(files.values()) < 51_000


def test_where_only_what_is_new_has_room_it_is_written_when_all_is_there(tmp_path):
    folder = tmp_path / "digits"
    store = open_store(folder, disk_bytes=1_600_000)
    store.save(snapshot(1, frozen=900_000, moving=100_000))
    for step in (2, 3, 4):
        store.save(snapshot(step, frozen=900_000, moving=100_000))
        assert_holds(store.newest(), snapshot(step, frozen=900_000, moving=100_000))
    assert_no_debris(folder)


BUFFERS = st.dictionaries(
    st.sampled_from([f"layer{i}" for i in range(8)]),
    st.tuples(st.sampled_from(sorted(ITEM_BYTES)), st.integers(0, 3000), st.integers(0, 2), st.booleans()),
    min_size=1,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(BUFFERS, min_size=2, max_size=5))
def test_whatever_changes_from_save_to_save_each_checkpoint_is_whole_and_the_files_stay_few(
    tmp_path_factory, history
):
    store = open_store(tmp_path_factory.mktemp("any") / "digits")
    for step, content in enumerate(history, 1):
        buffers = [
            Buffer(
                name,
                "tensor",
                dtype,
                (count,),
                memoryview(data_of(name, version, count * ITEM_BYTES[dtype])),
                still,
            )
            for name, (dtype, count, version, still) in content.items()
        ]
        buffers.sort(key=lambda buffer: buffer.still)
        saved = store.save(Snapshot(Position(step), {}, buffers))
        assert saved.manifest.files is not None
        assert len(saved.manifest.files) <= MAX_FILES
        assert verify(saved.folder).problems == ()
        assert_holds(open_checkpoint(saved.folder), Snapshot(Position(step), {}, buffers))
        assert all(e.offset % ITEM_BYTES[e.dtype] == 0 for e in saved.manifest.entries if e.nbytes)
    store.close()
    assert_no_debris(store.paths.folder)


def test_what_was_still_arriving_when_the_folder_was_given_away_is_not_committed(tmp_path):
    earlier = open_store(tmp_path / "digits")
    arrival = OneByOne([u8("a", data_of("a", 1, 40_960)), u8("b", data_of("b", 1, 40_960))])
    refused = []

    def save() -> None:
        with pytest.raises(RunLockedError):
            earlier.save(Snapshot(Position(1), {}, ()), arrival)
        refused.append(True)

    saving = threading.Thread(target=save)
    saving.start()
    arrival.go[0].set()
    later = open_store(tmp_path / "digits")  # as a cell that is run again
    earlier.close()
    saved = later.save(snapshot(2))
    arrival.go[1].set()
    saving.join()
    assert refused
    assert [item.folder for item in later.list()] == [saved.folder]
    assert_no_debris(later.paths.folder)
