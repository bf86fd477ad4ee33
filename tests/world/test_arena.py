"""The memory of a copy, and the processes that are forked while it is there."""

from __future__ import annotations

import os

import pytest

from perdure.tensors.arena import Arena


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_sees_an_empty_arena_and_can_give_it_up_without_harm() -> None:
    arena = Arena()
    places = arena.lay_out([1 << 20, 1 << 20])
    for place in places:
        place[:] = b"\x07" * len(place)
    child = os.fork()
    if child == 0:
        empty = not any(place[offset] for place in places for offset in (0, len(place) - 1))
        places.clear()
        arena.release()
        again = [Arena().lay_out([1 << 20])[0] for _ in range(8)]
        for place in again:
            place[:] = b"\x01" * len(place)
        os._exit(0 if empty and all(place[0] == 1 for place in again) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(place[0] == place[-1] == 7 for place in places)
