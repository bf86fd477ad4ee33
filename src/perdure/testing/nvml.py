"""A fake NVML: the real nvidia-ml-py talks to scripted cards. For tests of runs and of ``perdure doctor``."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perdure.core.files import write_atomic

SOURCE = Path(__file__).parent / "fakenvml.c"
LIBRARY = "libnvidia-ml.so.1"
SCENE_VARIABLE = "PERDURE_FAKE_NVML"

FIELDS = (
    "handle", "index", "name", "uuid", "memory", "utilization", "capability", "temperature", "power", "limit",
    "throttle", "processes", "mig",
)  # fmt: skip
"""What may be named in ``FakeCard.errors``."""

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, NO_LIBRARY, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = (
    3, 4, 9, 12, 15, 18, 999,
)  # fmt: skip
"""Errors of nvml.h, as ``FakeCard.errors`` and ``Scene.init_error`` take them."""

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

    def _lines(self, number: int) -> list[str]:
        lines = [
            "card",
            f"name {self.name}",
            f"uuid {self.uuid or fake_uuid(number)}",
            f"memory {self.memory_mb}",
            "capability {} {}".format(*self.capability),
            f"limit {self.limit_w}",
        ]
        curves = {"busy": self.busy, "used": self.used_mb, "temperature": self.temperature_c}
        for word, curve in {**curves, "power": self.power_w, "throttle": self.throttle}.items():
            values = curve if isinstance(curve, Sequence) else [curve]
            lines.append(" ".join([word, *(str(value) for value in values)]))
        lines += [f"process {pid} {-1 if mb is None else mb}" for pid, mb in self.processes.items()]
        lines += [f"error {what} {code}" for what, code in self.errors.items()]
        lines += [] if self.lost_after is None else [f"lost {self.lost_after}"]
        return lines if self.slices is None else [*lines, "mig", *(f"slice {mb}" for mb in self.slices)]


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

    def write(self, path: Path) -> None:
        """Write the scene for the fake to read."""
        major, minor = (int(part) for part in self.cuda.split("."))
        lines = [f"driver {self.driver}", f"cuda {major * 1000 + minor * 10}", f"init {self.init_error}"]
        lines += [f"tick {self.tick_s}", f"start {time.monotonic()}"]
        lines += [f"missing {name}" for name in self.missing]
        for number, card in enumerate(self.cards):
            lines += card._lines(number)
        write_atomic(path, ("\n".join(lines) + "\n").encode())


def fake_uuid(number: int) -> str:
    """The own name of a scripted card that was given none."""
    return f"GPU-{number:08x}-5a5a-5a5a-5a5a-5a5a5a5a5a5a"


def fake_slice_uuid(number: int, part: int) -> str:
    """The own name of a slice of a scripted card."""
    return f"MIG-{number:08x}-5a5a-5a5a-5a5a-{part:012x}"


class FakeNvml:
    """A built fake and the scene that it plays.

    Args:
        folder: Where ``build_fake_nvml`` put it.

    Attributes:
        library: The library.
        environment: What a child process needs so that it meets the fake, ``nvidia-smi`` too.
    """

    def __init__(self, folder: Path) -> None:
        self.library = folder / LIBRARY
        self._scene = folder / "scene.txt"
        self.environment = {
            SCENE_VARIABLE: str(self._scene),
            "LD_LIBRARY_PATH": _first(folder, "LD_LIBRARY_PATH"),
            "PATH": _first(folder, "PATH"),
        }

    def set(self, scene: Scene) -> None:
        """Play this from now on, in every process that uses the fake."""
        scene.write(self._scene)


def _first(folder: Path, variable: str) -> str:
    old = os.environ.get(variable)
    return f"{folder}{os.pathsep}{old}" if old else str(folder)


def build_fake_nvml(folder: Path) -> Path:
    """Compile ``libnvidia-ml.so.1`` into a folder, with an ``nvidia-smi`` beside it; needs a C compiler.

    Returns:
        The library.

    Raises:
        OSError: There is no C compiler, or the file cannot be written.
        subprocess.CalledProcessError: It does not compile; what the compiler said is on stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    options = ["-O1", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-pthread"]
    subprocess.run(["cc", *options, "-o", str(library), str(SOURCE)], check=True)
    command = folder / "nvidia-smi"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m perdure.testing.nvidia_smi "$@"\n')
    command.chmod(0o755)
    return library


@contextmanager
def playing(folder: Path, scene: Scene) -> Iterator[FakeNvml]:
    """Let this process and its children meet the fake; afterwards all is as before.

    Whatever has opened NVML through it must be closed when the block ends.

    Args:
        folder: Where the fake is, or is built.
        scene: What it plays first.
    """
    fake = FakeNvml(folder)
    if not fake.library.exists():
        build_fake_nvml(folder)
    fake.set(scene)
    before = {name: os.environ.get(name) for name in fake.environment}
    os.environ.update(fake.environment)
    try:
        with _in_this_process(fake.library):
            yield fake
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _in_this_process(library: Path) -> Iterator[None]:
    """Put the library where nvidia-ml-py keeps the one that it has loaded; it offers no other way back."""
    import pynvml

    before, known = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    pynvml.nvmlLib = ctypes.CDLL(str(library))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(known)
