"""Kaggle's accelerators by the names that users know.

Nothing here was tried against the real Kaggle. Words and cards: docs/kernels.md of github.com/Kaggle/kaggle-cli
(February 2026) and ``_RETIRED_ACCELERATORS`` of its release 2.2.5; that "T4" is always a pair: pull request 1198
there; that the P100 cannot compute any more: issue 1151 there. ``"None"`` for the processor alone is what many
public notebooks carry and what Kaggle gives back for them; no page of Kaggle says so.
"""

from __future__ import annotations

import re

from perdure.core.errors import RefusedError
from perdure.platforms.protocol import Accelerator

_P100 = "the image's torch has no code for it (sm_60), and Kaggle silently gives two T4 in its place: ask for t4x2"
_OLD_TPU = "this generation of TPU is gone, and Kaggle gives a TPU v5e-8 in its place: ask for tpu-v5e-8"
_OLD_POD = "this TPU is gone, and Kaggle gives the processor alone in its place: ask for tpu-v5e-8"

ACCELERATORS: tuple[Accelerator, ...] = (
    Accelerator("t4x2", "NvidiaTeslaT4", "gpu", 2, "T4"),
    Accelerator("none", "None", None),
    Accelerator("tpu-v5e-8", "TpuV5E8", "tpu"),
    Accelerator("tpu-v6e-8", "TpuV6E8", "tpu"),
    Accelerator("l4x1", "NvidiaL4X1", "gpu", 1, "L4"),
    Accelerator("l4x4", "NvidiaL4", "gpu", 4, "L4"),
    Accelerator("a100", "NvidiaTeslaA100", "gpu", 1, "A100"),
    Accelerator("h100", "NvidiaH100", "gpu", 1, "H100"),
    Accelerator("rtx-pro-6000", "NvidiaRtxPro6000", "gpu", 1, "RTX PRO 6000"),
    Accelerator("p100", "NvidiaTeslaP100", "gpu", 1, "P100", retired=_P100),
    Accelerator("tpu-v3-8", "TpuV38", "tpu", retired=_OLD_TPU),
    Accelerator("tpu-vm-v3-8", "Tpu1VmV38", "tpu", retired=_OLD_TPU),
    Accelerator("tpu-v2-32", "TpuV232", "tpu", retired=_OLD_POD),
    Accelerator("tpu-v2-256", "TpuV2256", "tpu", retired=_OLD_POD),
)
"""What can be asked for, the default first, then by how many accounts may have it; the retired ones last."""

_ALSO = {
    "t4": "t4x2",
    "2xt4": "t4x2",
    "gpu": "t4x2",
    "cpu": "none",
    "tpu": "tpuv5e8",
    "l4": "l4x1",
    "gput4x2": "t4x2",
}


def accelerator(text: str) -> Accelerator:
    """The accelerator that a user means.

    Args:
        text: ``"t4x2"``, ``"T4 x2"``, ``"NvidiaTeslaT4"``, ``"gpu"``, ``"cpu"``; case, spaces and signs count
            for nothing.

    Raises:
        RefusedError: ``"accelerator"``: there is none of that name, or it is retired.
    """
    key = _plain(text)
    key = _ALSO.get(key, key)
    for known in ACCELERATORS:
        if key in (_plain(known.name), _plain(known.word)):
            if known.retired:
                raise RefusedError(
                    f"the accelerator {known.name} cannot be had on Kaggle any more",
                    code="accelerator",
                    hint=known.retired,
                )
            return known
    names = ", ".join(known.name for known in ACCELERATORS if not known.retired)
    raise RefusedError(f"Kaggle has no accelerator {text!r}", code="accelerator", hint=f"one of {names}")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
