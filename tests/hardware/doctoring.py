"""Machines to look at: scripted cards by the fake NVML, scripted frameworks by a child that plays them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.checkup.checks import Checkup
from perdure.checkup.doctor import Look, look
from perdure.core.settings import REACH, ROOT
from perdure.testing.nvml import FakeCard, Scene, playing

PLAYER = """
import ctypes, json, os, subprocess, sys, time
for line in json.load(open(sys.argv[1])).get(sys.argv[2], [{"installed": False}, {"done": True}]):
    if isinstance(line, dict):
        print(json.dumps(line), flush=True)
    elif line.startswith("print "):
        print(line[6:], flush=True)
    elif line == "segv":
        os.kill(os.getpid(), 11)
    elif line == "hang":
        time.sleep(600)
    elif line.startswith("exit "):
        print("the reason", file=sys.stderr)
        os._exit(int(line[5:]))
    else:  # Python
        exec(line)
"""

GPU_LINES = ("driver", "card", "accelerator", "torch", "tensorflow", "keras", "gpu")

T4, P100, A100 = "Tesla T4", "Tesla P100-PCIE-16GB", "NVIDIA A100-SXM4-40GB"
CAPABILITY = {T4: [7, 5], P100: [6, 0], A100: [8, 0]}
MODERN = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
NO_IMAGE = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"


def player(folder: Path, played: Mapping[str, Sequence[Any]]) -> list[str]:
    """The command of a child that plays frameworks: documents are printed, words are done."""
    program, scene = folder / "player.py", folder / "played.json"
    program.write_text(PLAYER)
    scene.write_text(json.dumps({name: list(lines) for name, lines in played.items()}))
    return [sys.executable, "-I", "-S", str(program), str(scene)]


def torch_begins(build: str = "CUDA 12.8", version: str = "2.10.0+cu128") -> list[Any]:
    return [
        {"installed": True, "stage": "importing torch"},
        {"version": version, "build": build, "stage": "looking for cards"},
    ]


def on_card(number: int, name: str, **outcome: Any) -> list[Any]:
    place = f"cuda:{number}"
    stage = f"running a kernel on {place} ({name})"
    seen = {"device": place, "name": name, "capability": CAPABILITY[name], "stage": stage}
    return [seen, {"device": place, **outcome}] if outcome else [seen]


def torch_on(*names: str, **outcome: Any) -> list[Any]:
    """torch of a modern image, and what comes of computing on each of its cards."""
    outcome = outcome or {"seconds": 0.4, "right": True, "off": 1e-6}
    cards = [line for number, name in enumerate(names) for line in on_card(number, name, **outcome)]
    return [*torch_begins(), {"architectures": MODERN}, *cards, {"done": True}]


def tensorflow_on(*names: str, build: str = "CUDA 12.5") -> list[Any]:
    cards: list[Any] = []
    for number, name in enumerate(names):
        place = f"GPU:{number}"
        cards += [
            {
                "device": place,
                "name": name,
                "capability": CAPABILITY[name],
                "stage": f"running a kernel on {place}",
            },
            {"device": place, "seconds": 0.6, "right": True, "off": 1e-6},
        ]
    begin = [{"installed": True, "stage": "importing tensorflow"}, {"version": "2.20.0", "build": build}]
    return [*begin, *cards, {"done": True}]


def keras_on(place: str, backend: str = "tensorflow") -> list[Any]:
    return [
        {"installed": True, "stage": "importing keras"},
        {"version": "3.13.2", "backend": backend, "stage": "running a kernel where Keras computes"},
        {"device": place, "seconds": 0.1, "right": True, "off": 1e-6},
        {"done": True},
    ]


def healthy(*names: str) -> dict[str, list[Any]]:
    """All three frameworks, all well."""
    return {"torch": torch_on(*names), "tensorflow": tensorflow_on(*names), "keras": keras_on("GPU:0")}


def cards(*names: str, **facts: Any) -> Scene:
    sizes = {T4: 15360, P100: 16384, A100: 40960}
    each = [FakeCard(name, memory_mb=sizes[name], capability=tuple(CAPABILITY[name]), **facts) for name in names]
    return Scene(each)


def examine(
    fake: Path,
    folder: Path,
    scene: Scene,
    played: Mapping[str, Sequence[Any]],
    *,
    kaggle: str = "",
    required: str = "",
    limit_s: float = 60.0,
    smi: bool = True,
    **environment: str,
) -> Checkup:
    """A look at such a machine. ``kaggle`` is the kind of its session, ``smi`` whether nvidia-smi is there."""
    with playing(fake, scene):
        own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        told = {**own, REACH: "off", ROOT: str(folder / "runs"), **environment}
        if kaggle:
            told |= {"KAGGLE_KERNEL_RUN_TYPE": kaggle}
        if not smi:
            told["PATH"] = "/nonexistent"
        return look(Look(required, told, command=player(folder, played), stage_limit_s=limit_s))


def troubles(checkup: Checkup) -> dict[str, str]:
    """The lines about cards and frameworks that are no good, with their states."""
    return {
        check.name: check.state
        for check in checkup.checks
        if check.name.split(" ")[0] in GPU_LINES and check.state in ("warning", "failed")
    }
