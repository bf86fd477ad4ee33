"""What is on disk: real safetensors files, a manifest that proves itself, shared files, few files."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from snapshots import assert_holds, assert_no_debris, data_of, open_store, snapshot, tree, u8

from perdure.checkpoint import opened
from perdure.checkpoint.manifest import load_manifest
from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Keep
from perdure.checkpoint.tensorfile import ITEM_BYTES
from perdure.checkpoint.verify import verify
from perdure.core.clock import SystemClock
from perdure.core.progress import Position


class Noon(SystemClock):
    def time(self) -> float:
        return 1_700_000_000.9


def save(store, buffers, step=0, **more):
    return store.save(Snapshot(Position(step), more.pop("values", {}), buffers, **more))


def files_of(folder):
    return sorted((folder / "tensors").iterdir())


def test_the_room_needs_neither_torch_nor_numpy():
    code = (
        "import sys, perdure.checkpoint.store, perdure.checkpoint.verify, perdure.checkpoint.compare\n"
        "assert not {'torch', 'numpy', 'safetensors'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_safetensors_library_reads_our_files(tmp_path):
    store = open_store(tmp_path / "digits")
    buffers = [
        Buffer(f"model/{dtype}", "tensor", dtype, (3, 2), memoryview(data_of(dtype, 0, 6 * size)))
        for dtype, size in ITEM_BYTES.items()
    ]
    buffers += [
        Buffer("model/scalar", "tensor", "F32", (), memoryview(data_of("scalar", 0, 4))),
        Buffer("model/empty", "tensor", "F32", (0, 7), memoryview(b"")),
        Buffer("größe/☃", "bytes", "U8", (3,), memoryview(b"abc")),
    ]
    save(store, buffers)
    (file,) = files_of(tmp_path / "digits")
    # The library's loader knows numpy's types only; its header parser checks all of them, and the layout.
    with safe_open(file, "np") as opened:
        assert set(opened.keys()) == {buffer.name for buffer in buffers}
        for buffer in buffers:
            part = opened.get_slice(buffer.name)
            assert (part.get_dtype(), tuple(part.get_shape())) == (buffer.dtype, buffer.shape)
            if buffer.dtype in ("F32", "I64", "U8", "F64", "I16"):
                assert opened.get_tensor(buffer.name).tobytes() == bytes(buffer.data)


def test_every_region_is_aligned_to_its_items_and_the_data_to_64_bytes(tmp_path):
    store = open_store(tmp_path / "digits")
    buffers = [
        Buffer(f"{i}/{dtype}", "tensor", dtype, (i,), memoryview(bytes(i * size)))
        for i in (3, 1, 5)
        for dtype, size in ITEM_BYTES.items()
    ]
    saved = save(store, buffers)
    assert min(entry.offset for entry in saved.manifest.entries) % 64 == 0
    assert all(entry.offset % ITEM_BYTES[entry.dtype] == 0 for entry in saved.manifest.entries)
    assert [entry.name for entry in saved.manifest.entries] == [buffer.name for buffer in buffers]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(min_size=1), st.sampled_from(sorted(ITEM_BYTES)), st.lists(st.integers(0, 4), max_size=3)
        ),
        max_size=6,
        unique_by=lambda item: item[0],
    ),
    st.integers(0, 10**6),
)
def test_any_buffers_come_back(tmp_path_factory, specs, seed):
    folder = tmp_path_factory.mktemp("any") / "digits"
    buffers = [
        Buffer(
            name,
            "tensor",
            dtype,
            tuple(shape),
            memoryview(data_of(name, seed, math.prod(shape) * ITEM_BYTES[dtype])),
        )
        for name, dtype, shape in specs
    ]
    store = open_store(folder)
    saved = save(store, buffers)
    assert_holds(open_checkpoint(saved.folder), Snapshot(Position(0), {}, buffers))
    store.close()
    assert_no_debris(folder)


def test_a_buffer_may_have_the_name_that_safetensors_keeps_for_itself(tmp_path):
    names = ["__metadata__", "__metadata___", "__metadata____", "metadata", "__metadata__x"]
    buffers = [Buffer(name, "tensor", "U8", (3,), memoryview(name.encode()[-3:])) for name in names]
    store = open_store(tmp_path / "digits")
    saved = save(store, buffers)
    assert_holds(open_checkpoint(saved.folder), Snapshot(Position(0), {}, buffers))
    with safe_open(saved.folder.parent.parent / saved.manifest.entries[0].file, "numpy") as opened:
        assert len(list(opened.keys())) == 5


def test_the_manifest_says_everything_and_proves_itself(tmp_path):
    store = open_store(tmp_path / "digits", clock=Noon())
    made = snapshot(
        7, epoch=2, metrics={"loss": math.nan, "accuracy": 0.5}, healthy=False, session=3, reason="stop",
        training_s=12.5, libraries={"python": "3.11"},
    )  # fmt: skip
    saved = store.save(made)
    data = (saved.folder / "manifest.json").read_bytes()
    fields = json.loads(data)
    assert fields["format_version"] == 1
    assert (fields["step"], fields["finished"]) == (7, False)
    assert fields["position"] == {"step": 7, "epoch": 2, "call": 0, "batch": 7, "finished": False}
    assert fields["created"] == "2023-11-14T22:13:20+00:00"
    assert fields["metrics"] == {"loss": {"$": "float", "v": "nan"}, "accuracy": 0.5}
    assert (fields["session"], fields["reason"], fields["healthy"]) == (3, "stop", False)
    assert (fields["training_s"], fields["libraries"]) == (12.5, {"python": "3.11"})
    assert (fields["run"], fields["run_id"], fields["seq"]) == ("digits", store.run_id, 1)
    assert fields["digest"] == xxhash.xxh3_128_hexdigest(data[: data.rindex(b',\n"digest"')])
    again = load_manifest(data, saved.folder)
    assert math.isnan(again.metrics["loss"])
    assert (again.position, again.entries, again.values) == (made.position, saved.manifest.entries, made.values)


def test_fields_that_a_later_release_adds_are_ignored(tmp_path):
    saved = open_store(tmp_path / "digits").save(snapshot(1))
    path = saved.folder / "manifest.json"
    body = path.read_bytes()[: -len(b',\n"digest": ""\n}\n') - 32] + b',\n"mood": "good"'
    path.write_bytes(body + b',\n"digest": "%s"\n}\n' % xxhash.xxh3_128_hexdigest(body).encode())
    assert open_checkpoint(saved.folder).manifest.step == 1


def test_what_did_not_change_is_not_written_again(tmp_path):
    store = open_store(tmp_path / "digits")
    first = store.save(snapshot(1))
    second = store.save(snapshot(2))
    assert first.bytes_written > 65_000
    assert second.bytes_written < 10_000
    assert len(second.manifest.files) == 2
    assert_holds(store.newest(), snapshot(2))


def test_a_renamed_buffer_with_the_same_bytes_is_shared(tmp_path):
    store = open_store(tmp_path / "digits")
    data = data_of("x", 0, 9000)
    save(store, [u8("old", data)], 1)
    second = save(store, [Buffer("new", "array", "F32", (2250,), memoryview(data))], 2)
    assert second.bytes_written < 2000
    entry = store.newest().manifest.entries[0]
    assert (entry.name, entry.kind, entry.dtype, entry.shape) == ("new", "array", "F32", (2250,))
    assert bytes(store.newest().buffer("new")) == data


def test_nothing_is_shared_with_a_checkpoint_that_this_process_has_not_proven(tmp_path):
    store = open_store(tmp_path / "digits")
    store.save(snapshot(1))
    store.close()
    unproven = open_store(tmp_path / "digits")
    assert unproven.save(snapshot(2)).bytes_written > 65_000
    unproven.close()
    proven = open_store(tmp_path / "digits")
    assert proven.newest().manifest.step == 2
    assert proven.save(snapshot(3)).bytes_written < 10_000


def test_a_file_that_is_mostly_dead_is_not_depended_on(tmp_path):
    store = open_store(tmp_path / "digits")
    store.save(snapshot(1, frozen=4_000, moving=6_000))
    assert store.save(snapshot(2, frozen=4_000, moving=6_000)).manifest.files.keys().__len__() == 1
    store.save(snapshot(3, frozen=7_000, moving=3_000))
    assert len(store.save(snapshot(4, frozen=7_000, moving=3_000)).manifest.files) == 2


def test_a_checkpoint_depends_on_at_most_eight_files_and_a_run_holds_few(tmp_path):
    store = open_store(tmp_path / "digits", keep=Keep(last=3, best="max:accuracy"))
    changed = {f"layer{i}": 0 for i in range(40)}
    for step in range(200):
        for i in range(40):  # more and more of it is frozen, then some of that thaws
            if i >= step // 5 % 40 or (step % 7 == 0 and i == step % 40):
                changed[f"layer{i}"] = step
        buffers = [u8(name, data_of(name, version, 300)) for name, version in changed.items()]
        saved = save(store, buffers, step, metrics={"accuracy": (step * 37 % 101) / 100}, healthy=step % 3 > 0)
        assert len(saved.manifest.files) <= 8
        assert len(tree(tmp_path / "digits")) < 50
        assert_holds(open_checkpoint(saved.folder), Snapshot(Position(step), {}, buffers))
    store.close()
    assert_no_debris(tmp_path / "digits")


def test_a_state_that_only_grows_does_not_collect_files(tmp_path):
    store = open_store(tmp_path / "digits")
    buffers = []
    for step in range(1, 20):
        buffers.append(u8(f"layer{step}", data_of("layer", step, 2000)))
        saved = save(store, buffers, step)
        assert len(saved.manifest.files) == min(step, 7)  # and one more where something has stopped moving
        assert_holds(store.newest(), Snapshot(Position(step), {}, buffers))


def test_so_many_are_kept_that_a_run_folder_stays_below_fifty_files(tmp_path):
    store = open_store(tmp_path / "digits", keep=Keep(last=100))
    for step in range(60):
        save(store, [u8("w", data_of("w", step, 100))], step)
    assert 40 < len(tree(tmp_path / "digits")) < 50
    assert store.newest().manifest.step == 59
    assert "fewer" in store.reports[0]


def test_big_buffers_are_written_in_pieces_and_come_back(tmp_path):
    store = open_store(tmp_path / "digits")
    data = bytearray(data_of("big", 0, 1 << 20) * 70)  # more than two write calls' worth
    data[-1] ^= 1
    save(store, [u8("odd", b"abc"), u8("big", data)])
    assert store.newest().buffer("big") == data
    assert bytes(store.newest().buffer("odd")) == b"abc"


@pytest.mark.parametrize(
    "buffers",
    [
        [u8("a", b"x"), u8("a", b"y")],
        [Buffer("a", "tensor", "F32", (2,), memoryview(b"1234567"))],
        [Buffer("a", "tensor", "F31", (2,), memoryview(b"12345678"))],
    ],
)
def test_buffers_that_are_not_what_they_say_are_refused(tmp_path, buffers):
    store = open_store(tmp_path / "digits")
    with pytest.raises(ValueError, match="buffer"):
        save(store, buffers)
    assert store.newest() is None


def test_writing_to_a_buffer_changes_no_file_and_missing_ones_are_an_error(tmp_path):
    store = open_store(tmp_path / "digits")
    store.save(snapshot(1))
    checkpoint = store.newest()
    before = tree(tmp_path / "digits")
    checkpoint.buffer("model/head")[0] ^= 1
    assert tree(tmp_path / "digits") == before
    assert store.newest().buffer("model/head")[0] == checkpoint.buffer("model/head")[0] ^ 1
    with pytest.raises(KeyError):
        checkpoint.buffer("model/tail")


def test_what_does_not_change_is_written_once_however_little_of_its_file_it_is(tmp_path):
    store = open_store(tmp_path / "digits")
    still = [u8(f"backbone{n}", data_of("still", n, 1 << 20)) for n in range(3)]
    moving_bytes = 4 << 20  # the larger part of the first file: not worth keeping for what is left of it
    written = []
    for step in range(1, 6):
        moving = u8("head", data_of("head", step, moving_bytes))
        saved = save(store, [*still, moving], step)
        written.append(saved.bytes_written)
        assert_holds(store.newest(), Snapshot(Position(step), {}, [*still, moving]))
    assert written[0] > 7 << 20
    assert written[1] > 7 << 20  # into a file of its own
    assert all(count < 1.05 * moving_bytes for count in written[2:])
    assert len(saved.manifest.files) == 2


@pytest.mark.parametrize("chunk_bytes", [7, 64, 1000])
def test_whatever_is_longer_than_one_read_comes_back_whole(tmp_path, monkeypatch, chunk_bytes):
    """The header of very many tensors, above all: it has no place in the digests of the entries."""
    monkeypatch.setattr(opened, "_CHUNK_BYTES", chunk_bytes)
    store = open_store(tmp_path / "digits")
    buffers = [u8(f"layer{i}", data_of("layer", i, 10 + i)) for i in range(50)]
    saved = save(store, buffers, 1)
    assert verify(saved.folder).problems == ()
    assert_holds(store.newest(), Snapshot(Position(1), {}, buffers))
    file = next(iter(saved.manifest.files))
    whole = b"".join(open_checkpoint(saved.folder).file_parts(file))
    assert whole == (tmp_path / "digits" / file).read_bytes()
