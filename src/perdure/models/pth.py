"""``.pth``: a plain state_dict; and, on request, the classic dict of epoch, model and optimizer state."""

from __future__ import annotations

from pathlib import Path

import torch

from perdure.models.formats import Format, Parity, Source, register
from perdure.models.proof import prove_weights
from perdure.models.tensors import HEADROOM_BYTES, check_tensors, full_bytes, left_out, on_cpu_plain, plain_tensors

MODEL_KEY = "model_state_dict"
"""Where the classic dict has the weights; the name that the tutorials of PyTorch use."""

LOADER = "torch.load(weights_only=True)"


def _check(source: Source) -> None:
    check_tensors(source, "a pth file", {})


def _write(source: Source, path: Path) -> tuple[str, ...]:
    _save(plain_tensors(source), path)
    return left_out(source)


def _write_classic(source: Source, path: Path) -> tuple[str, ...]:
    _save({**on_cpu_plain(source.classic), MODEL_KEY: plain_tensors(source)}, path)
    return left_out(source)


def _save(value: object, path: Path) -> None:
    with open(path, "wb") as file:  # given a path, torch.save would write the name into the file
        torch.save(value, file)


def _prove(source: Source, path: Path) -> Parity:
    return prove_weights(source, path, "pth", LOADER)


def _prove_classic(source: Source, path: Path) -> Parity:
    return prove_weights(source, path, "pth", LOADER, MODEL_KEY)


def _classic_bytes(source: Source) -> int:
    return full_bytes(source) + HEADROOM_BYTES + _tensor_bytes(source.classic)


def _tensor_bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(_tensor_bytes(each) for each in value.values())
    return sum(_tensor_bytes(each) for each in value) if isinstance(value, (list, tuple)) else 0


PTH = register(Format("pth", ".pth", "torch", "a plain state_dict", _check, full_bytes, _write, _prove))
CLASSIC = register(
    Format(
        "pth-classic",
        "-classic.pth",
        "torch",
        "the classic dict of epoch, model and optimizer state",
        _check,
        _classic_bytes,
        _write_classic,
        _prove_classic,
    )
)
