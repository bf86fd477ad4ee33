"""What is read is what torch sees. Needs a card."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from hardware.watching import quick, until
from perdure.hardware.cards import read_cards
from perdure.hardware.monitor import EVERY_S

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card"),
]


def test_cards_are_those_that_torch_sees_in_its_order():
    cards = read_cards()
    assert cards.trouble == "" and cards.driver and cards.cuda
    seen = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    if cards.order_known:
        assert [(card.name, card.capability) for card in cards.visible] == [
            (c.name, (c.major, c.minor)) for c in seen
        ]
        assert [card.uuid for card in cards.visible if not card.mig] == [
            f"GPU-{c.uuid}" for c, card in zip(seen, cards.visible, strict=True) if not card.mig
        ]


@pytest.mark.parametrize("setting", ["", "-1", "0", "first uuid", "7777"])
def test_a_setting_hides_the_same_cards_from_torch(setting):
    setting = read_cards({}).cards[0].uuid[:14] if setting == "first uuid" else setting
    code = (
        "import torch; from perdure.hardware.cards import read_cards\n"
        "print(torch.cuda.device_count() - len(read_cards().visible))"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": setting}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_card_at_work_is_seen_at_work_and_the_thread_costs_little():
    monitor = quick(every_s=0.05)
    monitor.start()
    x_MM = torch.rand(8192, 8192, device="cuda")

    def busy() -> bool:
        for _ in range(20):
            (x_MM @ x_MM).sum()
        torch.cuda.synchronize()
        cards = monitor.use(whole_session=True)
        return bool(cards) and cards[0].samples >= 60

    until(busy)
    monitor.stop()
    (card, *_) = monitor.use(whole_session=True)
    assert card.busy_percent > 30 and card.memory_peak_bytes > x_MM.nbytes
    assert card.memory_own_bytes is None or card.memory_own_bytes > x_MM.nbytes
    cost_s = monitor.cost_s / card.samples
    print(f"{cost_s * 1e6:.0f} us a look, {cost_s / EVERY_S:.3%} of a core; trouble: {monitor.trouble!r}")
    assert cost_s < EVERY_S / 1000
