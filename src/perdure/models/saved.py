"""What a checkpoint says about the models in it, seen before a byte of them is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from perdure.checkpoint import values
from perdure.checkpoint.opened import Checkpoint
from perdure.core.errors import CannotCarryError
from perdure.tensors.decoding import unflatten

_TENSORS = ("tensor", "sparse")


@dataclass(frozen=True, eq=False)
class Form:
    """Something in a checkpoint that is not read yet.

    Attributes:
        document: Its JSON form, as ``docs/format.md`` has it.
    """

    document: dict[str, Any]

    @property
    def is_tensor(self) -> bool:
        """Whether it is a torch tensor."""
        return self.document.get("$") in _TENSORS

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of a tensor."""
        return tuple(self.document["shape"])

    @property
    def entry(self) -> str | None:
        """Name of the buffer that holds its bytes; None without one of its own."""
        entry: str | None = self.document.get("entry")
        return entry


Forms = Mapping[str, Form]


@dataclass(frozen=True)
class SavedModule:
    """A tracked module as a checkpoint holds it, names canonical.

    Attributes:
        path: What it was tracked under: ``model``, ``nets.g``.
        state: Its outline: ``parameters``, ``buffers``, ``transient``, ``ties``, ``frozen`` ...
        beside: JSON of its changed ``attributes`` and its ``extra`` state.
    """

    path: str
    state: Mapping[str, Any]
    beside: Mapping[str, Any]

    @property
    def parameters(self) -> Forms:
        """Parameters that are not None; a tied one under each of its names."""
        return _there(self.state["parameters"])

    @property
    def buffers(self) -> Forms:
        """Buffers of the module's ``state_dict``."""
        transient = set(self.state["transient"])
        return {name: form for name, form in _there(self.state["buffers"]).items() if name not in transient}

    @property
    def hidden(self) -> Forms:
        """Buffers that are in no ``state_dict``, but in the forward pass."""
        transient = set(self.state["transient"])
        return {name: form for name, form in _there(self.state["buffers"]).items() if name in transient}

    @property
    def tensors(self) -> Forms:
        """Parameters and buffers of the ``state_dict``, in the order of ``Run.export``."""
        return {**self.parameters, **self.buffers}

    @property
    def trained(self) -> list[str]:
        """First names of the parameters that are not frozen, in the order of ``parameters()``."""
        frozen = set(self.state["frozen"])
        return [name for name in self.unique if name not in frozen]

    @property
    def unique(self) -> list[str]:
        """First names of all parameters, in the order of ``parameters()``."""
        again = {name for same in self.state["ties"] for name in same[1:]}
        return [name for name in self.parameters if name not in again]

    def check_shaped(self) -> None:
        """See that every tensor has got its shape.

        Raises:
            CannotCarryError: The checkpoint was made before the first forward pass of a lazy module.
        """
        lazy = [name for name in self.state["lazy"] if name not in self.state["transient"]]
        if lazy:
            raise CannotCarryError(
                f"{self.path} has no shapes yet: {', '.join(lazy[:5])}",
                path=f"{self.path}.{lazy[0]}",
                type_name="UninitializedParameter",
                hint="take a checkpoint from after the first step",
            )


def _there(forms: Mapping[str, Any]) -> Forms:
    return {name: form for name, form in forms.items() if isinstance(form, Form)}


@dataclass(frozen=True)
class Outline:
    """The tracked objects of a checkpoint.

    Attributes:
        modules: The modules by path.
        others: The states of everything else but optimizers, by path.
    """

    modules: Mapping[str, SavedModule]
    others: Mapping[str, Any]


def outline_of(checkpoint: Checkpoint) -> Outline:
    """The objects of a checkpoint; nothing but its manifest is looked at."""
    objects = checkpoint.values.get("objects", {})
    parts = {path: part for saved in objects.values() for path, part in saved.items()}
    decoded = {path: values.decode(part, Form) for path, part in parts.items() if part["kind"] != "optimizer"}
    modules = {
        path: SavedModule(path, part, {name: parts[path][name] for name in ("attributes", "extra")})
        for path, part in decoded.items()
        if part["kind"] == "module"
    }
    others = {path: part for path, part in decoded.items() if part["kind"] != "module"}
    return Outline(modules, others)


def read_forms(checkpoint: Checkpoint, tree: Any) -> Any:
    """Read what a tree of forms names; each byte is proved by its digest on the way.

    Args:
        checkpoint: Open.
        tree: Dicts and lists with forms as leaves; other leaves stay as they are.

    Returns:
        The tree with tensors, on the CPU, in place of its forms; those that shared memory share it again.

    Raises:
        CorruptError: Bytes are not what was written.
    """
    forms = list(_forms(tree))
    read = iter(unflatten([form.document for form in forms], checkpoint.buffer))
    return _filled(tree, read)


def _forms(tree: Any) -> Iterator[Form]:
    if isinstance(tree, Form):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from _forms(item)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _forms(item)


def _filled(tree: Any, read: Iterator[Any]) -> Any:
    if isinstance(tree, Form):
        return next(read)
    if isinstance(tree, Mapping):
        return {key: _filled(item, read) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_filled(item, read) for item in tree)
    return tree


def number_in(checkpoint: Checkpoint, form: Form) -> int:
    """The value of a tensor with one element."""
    value = read_forms(checkpoint, form)
    return int(value.item()) if isinstance(value, torch.Tensor) else 0
