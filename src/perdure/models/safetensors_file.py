"""``.safetensors``: named tensors and nothing else; complete for readers that know no ties."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from perdure.models.formats import Format, Parity, Source, register
from perdure.models.proof import prove_weights
from perdure.models.tensors import check_tensors, full_bytes, left_out, plain_tensors

_USE_PTH = 'use the format "pth"'
_CANNOT_HOLD = dict.fromkeys(
    (
        getattr(torch, name)
        for name in (
            "complex32",
            "complex128",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
        )
        if hasattr(torch, name)
    ),
    _USE_PTH,
)
"""Types that it, or a version of it that people have, has no word for."""


def _check(source: Source) -> None:
    check_tensors(source, "a safetensors file", _CANNOT_HOLD)


def _write(source: Source, path: Path) -> tuple[str, ...]:
    seen: set[int] = set()
    copies = {}
    for name, tensor in plain_tensors(source).items():
        copies[name] = tensor.clone() if id(tensor) in seen else tensor
        seen.add(id(tensor))
    try:
        save_file(copies, path, metadata={"format": "pt"})  # transformers refuses files without this word
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):  # it has no other way to say which
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise
    return left_out(source)


def _prove(source: Source, path: Path) -> Parity:
    return prove_weights(source, path, "safetensors", "safetensors.torch.load_file")


SAFETENSORS = register(
    Format("safetensors", ".safetensors", "torch", "named tensors, no code", _check, full_bytes, _write, _prove)
)
