"""Element types in a checkpoint: safetensors' names for the bytes, torch's and numpy's own names for the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_NATURAL = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_PAIRS = {torch.complex128: "F64", torch.complex32: "F16"}
"""No safetensors name of their own: (real, imaginary) as a last axis."""

_BYTES = {
    getattr(torch, name)
    for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")
    if hasattr(torch, name)  # float4 came after 2.6
}
"""One byte each, without a name that every safetensors version knows."""

_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in (*_NATURAL, *_PAIRS, *_BYTES)}

_NUMPY = {"b1": "BOOL", "c8": "C64"} | {
    f"{kind}{size}": f"{kind.upper()}{size * 8}"
    for kind in "iuf"
    for size in (1, 2, 4, 8)
    if kind + str(size) != "f1"
}


def can_carry(dtype: torch.dtype) -> bool:
    """Whether a tensor's bytes are its value: not so for quantised types, whose scale lies elsewhere."""
    return dtype in _NAMES


def stored_as(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """safetensors' name and shape for the bytes of a tensor of a type that ``can_carry`` accepts."""
    if dtype in _PAIRS:
        return _PAIRS[dtype], (*shape, 2)
    return _NATURAL.get(dtype, "U8"), shape


def array_stored_as(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """safetensors' name and shape for the bytes of an array; strings, dates and records go as bytes."""
    name = _NUMPY.get(f"{dtype.kind}{dtype.itemsize}") if dtype.isnative else None
    return (name, shape) if name else ("U8", (*shape, dtype.itemsize))


def name_of(dtype: torch.dtype) -> str:
    """``"float32"`` for ``torch.float32``."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def named(name: str) -> torch.dtype:
    """The type that ``name_of`` named.

    Raises:
        ValueError: This torch has none of that name.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype
