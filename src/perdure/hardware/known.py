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
        card: The model as NVML names it, or a part of that; empty for a TPU.
        count: How many cards.
        retired: What is given instead, and why it is said; empty if it can still be had.
    """

    name: str
    shown: str
    card: str
    count: int
    retired: str = ""


ACCELERATORS: dict[str, Accelerator] = {}
"""Kaggle's accelerators by the name in ``machine_shape``."""


def precision(capability: tuple[int, int], name: str = "") -> Precision:
    """Which numbers a card computes fast with.

    Args:
        capability: Its compute capability.
        name: Its model, for the sentence.
    """
    return Precision(False, False, False, "float32", "nothing is known of it")
