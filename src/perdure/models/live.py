"""What the live model gives for the example, to compare files with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from perdure.core.errors import ConfigError
from perdure.models.formats import Example, Port, Signature, Source
from perdure.models.twin import make_twin


@dataclass(frozen=True)
class Batch:
    """Inputs of one size, and the outputs of the live model for them.

    Attributes:
        size: Length of the first axis; 0 where there is none.
        example: The inputs, on the CPU.
        outputs: Name to tensor, in the order of the outputs.
    """

    size: int
    example: Example
    outputs: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Live:
    """The copy of the model and what it gave.

    Attributes:
        twin: On the CPU, in eval mode.
        batches: The example as it was given, then other sizes of the batch.
    """

    twin: nn.Module
    batches: tuple[Batch, ...]


def as_example(value: Any) -> Example | None:
    """What a user gives as inputs, as ``model(*args, **kwargs)``.

    Args:
        value: A tensor or an array (one input), a tuple or list (positional inputs), a dict (inputs by name), an
            ``Example``, or None.

    Returns:
        The inputs; arrays become tensors.
    """
    if value is None or isinstance(value, Example):
        return value
    if isinstance(value, Mapping):
        return Example(kwargs={str(name): _input(each) for name, each in value.items()})
    if isinstance(value, (tuple, list)):
        return Example(args=tuple(_input(each) for each in value))
    return Example(args=(_input(value),))


def _input(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, value)


def twin_of(source: Source) -> nn.Module:
    """The copy of the live model, made once an export.

    Raises:
        CannotCarryError: It cannot be copied.
    """
    if "twin" not in source.scratch:
        source.scratch["twin"] = make_twin(source.module)
    twin: nn.Module = source.scratch["twin"]
    return twin


def live_of(source: Source) -> Live:
    """Run the live model's copy on the example and on other sizes of the batch; once an export.

    Raises:
        ConfigError: The model does not take the example.
        CannotCarryError: It cannot be copied.
    """
    if "live" not in source.scratch:
        assert source.example is not None
        twin = twin_of(source)
        example = on_cpu(source.example)
        first = Batch(batch_size(example), example, _first_outputs(twin, example))
        others = _other_sizes(twin, first) if source.dynamic else []
        source.scratch["live"] = Live(twin, (first, *others))
    live: Live = source.scratch["live"]
    return live


def on_cpu(example: Example) -> Example:
    """The same inputs on the CPU, without gradients."""

    def move(leaf: Any) -> Any:
        return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf

    return Example(pytree.tree_map(move, tuple(example.args)), pytree.tree_map(move, dict(example.kwargs)))


def tensors_of(example: Example) -> list[torch.Tensor]:
    """The tensors among the inputs, in order."""
    leaves = pytree.tree_leaves((tuple(example.args), dict(example.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def batch_size(example: Example) -> int:
    """Length of the first axis of the first input that has one; 0 if none has."""
    return next((tensor.shape[0] for tensor in tensors_of(example) if tensor.dim()), 0)


def resized(example: Example, size: int) -> Example:
    """The example with that many rows: cut, or begun again from its first row."""
    present = batch_size(example)
    rows = torch.arange(size) % present

    def take(leaf: Any) -> Any:
        batched = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == present
        return leaf[rows].clone() if batched else leaf

    return Example(pytree.tree_map(take, tuple(example.args)), pytree.tree_map(take, dict(example.kwargs)))


def named_outputs(value: Any) -> dict[str, torch.Tensor]:
    """Outputs by name: the keys of dicts, ``output_0`` ... of sequences, ``output`` of a single one."""
    if isinstance(value, torch.Tensor):
        return {"output": value}
    found: dict[str, torch.Tensor] = {}
    _name_leaves(value, "", lambda name, tensor: found.update({name: tensor}))
    return found


def _name_leaves(value: Any, path: str, note: Callable[[str, torch.Tensor], None]) -> None:
    if isinstance(value, torch.Tensor):
        note(path, value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _name_leaves(each, f"{path}.{key}" if path else str(key), note)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            _name_leaves(each, f"{path or 'output'}_{index}", note)


def run_twin(
    twin: nn.Module, example: Example, weights: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """The outputs for some inputs, with its own weights or with others.

    The inputs are copied first, as a model may write into them.
    """
    args, kwargs = pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf,
        (tuple(example.args), dict(example.kwargs)),
    )
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        own = {name: buffer.clone() for name, buffer in twin.named_buffers()}  # a model may write into them too
        found = torch.func.functional_call(twin, {**own, **(weights or {})}, tuple(args), kwargs)
        return {name: tensor.detach().clone() for name, tensor in named_outputs(found).items()}


def _first_outputs(twin: nn.Module, example: Example) -> dict[str, torch.Tensor]:
    try:
        outputs = run_twin(twin, example)
    except Exception as error:
        raise ConfigError(
            f"the model does not run on the CPU with this example: {type(error).__name__}: {error}",
            hint="give what you would give to model(...): a tensor, a tuple of inputs, or a dict of inputs by name",
        ) from error
    if not outputs:
        raise ConfigError(
            "the model returns no tensor for this example", hint="export a module that returns tensors"
        )
    return outputs


def _other_sizes(twin: nn.Module, first: Batch) -> list[Batch]:
    """One row, and one more than the example has: where the live model takes them."""
    found = []
    for size in sorted({1, first.size + 1} - {first.size}):
        if not first.size:
            break
        example = resized(first.example, size)
        try:
            found.append(Batch(size, example, run_twin(twin, example)))
        except Exception:  # noqa: BLE001  a model that takes one size only is no fault; the graph says so
            continue
    return found


def signature_of(source: Source) -> Signature:
    """What goes in and what comes out; the batch is a word where the live model takes any."""
    live = live_of(source)
    inputs = zip(
        input_names(live.twin, live.batches[0].example),
        *(tensors_of(batch.example) for batch in live.batches),
        strict=True,
    )
    outputs = zip(*(batch.outputs.items() for batch in live.batches), strict=True)
    return Signature(
        tuple(
            replace(_port(name, list(tensors)), keyword=name in live.batches[0].example.kwargs)
            for name, *tensors in inputs
        ),
        tuple(_port(pairs[0][0], [tensor for _, tensor in pairs]) for pairs in outputs),
    )


def input_names(twin: nn.Module, example: Example) -> list[str]:
    """Names of the tensors that go in: those of the parameters of ``forward``; ``name_0`` ... in containers."""
    bound = inspect.signature(twin.forward).bind(*example.args, **example.kwargs)
    names: dict[str, torch.Tensor] = {}
    for name, value in bound.arguments.items():
        by_name = (
            isinstance(value, Mapping) and name not in example.kwargs and value.keys() <= example.kwargs.keys()
        )
        for key, each in value.items() if by_name else [(name, value)]:  # **kwargs are inputs of their own
            _name_leaves(each, key, lambda path, tensor: names.update({path: tensor}))
    return list(names)


def _port(name: str, tensors: list[torch.Tensor]) -> Port:
    """A size that differs between the batches is the batch."""
    shapes = list(zip(*(tensor.shape for tensor in tensors), strict=False))
    shape = tuple(sizes[0] if len(set(sizes)) == 1 else "batch" for sizes in shapes)
    return Port(name, dtype_name(tensors[0]), shape)


def dtype_name(tensor: torch.Tensor) -> str:
    """``"float32"`` of a float32 tensor."""
    return str(tensor.dtype).removeprefix("torch.")
