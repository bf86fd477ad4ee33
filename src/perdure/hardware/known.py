"""What is known of cards and accelerators beforehand: facts with their sources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """Which numbers a card computes fast with.

    Attributes:
        fp16: It has fast half precision.
        bf16: It has fast bfloat16.
        tf32: It has fast TF32 matrix products for float32.
        advice: What to train in, in a few words: ``"float16 autocast with a GradScaler"``.
        reason: Why.
    """

    fp16: bool
    bf16: bool
    tf32: bool
    advice: str
    reason: str


@dataclass(frozen=True)
class Accelerator:
    """An accelerator that a platform lends by name.

    Attributes:
        name: The platform's word: ``"NvidiaTeslaT4"``.
        shown: As its menu says it: ``"GPU T4 x2"``.
        card: A part of the model as NVML names it; empty for a TPU.
        count: How many cards; 0 if not known for sure.
        retired: Why it cannot be had any more; empty if it can.
        instead: The accelerator that is given in its place; ``"CPU"`` for none.
    """

    name: str
    shown: str
    card: str
    count: int = 0
    retired: str = ""
    instead: str = ""


_NO_P100 = "the image's torch has no code for it (sm_60): the first kernel fails"
_OLD_TPU = "this generation of TPU is gone"

ACCELERATORS: dict[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator("NvidiaTeslaT4", "GPU T4 x2", "T4", 2),
        Accelerator("NvidiaTeslaT4Highmem", "GPU T4 x2 (high memory)", "T4"),
        Accelerator("NvidiaTeslaP100", "GPU P100", "P100", 1, _NO_P100, "NvidiaTeslaT4"),
        Accelerator("NvidiaTeslaA100", "GPU A100", "A100"),
        Accelerator("NvidiaL4", "GPU L4 x4", "L4", 4),
        Accelerator("NvidiaL4X1", "GPU L4 x1", "L4", 1),
        Accelerator("NvidiaH100", "GPU H100", "H100"),
        Accelerator("NvidiaRtxPro6000", "GPU RTX Pro 6000", "RTX PRO 6000"),
        Accelerator("TpuV5E8", "TPU v5e-8", ""),
        Accelerator("TpuV6E8", "TPU v6e-8", ""),
        Accelerator("TpuV38", "TPU v3-8", "", 0, _OLD_TPU, "TpuV5E8"),
        Accelerator("Tpu1VmV38", "TPU VM v3-8", "", 0, _OLD_TPU, "TpuV5E8"),
        Accelerator("TpuV232", "TPU v2-32", "", 0, _OLD_TPU, "CPU"),
        Accelerator("TpuV2256", "TPU v2-256", "", 0, _OLD_TPU, "CPU"),
    )
}
"""Kaggle's accelerators by the name in ``machine_shape``.

Names: github.com/Kaggle/kaggle-cli, docs/kernels.md, February 2026, and ``_RETIRED_ACCELERATORS`` of its release
2.2.5 for what is given instead. That T4 is always a pair: pull request 1198 there. P100: issue 1151 there.
"""

_SCALED = "float16 autocast with a GradScaler"
_BFLOAT = "bfloat16 autocast"


def precision(capability: tuple[int, int], name: str = "") -> Precision:
    """Which numbers a card computes fast with.

    Sources: CUDA C++ Programming Guide, "Arithmetic Instructions" (throughput by compute capability) and "Tensor
    Cores" (types from 7.0: half; from 8.0: bfloat16 and TF32); data sheets of the cards.

    Args:
        capability: Its compute capability.
        name: Its model, for the sentence.
    """
    who = name or "this card"
    if capability >= (8, 0):
        why = f"{who} has tensor cores for bfloat16, whose range is that of float32: no loss scaling is needed"
        return Precision(True, True, True, _BFLOAT, why)
    if capability == (7, 5) and "GTX 16" in name:  # data sheet: the only 7.5 without tensor cores
        why = f"{who} has no tensor cores; float16 is twice as fast as float32 at best"
        return Precision(True, False, False, _SCALED, why)
    if capability >= (7, 0):
        why = (
            f"{who} has tensor cores for float16 only; bfloat16 runs, but slowly, and frameworks may still say "
            "that it is supported"
        )
        return Precision(True, False, False, _SCALED, why)
    if capability == (6, 0):
        return Precision(False, False, False, "float32", f"{who} has no tensor cores; float16 saves memory only")
    return Precision(False, False, False, "float32", f"{who} computes float16 slower than float32, or not at all")
