"""A fake NVML: the real nvidia-ml-py talks to scripted cards. For tests of runs and of ``perdure doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

Curve = float | Sequence[float]
"""A value, or one value per sample (or per ``tick_s``); the last one stays."""


@dataclass(frozen=True)
class FakeCard:
    """A scripted card.

    Attributes:
        name: Its model.
        uuid: Its own name; made from its number if empty.
        memory_mb: What it has, MiB.
        capability: Compute capability.
        busy: Utilisation, percent.
        used_mb: Memory in use, MiB.
        temperature_c: Its temperature.
        power_w: Its draw.
        limit_w: What it may draw.
        throttle: NVML's clocks event reasons, a bit mask.
        processes: Memory by process, MiB: ``{pid: 900}``; a value of None stands for "not available".
        errors: NVML's error by what was asked: ``{"temperature": 3}``; the words are in ``FIELDS``.
        lost_after: Samples after which it is lost; None if never.
        slices: MIG slices, MiB of memory each; None if MIG is off.
    """

    name: str = "Tesla T4"
    uuid: str = ""
    memory_mb: int = 15360
    capability: tuple[int, int] = (7, 5)
    busy: Curve = 0
    used_mb: Curve = 0
    temperature_c: Curve = 40
    power_w: Curve = 30
    limit_w: float = 70
    throttle: Curve = 0
    processes: Mapping[int, int | None] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    lost_after: int | None = None
    slices: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Scene:
    """What the fake plays.

    Attributes:
        cards: The cards.
        driver: Version of the driver.
        cuda: Newest CUDA that it serves: ``"12.8"``.
        init_error: NVML's error at initialisation; 0 for none, 9 "driver not loaded", 12 "no library".
        missing: Functions that this driver does not have.
        tick_s: Seconds that a value of a curve lasts; 0: one sample.
    """

    cards: Sequence[FakeCard] = ()
    driver: str = "580.159.04"
    cuda: str = "13.0"
    init_error: int = 0
    missing: Sequence[str] = ()
    tick_s: float = 0.0


class FakeNvml:
    """A built fake and the scene that it plays.

    Attributes:
        environment: What a child process needs so that it meets the fake, ``nvidia-smi`` too.
    """

    def __init__(self, folder: Path) -> None:
        self.environment: dict[str, str] = {}

    def set(self, scene: Scene) -> None:
        """Play this from now on, in every process that uses the fake."""


def build_fake_nvml(folder: Path) -> Path:
    """Compile ``libnvidia-ml.so.1`` into a folder, with an ``nvidia-smi`` beside it; needs a C compiler.

    Returns:
        The library.
    """
    return folder / "libnvidia-ml.so.1"


@contextmanager
def playing(folder: Path, scene: Scene) -> Iterator[FakeNvml]:
    """Let this process and its children meet the fake; afterwards all is as before.

    Args:
        folder: Where the fake is, or is built.
        scene: What it plays first.
    """
    yield FakeNvml(folder)
