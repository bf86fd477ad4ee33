"""``CUDA_VISIBLE_DEVICES`` is read as CUDA reads it. The judge is torch's own reading of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.hardware.order import visible_order

UUIDS = ["GPU-8932f937-d72c-4106", "GPU-8932aaaa-d72c-4106", "GPU-0f000000-1111-2222", "GPU-5a000000-1111-2222"]

numbers = st.integers(-2, 6).map(str)
odd_numbers = st.sampled_from(["", " 1", "1 ", "+2", "1gpu", "2ampere", "x", "-", "0x1", "1.0"])
names = st.sampled_from([*UUIDS, "GPU-8932", "GPU-8932f", "GPU-0", "GPU-", "GPU-zz", "gpu-0f", "MIG-1"])
settings = st.lists(st.one_of(numbers, odd_numbers, names), min_size=0, max_size=5).map(",".join)


def order_of_torch(setting, monkeypatch):
    """The rules as torch has them, for a build that does not need a card."""
    import torch.cuda

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    listed = torch.cuda._parse_visible_devices()
    if listed and isinstance(listed[0], str):
        return torch.cuda._transform_uuid_to_ordinals(listed, UUIDS)
    invalid = next((at for at, number in enumerate(listed) if number >= len(UUIDS)), len(listed))
    return listed[:invalid]


@given(setting=settings)
@example("0,9,9")
@example("GPU-8932f,GPU-8932f937")
@example("0,-1,0")
def test_any_setting_gives_the_cards_that_torch_sees(setting):
    with pytest.MonkeyPatch.context() as patch:
        expected = None
        try:
            expected = order_of_torch(setting, patch)
        except ValueError:
            pass  # torch itself trips over a bare sign
        got = visible_order(setting, UUIDS)
    assert expected is None or got == expected
    assert len(set(got)) == len(got) and all(0 <= card < len(UUIDS) for card in got)


def test_not_set_means_all_and_empty_means_none():
    assert visible_order(None, UUIDS) == [0, 1, 2, 3]
    assert visible_order("", UUIDS) == []
