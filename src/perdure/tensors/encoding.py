"""A state tree as JSON values and named buffers, and back.

A tree is made of the values of ``perdure.checkpoint.values`` with torch tensors, numpy arrays and scalars, random
generators and torch's small value types as leaves. Tensors and arrays that overlap in memory are stored once and
come back as views of one memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from perdure.checkpoint import values
from perdure.checkpoint.snapshot import Buffer
from perdure.core.errors import CannotCarryError
from perdure.data.generators import GENERATOR_TYPES, state_of
from perdure.tensors import dtypes
from perdure.tensors.carried import At, GeneratorState, LiveCode, Pickled
from perdure.tensors.decoding import unflatten
from perdure.tensors.regions import Block, Extent, block_of, extent_of, overlapping
from perdure.tensors.streaming import STREAM_FROM_BYTES, CardBytes

__all__ = ["Encoded", "Group", "Leaf", "encode", "flatten", "to_buffers", "unflatten"]

_OPT_IN = (
    "keep numbers, strings, arrays, tensors and containers of them; or, if you trust every checkpoint that you "
    "will load, wrap it: perdure.Pickled(...)"
)
_PART = re.compile(r'\["(.*?)"\]|\[(.*?)\]|([^\[]+)')
_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_COMPRESSED = {
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
}


@dataclass(slots=True)
class Leaf:
    """One named piece of memory of a tree, not yet copied.

    Attributes:
        name: Unique within the tree, for example ``model/fc.weight``.
        kind: ``"tensor"``, ``"array"`` or ``"bytes"``.
        dtype: safetensors' name of the type.
        shape: Sizes.
        data: Contiguous tensor or array whose bytes these are: the live memory wherever possible.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    data: torch.Tensor | np.ndarray[Any, Any]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.data.nbytes


def flatten(tree: Any) -> tuple[Any, list[Leaf]]:
    """Split a tree into JSON values and named memory.

    Args:
        tree: As ``World.capture`` gives it, or any nesting of what a tree may hold.

    Returns:
        The JSON form, with the name of a leaf wherever a tensor or array was, and the leaves in the tree's order.

    Raises:
        CannotCarryError: Something in it has no data-only form; the error names its place.
    """
    encoded = encode(tree)
    return encoded.document, encoded.leaves()


def encode(tree: Any) -> Encoded:
    """The first half of ``flatten``: what must be done before anything in the tree changes.

    Raises:
        CannotCarryError: As for ``flatten``.
    """
    encoder = _Encoder()
    document = encoder.encode(tree, "")
    return Encoded(document, [Group(extents) for extents in overlapping(encoder.extents)])


class Group:
    """Tensors or arrays that overlap in memory: one leaf in the end.

    Attributes:
        extents: They, in the order of the tree.
        place: The memory that they lie in; while it is the same, so are they.
        nbytes: Its size, gaps included.
    """

    __slots__ = ("_block", "extents", "nbytes", "place")

    def __init__(self, extents: list[Extent]) -> None:
        self.extents = extents
        first = extents[0]
        low, high = (
            (first.low, first.high)
            if len(extents) == 1
            else (min(e.low for e in extents), max(e.high for e in extents))
        )
        self.place: tuple[str, int, int] = (first.device, low, high)
        self.nbytes = high - low
        self._block: Block | None = None

    def copy_now(self) -> None:
        """Take the values as they are now; on a GPU this is queued behind what was asked of it so far."""
        block = block_of(self.extents)
        data = block.data.clone() if isinstance(block.data, torch.Tensor) else block.data.copy()
        self._block = replace(block, data=data)

    @property
    def version(self) -> int:
        """Grows with each change that autograd sees: not with those of fused optimizers and through ``.data``."""
        versions = [e.value._version for e in self.extents if isinstance(e.value, torch.Tensor)]
        return versions[0] if len(versions) == 1 else sum(versions)

    @property
    def block(self) -> Block:
        """What is to be stored; the live memory, unless it was copied."""
        if self._block is None:
            self._block = block_of(self.extents)
        return self._block


@dataclass(frozen=True)
class Encoded:
    """A tree as JSON values and groups of memory; the values miss the names of leaves until ``leaves``.

    Attributes:
        document: The JSON form.
        groups: What becomes a leaf each, in the order of the tree.
    """

    document: Any
    groups: list[Group]

    def leaves(self) -> list[Leaf]:
        """One leaf for each group; completes the references in the document."""
        taken: dict[str, int] = {}
        return [_named(group.block, taken) for group in self.groups]


def to_buffers(leaves: Iterable[Leaf]) -> list[Buffer]:
    """The bytes of the leaves: without a copy in host memory; what is large and on a card comes over in pieces."""
    leaves = list(leaves)
    for device in {
        leaf.data.device for leaf in leaves if isinstance(leaf.data, torch.Tensor) and leaf.data.is_cuda
    }:
        torch.cuda.current_stream(device).synchronize()  # the pieces are read by other threads, in other streams
    return [Buffer(leaf.name, leaf.kind, leaf.dtype, leaf.shape, _bytes_of(leaf.data)) for leaf in leaves]


def _bytes_of(data: torch.Tensor | np.ndarray[Any, Any]) -> memoryview | CardBytes:
    if isinstance(data, torch.Tensor):
        if _on_card(data) and data.nbytes >= STREAM_FROM_BYTES:
            return CardBytes(octets(data))
        return octets(data.cpu()).numpy().data
    return data.reshape(-1).view(np.uint8).data


def _on_card(data: torch.Tensor) -> bool:
    return data.device.type != "cpu"


def octets(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor; an axis of size 1 may have any stride, which ``view`` does not accept."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class _Encoder:
    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self._looks: dict[Any, _Look] = {}

    def encode(self, value: Any, path: str) -> Any:
        """The JSON form of any value.

        Raises:
            CannotCarryError: It has none.
        """
        kinds: values.EncodeKinds = {  # no attribute: a cycle would keep the tensors alive
            torch.Tensor: self._tensor,
            torch.nn.Parameter: self._tensor,
            np.ndarray: self._array,
            At: self._at,
        }
        return values.encode(value, self.leaf, path, kinds)

    def _at(self, value: At, _: str) -> Any:
        return self.encode(value.value, value.path)

    def leaf(self, value: Any, path: str) -> dict[str, Any]:
        """The JSON form of what plain values do not cover.

        Raises:
            CannotCarryError: It has none.
        """
        form: dict[str, Any] | None
        if isinstance(value, torch.Tensor):
            form = self._tensor(value, path)
        elif isinstance(value, np.ndarray):
            form = self._array(value, path)
        elif isinstance(value, At):
            form = self._at(value, path)
        elif isinstance(value, GENERATOR_TYPES):
            form = self._generator(state_of(value), path)
        elif isinstance(value, GeneratorState):
            form = self._generator(dict(value.state), path)
        elif isinstance(value, Pickled):
            form = {"$": "pickle", "v": self._array(np.frombuffer(value.to_bytes(), np.uint8), path)}
        else:
            form = _small(value)
        if form is None:
            raise _refused(value, path, "has no data form", _OPT_IN)
        return form

    def _generator(self, state: dict[str, Any], path: str) -> dict[str, Any]:
        return {"$": "generator", "v": self.encode(state, path)}

    def _tensor(self, tensor: torch.Tensor, path: str) -> dict[str, Any]:
        look = self._look(tensor, path)
        form = look.form.copy()
        data = tensor.detach()
        if look.is_sparse:
            return self._sparse(data, path, form)
        if look.nbytes:
            if data.is_neg() or (look.is_complex and data.is_conj()):
                data = data.resolve_conj().resolve_neg()
            low = data.data_ptr()
            if low % look.itemsize:  # foreign memory, not aligned to its type: torch could not view it so again
                data = data.clone()
                low = data.data_ptr()
            extent = (
                Extent(data, path, form, look.device, low, low + look.nbytes, look.itemsize, True)
                if data.is_contiguous()
                else extent_of(data, path, form)
            )
            self.extents.append(extent)
        return form

    def _look(self, tensor: torch.Tensor, path: str) -> _Look:
        """What is the same for all tensors of one kind; most states have few."""
        key = _LOOK(tensor) if type(tensor) in _TYPES and not tensor.is_nested else None
        look = self._looks.get(key)
        if look is None:
            _check_tensor(tensor, path)
            look = self._looks[key] = _Look(tensor)
        return look

    def _sparse(self, tensor: torch.Tensor, path: str, form: dict[str, Any]) -> dict[str, Any]:
        form |= {"$": "sparse", "layout": str(tensor.layout).removeprefix("torch.")}
        if tensor.layout is torch.sparse_coo:
            form["coalesced"] = tensor.is_coalesced()
            parts = {"indices": tensor._indices(), "values": tensor._values()}
        else:
            compressed, plain = _COMPRESSED[tensor.layout]
            parts = {"compressed": compressed(tensor), "plain": plain(tensor), "values": tensor.values()}
        return form | {name: self._tensor(part, f"{path}[{name}]") for name, part in parts.items()}

    def _array(self, array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        _check_array(array, path)
        form = {"$": "array", "dtype": _descr(array.dtype), "shape": list(array.shape)}
        if array.nbytes:
            self.extents.append(extent_of(array.view(), path, form))
        return form


class _Look:
    """What follows from the class, type, layout, device, flags and sizes of a tensor, and from nothing else.

    Attributes:
        form: Its reference in the JSON document, to be copied.
        is_sparse: It is made of other tensors.
        is_complex: It may be a conjugate.
        device: Its name.
        itemsize: Bytes an element.
        nbytes: Bytes of all elements.
    """

    __slots__ = ("device", "form", "is_complex", "is_sparse", "itemsize", "nbytes")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = "cpu" if tensor.is_cpu else str(tensor.device)
        self.itemsize = tensor.itemsize
        self.is_complex = tensor.is_complex()
        self.is_sparse = tensor.layout is not torch.strided
        self.nbytes = 0 if self.is_sparse else tensor.nbytes
        shape = list(tensor.shape)
        self.form: dict[str, Any] = {"$": "tensor", "dtype": dtypes.name_of(tensor.dtype), "shape": shape}
        if not tensor.is_cpu:
            self.form["device"] = self.device
        if type(tensor) is not torch.Tensor:
            self.form["parameter"] = True
        if tensor.requires_grad and tensor.is_leaf:
            self.form["requires_grad"] = True


_LOOK = attrgetter("__class__", "dtype", "layout", "device", "requires_grad", "is_leaf", "shape")


def _named(block: Block, taken: dict[str, int]) -> Leaf:
    base = _name_of(block.path)
    count = taken[base] = taken.get(base, 0) + 1
    name = base if count == 1 else f"{base}~{count}"
    for place in block.places:
        place["entry"] = name
    return Leaf(name, block.kind, block.dtype, block.shape, block.data)


def _name_of(path: str) -> str:
    head, _, rest = path.partition('["')
    if head and rest[-2:] == '"]' and "[" not in head and "\n" not in path:  # nearly all of a state
        keys = rest[:-2].split('"]["')
        if not any('"]' in key for key in keys):
            return "/".join([head.strip("'").replace(".", "/"), *[key.strip("'") for key in keys]])
    parts = ["".join(match).strip("'") for match in _PART.findall(path)] or ["value"]
    return "/".join([parts[0].replace(".", "/"), *parts[1:]])


def _check_tensor(tensor: torch.Tensor, path: str) -> None:
    why = hint = ""
    if type(tensor) not in _TYPES:
        why, hint = (
            "is a subclass of Tensor",
            "keep tensor.as_subclass(torch.Tensor), if that is all there is to it",
        )
    elif tensor.is_meta:
        why, hint = "is on the meta device and has no values", "give it values before the first step"
    elif tensor.is_quantized or not dtypes.can_carry(tensor.dtype):
        why, hint = f"is of type {tensor.dtype}", "keep its integers, scale and zero point as plain tensors"
    elif tensor.layout not in (torch.strided, torch.sparse_coo, *_COMPRESSED) or tensor.is_nested:
        why, hint = "has a layout without a data form", "keep it as a plain tensor"
    if why:
        raise _refused(tensor, path, why, hint)


def _check_array(array: np.ndarray[Any, Any], path: str) -> None:
    why = ""
    if type(array) is not np.ndarray:
        why = "is a subclass of ndarray"
    elif array.dtype.hasobject:
        why = "holds Python objects"
    elif array.dtype.kind == "V" and array.dtype.names is None:
        why = f"is of type {array.dtype}, which numpy alone does not know"
    if why:
        raise _refused(array, path, why, "keep a plain numeric array")


def _refused(value: Any, path: str, why: str, hint: str) -> CannotCarryError:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    what = f"{path or 'the value'} of type {name} {why} and cannot be saved"
    return CannotCarryError(what, path=path, type_name=name, hint=hint)


def _scalar(value: np.generic) -> dict[str, Any] | None:
    if value.dtype.hasobject or (value.dtype.kind == "V" and value.dtype.names is None):
        return None
    return {"$": "scalar", "dtype": _descr(value.dtype), "v": value.tobytes().hex()}


def _descr(dtype: np.dtype[Any]) -> Any:
    return values.encode(np.lib.format.dtype_to_descr(dtype), lambda value, path: None)


def _small(value: Any) -> dict[str, Any] | None:
    form: dict[str, Any] | None = None
    if isinstance(value, LiveCode):
        form = {"$": "code"}
    elif isinstance(value, np.generic):
        form = _scalar(value)
    elif type(value) is torch.Size:
        form = {"$": "size", "v": list(value)}
    elif isinstance(value, torch.dtype):
        form = {"$": "dtype", "v": dtypes.name_of(value)}
    elif isinstance(value, torch.device):
        form = {"$": "device", "v": str(value)}
    elif isinstance(value, np.dtype) and not value.hasobject:
        form = {"$": "numpy-dtype", "v": _descr(value)}
    return form
