"""Is there NaN or Inf in these bytes? Asked of the copy of a parameter, beside the training."""

from __future__ import annotations

import math

import numpy as np

_EXPONENT = {
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.uint32, 0x7F80_0000),
    "C64": (np.uint32, 0x7F80_0000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}
"""By safetensors' name: what to read numbers as, and the bits that are all set in NaN and Inf only (IEEE 754)."""

_SUMMED = {"F64": np.float64, "F32": np.float32, "C64": np.float32}
_CHUNK_BYTES = 1024 * 1024


def holds_nan_or_inf(data: memoryview, dtype: str) -> bool:
    """Whether one of the numbers is NaN or Inf; False for types that have neither.

    Args:
        data: Contiguous bytes.
        dtype: safetensors' name of the type.
    """
    if dtype not in _EXPONENT:
        return False
    return any(
        not _sum_is_finite(data[begin : begin + _CHUNK_BYTES], dtype)
        and _bits_say(data[begin : begin + _CHUNK_BYTES], dtype)
        for begin in range(0, data.nbytes, _CHUNK_BYTES)
    )


def _sum_is_finite(data: memoryview, dtype: str) -> bool:
    """A finite sum proves that all are finite, faster than a look at each."""
    if dtype not in _SUMMED:
        return False
    with np.errstate(all="ignore"):
        return math.isfinite(float(np.add.reduce(np.frombuffer(data, _SUMMED[dtype]))))


def _bits_say(data: memoryview, dtype: str) -> bool:
    unsigned, mask = _EXPONENT[dtype]
    bits = np.frombuffer(data, unsigned) & unsigned(mask)
    return bool((bits == mask).any())
