"""A state that is not in this memory is saved in pieces: the same file, whole, or none."""

from __future__ import annotations

import mmap
import random
import time

import numpy as np
import pytest
import torch

from perdure.checkpoint import pieces, saves, writer
from perdure.checkpoint.opened import open_checkpoint
from perdure.checkpoint.retention import Keep
from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Store
from perdure.core.errors import UnreadableError
from perdure.core.paths import RunPaths
from perdure.core.progress import Position
from perdure.tensors import encoding, streaming
from perdure.tensors.encoding import flatten, to_buffers, unflatten
from perdure.tensors.streaming import CardBytes


@pytest.fixture(autouse=True)
def _as_if_on_a_card(monkeypatch):
    monkeypatch.setattr(encoding, "_on_card", lambda data: True)
    monkeypatch.setattr(encoding, "STREAM_FROM_BYTES", 1024)
    monkeypatch.setattr(streaming, "PIECE_BYTES", 64 * 1024)


def store_in(folder):
    store = Store(RunPaths(folder), "job", keep=Keep(last=2))
    store.open({})
    return store


def snapshot_of(tree, step=1):
    values, leaves = flatten(tree)
    return Snapshot(Position(step), values, to_buffers(leaves))


def tree():
    generator = torch.Generator().manual_seed(0)
    sizes = (1, 200, 16_384, 65_536 + 3, 1_500_001)  # below, at, across and far above a piece; odd ends
    made = {f"t{size}": torch.randn(size, generator=generator) for size in sizes}
    return made | {"half": torch.randn(33_001, generator=generator).half(), "array": np.arange(5)}


def test_the_checkpoint_is_the_one_that_bytes_in_memory_would_have_given(tmp_path, monkeypatch):
    state = tree()
    streamed = snapshot_of(state)
    assert sum(isinstance(buffer.data, CardBytes) for buffer in streamed.buffers) == 4
    first = store_in(tmp_path / "streamed").save(streamed)
    monkeypatch.setattr(encoding, "_on_card", lambda data: False)
    second = store_in(tmp_path / "plain").save(snapshot_of(state))
    assert first.manifest.entries == second.manifest.entries
    assert first.manifest.files == second.manifest.files
    for file in first.manifest.files:
        assert (tmp_path / "streamed" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()
    checkpoint = open_checkpoint(first.folder)
    found = unflatten(checkpoint.values, checkpoint.buffer)
    assert all(torch.equal(found[name], value) for name, value in state.items() if name != "array")


def test_what_did_not_change_is_not_brought_over_to_be_written_again(tmp_path, monkeypatch):
    store, state = store_in(tmp_path), tree()
    first = store.save(snapshot_of(state))
    reads = []
    real = CardBytes.pieces
    monkeypatch.setattr(CardBytes, "pieces", lambda self: reads.append(self.nbytes) or real(self))
    second = store.save(snapshot_of(state, 2))
    assert second.manifest.files == first.manifest.files
    assert len(reads) == 4  # digested, and that is all


def test_what_changes_between_its_digest_and_its_write_is_no_checkpoint(tmp_path, monkeypatch):
    store, state = store_in(tmp_path), tree()
    good = store.save(snapshot_of(state))
    for value in state.values():
        value += 1
    snapshot, passes, real = snapshot_of(state, 2), [], CardBytes.pieces

    def pieces(self):
        passes.append(self.nbytes)
        if len(passes) == 6:  # four were digested; the second of those that are written
            state["t1500001"].zero_(), state["t65539"].zero_()
            state["half"].zero_(), state["t16384"].zero_()
        return real(self)

    monkeypatch.setattr(CardBytes, "pieces", pieces)
    with pytest.raises(UnreadableError):
        store.save(snapshot)
    assert open_checkpoint(good.folder).problems() == []
    assert [item.folder for item in store.list()] == [good.folder]
    assert not list((tmp_path / "tensors").glob(".*"))


def test_a_piece_is_valid_until_the_one_behind_the_next(monkeypatch):
    monkeypatch.setattr(streaming, "PIECE_BYTES", 4)
    pieces = CardBytes(torch.arange(14, dtype=torch.uint8)).pieces()
    one, two = next(pieces), next(pieces)
    assert (bytes(one), bytes(two)) == (bytes([0, 1, 2, 3]), bytes([4, 5, 6, 7]))
    assert bytes(next(pieces)) == bytes([8, 9, 10, 11])
    assert bytes(two) == bytes([4, 5, 6, 7])
    assert [bytes(piece) for piece in pieces] == [bytes([12, 13])]


def test_no_more_than_two_pieces_a_reader_are_in_memory():
    data = CardBytes(torch.zeros(1_000_000, dtype=torch.uint8))
    addresses = {np.frombuffer(piece, np.uint8).__array_interface__["data"][0] for piece in data.pieces()}
    assert len(addresses) == 2


def test_a_buffer_of_the_wrong_size_is_refused_as_one_in_memory_is(tmp_path):
    wrong = Buffer("x", "tensor", "F32", (3,), CardBytes(torch.zeros(8, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="8 bytes for F32"):
        store_in(tmp_path).save(Snapshot(Position(1), None, [wrong]))


class Alternating:
    """Pieces in two places of memory by turns, as from a card; each is gone when the one behind the next is asked for."""

    def __init__(self, data: bytes) -> None:
        self.data, self.nbytes = data, len(data)

    def pieces(self):
        size = 64 * 1024
        places = [memoryview(mmap.mmap(-1, size)) for _ in range(2)]
        for number, begin in enumerate(range(0, self.nbytes, size)):
            place = places[number % 2]
            place[:] = b"!" * size
            piece = self.data[begin : begin + size]
            place[: len(piece)] = piece
            yield place[: len(piece)]


@pytest.mark.parametrize("stream_from", [1, 1 << 60])
def test_a_piece_that_is_written_slowly_is_not_overtaken_by_the_next_ones(tmp_path, monkeypatch, stream_from):
    write = writer._write_piece

    def slowly(*args):
        time.sleep(0.003)
        return write(*args)

    monkeypatch.setattr(writer, "_write_piece", slowly)
    monkeypatch.setattr(writer, "CHUNK_BYTES", 256 * 1024)
    monkeypatch.setattr(writer, "DIRECT_FROM_BYTES", 1)
    monkeypatch.setattr(pieces, "STRAIGHT_FROM_BYTES", 4096)
    monkeypatch.setattr(saves, "STREAM_FROM_BYTES", stream_from)
    data = random.Random(1).randbytes(4_000_000)
    buffer = Buffer("card", "tensor", "U8", (len(data),), Alternating(data))
    saved = store_in(tmp_path / "job").save(Snapshot(Position(1), {}, [buffer]))
    assert open_checkpoint(saved.folder).buffer("card") == data
