"""Tensors as rows of a table: type, shape, numbers that are none, ties."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xxhash

from perdure.models.report import Row

_CHUNK = 16_000_000
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What torch's normalisation layers keep beside their parameters."""


_COUNTERS = ("bool", "int32", "int64", "uint32", "uint64")
"""Steps, positions and seeds; whole numbers that were learnt are quantised to 8 bits or fewer."""


def rows_of(named: Iterable[tuple[str, Any]]) -> list[Row]:
    """One row a tensor or array; each is looked at once and not kept."""
    rows: list[Row] = []
    seen: dict[str, str] = {}
    for name, value in named:
        row, mark = _row(name, as_tensor(value))
        if mark:
            row = row if (first := seen.setdefault(mark, name)) == name else _tied(row, first)
        rows.append(row)
    return rows


def parameters_of(rows: Iterable[Row]) -> int:
    """Numbers that were learnt: each tie once, without running statistics and whole-number counters."""
    return sum(
        row.values
        for row in rows
        if not row.same_as and row.name.rpartition(".")[2] not in _STATISTICS and row.dtype not in _COUNTERS
    )


def as_tensor(value: Any) -> torch.Tensor:
    """A tensor or array as a dense tensor on the CPU."""
    if not isinstance(value, torch.Tensor):
        value = np.asarray(value)
        if value.dtype.name == "bfloat16":
            return torch.from_numpy(np.ascontiguousarray(value).view(np.int16)).view(torch.bfloat16)
        if value.dtype.kind not in "biufc":
            return (
                torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.nbytes else torch.empty(0)
            )
        value = value.astype(value.dtype.newbyteorder("="), order="C", copy=not value.flags.writeable)
        return torch.from_numpy(value)
    if value.is_quantized:
        return value.dequantize()
    if value.layout != torch.strided:
        return value.coalesce().values() if value.layout == torch.sparse_coo else value.values()
    return value.detach().cpu() if value.device.type != "meta" else value.detach()


def _tied(row: Row, first: str) -> Row:
    return Row(row.name, row.dtype, row.shape, row.values, row.bytes, row.nan, row.inf, first)


def _row(name: str, tensor: torch.Tensor) -> tuple[Row, str]:
    """The row, and a mark that two tensors share if they hold the same numbers; empty where that says nothing."""
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if tensor.device.type == "meta" or not tensor.numel():
        return Row(name, dtype, shape, tensor.numel(), tensor.nbytes), ""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    nan = inf = 0
    if tensor.is_floating_point() or tensor.is_complex():
        for chunk in flat.split(_CHUNK):
            wide = chunk.float() if chunk.dtype.itemsize == 1 else chunk  # torch cannot ask 8 bit types
            if not bool(wide.isfinite().all()):
                nan, inf = nan + int(wide.isnan().sum()), inf + int(wide.isinf().sum())
    return Row(name, dtype, shape, flat.numel(), flat.nbytes, nan, inf), _mark(flat, dtype, shape)


def _mark(flat: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> str:
    data: Any = flat.view(torch.uint8).numpy()
    if len(data) < 64 or _constant(data, flat.dtype.itemsize):  # zeros and ones are alike by chance
        return ""
    return f"{dtype} {shape} {xxhash.xxh3_128_hexdigest(data)}"


def _constant(data: Any, itemsize: int) -> bool:
    first = data[:itemsize]
    return bool((data[-itemsize:] == first).all() and (data.reshape(-1, itemsize) == first).all())
