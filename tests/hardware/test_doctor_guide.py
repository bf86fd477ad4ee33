"""What the guide shows is what is said: each block is played and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.pages import Block, blocks, shown
from hardware.doctoring import (
    MODERN,
    NO_IMAGE,
    P100,
    T4,
    cards,
    examine,
    healthy,
    keras_on,
    on_card,
    tensorflow_on,
    torch_begins,
    torch_on,
)  # fmt: skip
from perdure.checkup.checks import lines, summary
from perdure.hardware.use import CardUse, Circumstances, LoopTimes, Verdict
from perdure.hardware.verdicts import CODES, after_the_end, judge
from perdure.testing.nvml import NO_LIBRARY, Scene

SPEEDS = {"float32": 4.13, "float16": 24.9, "bfloat16": 2.21}
HANGS = [*torch_begins(), {"architectures": MODERN}, *on_card(0, T4), "hang"]
CPU_ONLY = [*torch_begins(build="", version="2.13.0+cpu"), {"done": True}]
NO_MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."

MACHINES: list[tuple[str, Scene, dict[str, Any], dict[str, Any]]] = [
    (
        "perdure doctor --require gpu",
        cards(T4, T4),
        {**healthy(T4, T4), "torch": torch_on(T4, T4, seconds=0.4, right=True, off=1e-6, speeds=SPEEDS)},
        {"kaggle": "Batch", "required": "gpu"},
    ),
    (
        "perdure doctor --require gpu",
        Scene(init_error=NO_LIBRARY),
        {"torch": torch_on()},
        {"kaggle": "Interactive", "required": "gpu", "smi": False},
    ),
    ("perdure doctor", cards(T4, T4), {"torch": CPU_ONLY}, {"kaggle": "Batch"}),
    (
        "perdure doctor --require NvidiaTeslaT4",
        cards(P100),
        {"torch": torch_on(P100, error=NO_IMAGE)},
        {"kaggle": "Batch", "required": "NvidiaTeslaT4"},
    ),
    ("perdure doctor", cards(T4), {"torch": HANGS}, {"kaggle": "Batch", "limit_s": 2.0}),
    (
        "perdure doctor",
        cards(T4),
        {"torch": torch_on(T4), "tensorflow": tensorflow_on(), "keras": keras_on("CPU:0")},
        {},
    ),
    ("perdure doctor", cards(T4, used_mb=15000), {"torch": torch_on(T4, error=NO_MEMORY)}, {}),
]

T4_AT_WORK = CardUse(
    index=0, visible_as=0, uuid="GPU-0", name=T4, capability=(7, 5), samples=300, busy_percent=92.0,
    memory_total_bytes=16_106_127_360, memory_peak_bytes=9_000_000_000, memory_own_bytes=8_800_000_000,
    memory_others_bytes=0, temperature_peak_c=71.0, power_mean_w=65.0, power_limit_w=70.0,
)  # fmt: skip
LOOP = LoopTimes(steps=1000, wait_s=1.0, total_s=50.0)
AROUND = Circumstances(device="cuda:0", workers=2, pinned=True, cores=4, mode="batch")
NOTHING_OF_OURS = {"busy_percent": 0.0, "memory_own_bytes": 0, "memory_peak_bytes": 3_000_000}


def pages() -> Iterator[Block]:
    return (block for block in blocks("text") if block.page.name == "gpu.md")


def doctor_blocks() -> list[Block]:
    return [block for block in pages() if block.text.startswith("$ ")]


@pytest.mark.parametrize("number", range(len(MACHINES)))
def test_a_block_shows_what_the_doctor_says(fake_folder: Path, tmp_path: Path, number: int) -> None:
    command, scene, played, how = MACHINES[number]
    first, *expected = doctor_blocks()[number].text.splitlines()
    assert first == f"$ {command}"
    checkup = examine(fake_folder, tmp_path, scene, played, **how)
    said = "\n".join([*lines(checkup), summary(checkup)])
    assert shown(expected, said), said
    assert checkup.ok == ("none failed" in said)


def test_every_block_of_the_guide_is_played() -> None:
    assert len(doctor_blocks()) == len(MACHINES)
    assert len(list(pages())) == len(MACHINES) + 1


def verdicts() -> Iterator[Verdict]:
    def one(loop: LoopTimes = LOOP, around: Circumstances = AROUND, **card: Any) -> list[Verdict]:
        return judge([replace(T4_AT_WORK, **card)], loop, around)

    second = replace(T4_AT_WORK, index=1, visible_as=1, **NOTHING_OF_OURS)
    yield from one(**NOTHING_OF_OURS)
    yield from judge([T4_AT_WORK, second], LOOP, AROUND)
    fed_slowly = LoopTimes(steps=1000, wait_s=50.0, total_s=55.0)
    yield from one(fed_slowly, replace(AROUND, workers=0, pinned=False), busy_percent=8.0)
    yield from one(busy_percent=45.0, memory_peak_bytes=1_100_000_000, memory_own_bytes=1_000_000_000)
    yield from one(memory_peak_bytes=15_900_000_000, memory_own_bytes=15_800_000_000)
    yield from one(throttled_share={"thermal": 0.6}, temperature_peak_c=93.0)
    yield from one(around=replace(AROUND, parameter_dtypes={"float32": 44_000_000}))
    yield from one(lost="GPU is lost")
    yield from after_the_end([T4_AT_WORK], 1800.0, replace(AROUND, mode="interactive"), platform="kaggle")


def test_the_block_of_verdicts_shows_each_of_them() -> None:
    (block,) = [block for block in pages() if not block.text.startswith("$ ")]
    given = list(verdicts())
    assert sorted(verdict.code for verdict in given) == sorted(CODES)
    said = "\n\n".join(f"{verdict.code}: {verdict.sentence}\nfix: {verdict.remedy}" for verdict in given)
    assert shown(block.text.splitlines(), said), said
