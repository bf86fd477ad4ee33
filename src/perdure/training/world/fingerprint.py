"""Whether plain values are still the same, without keeping a copy of them."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, Final

import numpy as np
import torch
import xxhash

from perdure.tensors.encoding import octets

SCALARS: Final = (type(None), bool, int, float, complex, str, bytes)
"""Types whose values cannot change in place."""

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)


class _NotPlain(Exception):
    """Something in the value is no data."""


def fingerprint(value: Any) -> Any:
    """Equal for equal plain values, hashable, and small.

    Args:
        value: Numbers, strings, None, tensors, arrays, and containers of them.

    Returns:
        The fingerprint, or None where the value is not plain: objects, functions, parameters of a module,
        tensors that belong to a graph.
    """
    if type(value) in SCALARS:
        return _scalar(value)
    digest = xxhash.xxh3_128()
    try:
        _feed(digest, value, 0)
    except (_NotPlain, RecursionError):
        return None
    return digest.digest()


def is_constant(value: Any) -> bool:
    """Whether a value is the same for as long as it is this very object."""
    return type(value) in SCALARS or (type(value) is tuple and all(type(item) in SCALARS for item in value))


def _scalar(value: Any) -> tuple[str, Any]:
    if type(value) is float and not math.isfinite(value):
        return ("float", repr(value))
    return (type(value).__name__, value)


def _feed(digest: xxhash.xxh3_128, value: Any, depth: int) -> None:
    kind = type(value)
    if depth > 50:
        raise _NotPlain
    if kind in SCALARS or isinstance(value, (np.generic, torch.dtype, torch.device, torch.Size, range)):
        digest.update(f"{kind.__name__}{value!r}".encode("utf-8", "surrogatepass"))
    elif isinstance(value, torch.Tensor):
        _feed_tensor(digest, value)
    elif kind is np.ndarray and not value.dtype.hasobject:
        digest.update(f"array{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif kind in _MAPPINGS:
        digest.update(f"{kind.__name__}{len(value)}".encode())
        for key, item in value.items():
            _feed(digest, key, depth + 1)
            _feed(digest, item, depth + 1)
    elif kind in _SEQUENCES:
        digest.update(f"{kind.__name__}{len(value)}".encode())
        for item in value:
            _feed(digest, item, depth + 1)
    elif kind in _SETS:
        digest.update(f"{kind.__name__}{sorted(map(repr, value))}".encode("utf-8", "surrogatepass"))
    else:
        raise _NotPlain


def _feed_tensor(digest: xxhash.xxh3_128, tensor: torch.Tensor) -> None:
    if type(tensor) is not torch.Tensor or tensor.grad_fn is not None or tensor.is_meta or tensor.is_quantized:
        raise _NotPlain
    digest.update(f"tensor{tensor.dtype}{tuple(tensor.shape)}{tensor.layout}".encode())
    data = tensor.detach()
    if data.layout is not torch.strided:
        data = data.to_dense()
    data = data.resolve_conj().resolve_neg().cpu().contiguous()
    digest.update(octets(data).numpy().data)
