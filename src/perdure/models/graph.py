"""The graph of a model, by torch.export: for ``.pt2``, for ``.onnx``, and to prove files of weights alone."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from perdure.core.errors import CannotCarryError
from perdure.models.formats import Example, Source
from perdure.models.live import live_of, resized, twin_of

_TALKATIVE = ("torch.onnx._internal.exporter._registration", "torch.fx.experimental.symbolic_shapes")

_NAMESPACES = ("aten", "prim", "prims", "quantized", "quantized_decomposed", "_c10d_functional", "higher_order")

AXIS = "batch"
"""Name of the axis that may have any size."""


@dataclass(frozen=True)
class Graph:
    """A traced model.

    Attributes:
        program: With the weights of the model; it knows no example and no paths of this machine.
        dynamic: The batch may have any size.
        notes: What the user should know.
    """

    program: torch.export.ExportedProgram
    dynamic: bool
    notes: tuple[str, ...] = ()


def graph_of(source: Source) -> Graph:
    """Trace the live model's copy with its example; once an export.

    Raises:
        ConfigError: The model does not take the example.
        CannotCarryError: torch.export cannot trace it.
    """
    if "graph" not in source.scratch:
        try:
            source.scratch["graph"] = _trace(source)
        except CannotCarryError as error:
            source.scratch["graph"] = error
    graph = source.scratch["graph"]
    if isinstance(graph, CannotCarryError):
        raise graph
    assert isinstance(graph, Graph)
    return graph


def _trace(source: Source) -> Graph:
    live = live_of(source)
    sizes = {batch.size for batch in live.batches}
    example = live.batches[0].example
    if len(sizes) > 1:
        wide = (
            example if live.batches[0].size > 1 else resized(example, 2)
        )  # a size of 1 would be taken for a constant
        for axis in (torch.export.Dim(AXIS, min=1), torch.export.Dim.AUTO):
            with contextlib.suppress(Exception):  # the next way may do; the last one says why not
                program = _exported(source, wide, axis)
                if _is_dynamic(program):
                    return Graph(_cleaned(program), True)
    try:
        program = _exported(source, example, None)
    except Exception as error:
        raise _cannot_trace(source, error) from error
    return Graph(_cleaned(program), False, _fixed(source, live.batches[0].size))


def _fixed(source: Source, size: int) -> tuple[str, ...]:
    if not size or not source.dynamic:
        return ()
    return (f"the graph takes batches of {size} only: the model or torch.export fixes their size",)


def _exported(source: Source, example: Example, axis: Any) -> torch.export.ExportedProgram:
    twin, size = twin_of(source), live_of(source).batches[0].size

    def axes(leaf: Any) -> Any:
        batched = (
            isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == max(size, 2 if size == 1 else 0)
        )
        return {0: axis} if batched else None

    shapes = None
    if axis is not None:
        shapes = pytree.tree_map(axes, _named_inputs(twin.forward, example))
    with quiet(), torch.no_grad():
        return torch.export.export(
            twin, tuple(example.args), dict(example.kwargs), dynamic_shapes=shapes, strict=False
        )


def _named_inputs(forward: Any, example: Example) -> dict[str, Any]:
    """Inputs by the names of the parameters, as torch.export wants axes to be named.

    It takes no axes for inputs that come by ``*args`` and ``**kwargs``, so they become parameters of their own.
    """
    plain = inspect.signature(forward)
    bound = plain.bind(*example.args, **example.kwargs)
    named: dict[str, Any] = {}
    parameters = []
    for name, value in bound.arguments.items():
        kind = plain.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            each = {f"{name}_{index}": item for index, item in enumerate(value)}
            parameters += [inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD) for key in each]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            each = dict(value)
            parameters += [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY) for key in each]
        else:
            each = {name: value}
            parameters.append(plain.parameters[name])
        named |= each
    if len(parameters) != len(bound.arguments) or named.keys() != bound.arguments.keys():
        forward.__signature__ = plain.replace(parameters=parameters)
    return named


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what torch's exporters say of themselves: deprecations inside torch, torchvision not being there."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _is_dynamic(program: torch.export.ExportedProgram) -> bool:
    return any(not str(size).isdigit() for shape in tensor_inputs(program).values() for size in shape)


def tensor_inputs(program: torch.export.ExportedProgram) -> dict[str, tuple[Any, ...]]:
    """Name to shape of the tensors that go in; a symbol where any size goes."""
    names = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    values = {node.name: node.meta.get("val") for node in nodes}
    return {name: tuple(value.shape) for name, value in values.items() if isinstance(value, torch.Tensor)}


def _cleaned(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Without the user's data and the paths of this machine, which torch.export would save with the graph."""
    program._example_inputs = None
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def _cannot_trace(source: Source, error: Exception) -> CannotCarryError:
    name = type(source.module).__name__
    return CannotCarryError(
        f"torch.export cannot make a graph of {name}: {first_line(error)}",
        path=name,
        type_name=type(error).__name__,
        hint='a file of weights can hold it: use "pth" or "safetensors"; a graph cannot branch on values',
    )


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:120]
    return f"{type(error).__name__}: {first}"


def own_operators(source: Source) -> list[str]:
    """Operators in the graph that are not torch's: of the user or a library, by name, as ``mylib::nms``."""
    targets = {
        node.target
        for module in graph_of(source).program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in _NAMESPACES
    }
    return sorted(target.name() for target in targets)


def weightless(program: torch.export.ExportedProgram, path: Path) -> None:
    """Save a graph whose weights are zeros that take no room: the file to be proved brings its own."""
    bare = copy.copy(program)
    bare._state_dict = {name: _zeros(tensor) for name, tensor in program.state_dict.items()}
    save_program(bare, path)


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """``torch.export.save``, quietly."""
    with quiet(), open(path, "wb") as file:
        torch.export.save(program, file)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    one = torch.zeros((), dtype=tensor.dtype)
    zeros = one.expand(tensor.shape) if tensor.numel() else one.new_empty(tensor.shape)  # no strides of 0 in these
    return torch.nn.Parameter(zeros, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else zeros
