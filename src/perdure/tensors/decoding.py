"""The tree of a checkpoint, from its JSON values and buffers: the reverse of ``encoding.flatten``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from perdure.checkpoint import values
from perdure.core.errors import CorruptError
from perdure.tensors import dtypes
from perdure.tensors.carried import LIVE_CODE, GeneratorState, Pickled, note_device

_ALIGNMENT = 64  # of torch's own memory on the host: results of a kernel may depend on it

Read = Callable[[str], Any]
"""Bytes of the buffer of a name, as anything that ``numpy.frombuffer`` takes."""


def unflatten(document: Any, read: Read) -> Any:
    """Build the tree again.

    Args:
        document: The JSON form that ``flatten`` gave.
        read: Gives the bytes of a buffer by its name.

    Returns:
        The tree. Tensors are new, on the CPU, own writable memory, and share it where they did.

    Raises:
        CorruptError: A reference is malformed or reaches outside its buffer.
    """
    decoder = _Decoder(read)
    try:
        return values.decode(document, decoder.leaf)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"a saved value is malformed: {error!r}", path="manifest.json") from error


class _Decoder:
    def __init__(self, read: Read) -> None:
        self._read = read
        self._memory: dict[str, tuple[torch.Tensor, int]] = {}

    def leaf(self, form: dict[str, Any]) -> Any:
        """The value of a tagged object that plain values do not cover."""
        kind = form["$"]
        if kind in _SMALL:
            return _SMALL[kind](form)
        if kind not in _LARGE:
            raise CorruptError(f"a saved value is of an unknown kind: {kind!r}", path="manifest.json")
        return _LARGE[kind](self, form)

    def _generator(self, form: dict[str, Any]) -> GeneratorState:
        return GeneratorState(values.decode(form["v"], self.leaf))

    def _pickle(self, form: dict[str, Any]) -> Pickled:
        return Pickled.from_bytes(self._array(form["v"]).tobytes())

    def _tensor(self, form: dict[str, Any]) -> torch.Tensor:
        dtype, shape = dtypes.named(form["dtype"]), form["shape"]
        if "entry" in form:
            tensor = self._view(form, dtype, shape)
        else:
            tensor = torch.empty(shape, dtype=dtype)
            if tensor.numel():
                raise CorruptError(f"a tensor of shape {shape} has no bytes", path="manifest.json")
        if form.get("parameter"):
            return torch.nn.Parameter(tensor, requires_grad=bool(form.get("requires_grad")))
        return tensor.requires_grad_() if form.get("requires_grad") else tensor

    def _view(self, form: dict[str, Any], dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        memory, start, strides = self._locate(form, dtype.itemsize)
        steps = [step // dtype.itemsize for step in strides]
        with warnings.catch_warnings():
            if dtype is torch.complex32:
                warnings.simplefilter("ignore", UserWarning)  # "ComplexHalf support is experimental"
            empty = torch.empty(0, dtype=dtype)
        return empty.set_(memory.untyped_storage(), start // dtype.itemsize, shape, steps)

    def _array(self, form: dict[str, Any]) -> np.ndarray[Any, Any]:
        dtype, shape = _dtype(form["dtype"]), tuple(form["shape"])
        if "entry" not in form:
            return np.zeros(shape, dtype)
        memory, start, strides = self._locate(form, dtype.itemsize)
        return np.ndarray(shape, dtype, memory.numpy(), start, tuple(strides))

    def _sparse(self, form: dict[str, Any]) -> torch.Tensor:
        shape, data = form["shape"], self._tensor(form["values"])
        if form["layout"] == "sparse_coo":
            indices = self._tensor(form["indices"])
            tensor = torch.sparse_coo_tensor(
                indices, data, shape, is_coalesced=form["coalesced"], check_invariants=True
            )
        else:
            compressed, plain = self._tensor(form["compressed"]), self._tensor(form["plain"])
            layout = getattr(torch, form["layout"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "Sparse CSR tensor support is in beta state"
                tensor = torch.sparse_compressed_tensor(
                    compressed, plain, data, shape, layout=layout, check_invariants=True
                )
        return tensor.requires_grad_() if form.get("requires_grad") else tensor

    def _locate(self, form: dict[str, Any], itemsize: int) -> tuple[torch.Tensor, int, list[int]]:
        """Memory of a reference, byte at which its first element begins, and its strides in bytes."""
        memory, lead = self._memory_of(form["entry"], form.get("lead", 0))
        shape = form["shape"]
        strides = form.get("strides")
        if strides is None:
            strides = [itemsize] * len(shape)
            for axis in range(len(shape) - 2, -1, -1):
                strides[axis] = strides[axis + 1] * shape[axis + 1]
        start = lead + form.get("offset", 0)
        reach = [(size - 1) * step for size, step in zip(shape, strides, strict=True)]
        first = start + sum(r for r in reach if r < 0)
        last = start + sum(r for r in reach if r > 0) + itemsize
        if first < lead or last > memory.numel() or min(shape, default=1) < 1:
            raise CorruptError(f"{form['entry']}: a tensor reaches outside its bytes", path="manifest.json")
        return memory, start, strides

    def _memory_of(self, entry: str, lead: int) -> tuple[torch.Tensor, int]:
        """The bytes of a buffer in memory of our own, kept at the alignment that they had when they were saved."""
        if entry not in self._memory:
            self._memory[entry] = _owned(np.frombuffer(self._read(entry), np.uint8), lead)
        return self._memory[entry]


def _owned(data: np.ndarray[Any, Any], lead: int) -> tuple[torch.Tensor, int]:
    """As a tensor: the memory itself where it may be written to and is aligned as torch's own, else a copy."""
    if not lead and data.size and data.flags.writeable and data.__array_interface__["data"][0] % _ALIGNMENT == 0:
        return torch.from_numpy(data), 0
    memory = torch.empty(lead + data.size, dtype=torch.uint8)
    memory.numpy()[lead:] = data
    return memory, lead


def _placed(tensor: torch.Tensor, form: dict[str, Any]) -> torch.Tensor:
    return note_device(tensor, form["device"]) if "device" in form else tensor


def _dtype(form: Any) -> np.dtype[Any]:
    dtype = np.lib.format.descr_to_dtype(values.decode(form, lambda tagged: tagged))
    if dtype.hasobject:
        raise CorruptError("an array of Python objects cannot come from a checkpoint", path="manifest.json")
    return dtype


# of the class, not of each decoder: one that referred to itself would hold a checkpoint until the next collection
_LARGE: dict[str, Callable[[_Decoder, dict[str, Any]], Any]] = {
    "tensor": lambda decoder, form: _placed(decoder._tensor(form), form),
    "array": _Decoder._array,
    "sparse": lambda decoder, form: _placed(decoder._sparse(form), form),
    "generator": _Decoder._generator,
    "pickle": _Decoder._pickle,
}

_SMALL: dict[str, Callable[[dict[str, Any]], Any]] = {
    "code": lambda form: LIVE_CODE,
    "device": lambda form: torch.device(form["v"]),
    "dtype": lambda form: dtypes.named(form["v"]),
    "numpy-dtype": lambda form: _dtype(form["v"]),
    "scalar": lambda form: np.frombuffer(bytes.fromhex(form["v"]), _dtype(form["dtype"]))[0],
    "size": lambda form: torch.Size(form["v"]),
}
