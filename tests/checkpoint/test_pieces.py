"""The content of a file in pieces: every byte in its order, aligned as a direct write wants it."""

from __future__ import annotations

import ctypes
import itertools
import mmap

from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint import pieces as module
from perdure.checkpoint.pieces import pieces, stretches

module_straight = module.STRAIGHT_FROM_BYTES


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def content(length: int, seed: int) -> bytes:
    return bytes((i * 7 + seed) % 251 for i in range(length))


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.sampled_from(["bytes", "apart", "arena"])), max_size=12),
    st.sampled_from([1, 64, 512]),
    st.sampled_from([512, 1024, 4096]),
)
def test_every_byte_in_its_order_and_every_piece_aligned(parts, align, chunk):
    module.STRAIGHT_FROM_BYTES = 600
    try:
        arena, begin, views, whole = memoryview(mmap.mmap(-1, 40_000)), 0, [], b""
        for number, (length, kind) in enumerate(parts):
            data = content(length, number)
            whole += data
            if kind == "arena":
                arena[begin : begin + length] = data
                views.append(arena[begin : begin + length])
                begin += length
            else:
                views.append(data if kind == "bytes" else memoryview(bytearray(data)))
        written = b""
        for piece in pieces(views, len(whole), align=align, chunk=chunk):
            assert 0 < piece.nbytes <= max(chunk, align)
            assert piece.nbytes % align == 0
            assert align == 1 or address(piece) % align == 0
            written += bytes(piece)
        assert written[: len(whole)] == whole
        assert not any(written[len(whole) :])
        assert len(written) - len(whole) < align
    finally:
        module.STRAIGHT_FROM_BYTES = module_straight


def test_what_lies_together_in_memory_is_one_stretch_and_is_not_copied():
    arena = memoryview(mmap.mmap(-1, 1 << 20))
    cuts = [0, 100, 5000, 5000, 300_000, 1 << 20]
    views = [arena[a:b] for a, b in itertools.pairwise(cuts)]
    (stretch,) = stretches(views, 1 << 20)
    assert stretch.view.nbytes == 1 << 20
    (piece,) = pieces(views, 1 << 20, align=4096, chunk=1 << 20)
    assert address(piece) == address(arena)


def test_a_gap_ends_a_stretch():
    arena = memoryview(bytearray(1000))
    assert [s.view.nbytes for s in stretches([arena[:100], arena[200:300], arena[300:400]], 4096)] == [100, 200]
