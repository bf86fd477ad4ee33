"""The machines of the emulated platform: what a push may ask for, and what a session then meets by NVML."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perdure.testing.nvml import LIBRARY, NO_LIBRARY, SCENE_VARIABLE, FakeCard, Scene, build_fake_nvml

Resource = Literal["cpu", "gpu", "tpu"]


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        word: What the platform calls it; empty for the processor alone.
        resource: Whose hours it uses.
        cards: Its cards.
    """

    word: str
    resource: Resource
    cards: tuple[FakeCard, ...] = ()


_T4 = FakeCard()
_P100 = FakeCard("Tesla P100-PCIE-16GB", memory_mb=16384, capability=(6, 0), limit_w=250)
_L4 = FakeCard("NVIDIA L4", memory_mb=23034, capability=(8, 9), limit_w=72)
_A100 = FakeCard("NVIDIA A100-SXM4-40GB", memory_mb=40960, capability=(8, 0), limit_w=400)
_H100 = FakeCard("NVIDIA H100 80GB HBM3", memory_mb=81559, capability=(9, 0), limit_w=700)
_RTX = FakeCard("NVIDIA RTX PRO 6000 Blackwell", memory_mb=97887, capability=(12, 0), limit_w=600)

CPU = Machine("", "cpu")

MACHINES = {
    each.word: each
    for each in (
        CPU,
        Machine("NvidiaTeslaT4", "gpu", (_T4, _T4)),
        Machine("NvidiaTeslaT4Highmem", "gpu", (_T4, _T4)),
        Machine("NvidiaTeslaP100", "gpu", (_P100,)),
        Machine("NvidiaL4", "gpu", (_L4,) * 4),
        Machine("NvidiaL4X1", "gpu", (_L4,)),
        Machine("NvidiaTeslaA100", "gpu", (_A100,)),
        Machine("NvidiaH100", "gpu", (_H100,)),
        Machine("NvidiaRtxPro6000", "gpu", (_RTX,)),
        Machine("TpuV5E8", "tpu"),
        Machine("TpuV6E8", "tpu"),
    )
}
"""By the platform's word. A "T4" is always two (kaggle-cli PR 1198)."""

RETIRED = {
    "NvidiaTeslaP100": "NvidiaTeslaT4",
    "TpuV38": "TpuV5E8",
    "Tpu1VmV38": "TpuV5E8",
    "TpuV232": "",
    "TpuV2256": "",
}
"""What is given instead without a word (kaggle 2.2.5, ``_RETIRED_ACCELERATORS``)."""


def given(shape: str, *, gpu: bool, tpu: bool) -> Machine:
    """The machine that a push gets.

    Args:
        shape: ``machineShape``; empty if it named none.
        gpu: ``enableGpu``.
        tpu: ``enableTpu``.
    """
    word = shape or ("NvidiaTeslaT4" if gpu else "TpuV5E8" if tpu else "")
    word = "" if word.lower() in ("none", "cpu") else word
    return MACHINES.get(RETIRED.get(word, word), MACHINES["NvidiaTeslaT4"])


class Scenery:
    """The fake NVML of all sessions, and a scene for each.

    Args:
        folder: Where the fakes are built.

    Attributes:
        trouble: Why there are none; empty if there are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.trouble = ""
        try:
            _build(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            self.trouble = f"no emulated cards: the fake NVML cannot be built, is there a C compiler? ({error})"

    def environment(self, machine: Machine, scene: Path, path: str, *, nvidia_smi: bool) -> dict[str, str]:
        """What a session on this machine needs so that it meets its cards, and none of the real machine.

        Args:
            machine: The machine.
            scene: Where its scene is written.
            path: ``PATH``.
            nvidia_smi: Whether it finds that command.
        """
        if self.trouble:
            return {}
        (Scene(machine.cards) if machine.cards else Scene(init_error=NO_LIBRARY)).write(scene)
        told = {SCENE_VARIABLE: str(scene), "LD_LIBRARY_PATH": str(self._folder)}
        return {**told, "PATH": f"{self._folder}:{path}"} if nvidia_smi and machine.cards else told


_built: dict[str, bytes] = {}
"""What was compiled by this process: it takes longer than all else at the start of an emulator."""


def _build(folder: Path) -> None:
    if (folder / LIBRARY).exists():
        return
    if not _built:
        build_fake_nvml(folder)
        _built.update({path.name: path.read_bytes() for path in folder.iterdir()})
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in sorted(_built.items(), reverse=True):  # the library last: it says that all is there
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)
