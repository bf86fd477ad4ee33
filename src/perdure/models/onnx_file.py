"""``.onnx``: graph and weights for other runtimes; proved by onnxruntime."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from perdure.core.errors import CannotCarryError, MissingExtraError
from perdure.models.formats import Format, Parity, Source, register
from perdure.models.graph import AXIS, graph_of, own_operators, quiet, tensor_inputs
from perdure.models.live import live_of
from perdure.models.proof import prove_graph
from perdure.models.tensors import check_graph, check_tensors, full_bytes

OPSET = 18
"""Version of the operators in the file: what torch 2.6 to 2.13 write best and onnxruntime reads since 1.14."""

EXTERNAL_BYTES = 1_900_000_000
"""From here on the weights lie in a file of their own: one of protobuf ends at 2 GiB."""

_FLOAT = 'onnxruntime computes nothing with it on a CPU: use "pt2", or export a copy: copy.deepcopy(model).float()'
_USE_PT2 = 'use the format "pt2" or "safetensors"'
_CANNOT_HOLD = {torch.bfloat16: _FLOAT} | dict.fromkeys(
    (
        value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype) and name.startswith(("float8", "float4", "complex"))
    ),
    _USE_PT2,
)
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def _check(source: Source) -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"the format 'onnx' needs {' and '.join(missing)}, not installed here",
            hint="pip install 'perdure[onnx]'",
        )
    check_graph(source, "onnx")
    check_tensors(source, "an onnx file that can be proved", _CANNOT_HOLD)


def external(source: Source) -> bool:
    """Whether the weights go to a file of their own: known from the shapes, before anything is made."""
    return full_bytes(source) > EXTERNAL_BYTES


def _write(source: Source, path: Path) -> tuple[str, ...]:
    graph = graph_of(source)
    program = _converted(source)
    _part_outputs(program.model.graph)
    _name_ports(source, program.model.graph)
    for value in _values(program.model.graph):
        _name_axes(value)
    _forget_this_machine(program.model)
    program.save(path, external_data=external(source))
    notes = (f"opset {OPSET}", *graph.notes)
    return (*notes, f"its weights are in {path.name}.data beside it") if external(source) else notes


def _converted(source: Source) -> Any:
    """The graph in the words of ONNX, not rewritten by an optimiser: runtimes have their own, and names stay."""
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()):
            program = torch.onnx.export(
                graph_of(source).program,
                (),
                opset_version=OPSET,
                dynamo=True,
                optimize=False,
                verbose=False,
            )
    except Exception as error:
        raise _cannot_convert(source, error) from error
    assert program is not None
    return program


def _part_outputs(graph: Any) -> None:
    """An output that is an input, or another output, becomes a copy: in ONNX they would share one name."""
    from onnxscript import ir

    known = {id(value) for value in graph.inputs}
    for index, value in enumerate(list(graph.outputs)):
        if id(value) in known:
            copied = ir.Node("", "Identity", [value])
            copied.outputs[0].shape, copied.outputs[0].type = value.shape, value.type
            graph.append(copied)
            graph.outputs[index] = copied.outputs[0]
        known.add(id(graph.outputs[index]))


def _name_ports(source: Source, graph: Any) -> None:
    """The names of the model for what goes in and out; a value inside that has such a name by chance makes way."""
    outputs = _output_names(source, graph)
    names = {id(value): name for value, name in zip(graph.inputs, _names(source), strict=True)}
    names |= {id(value): name for value, name in zip(graph.outputs, outputs, strict=True)}
    ports = set(names.values())
    for node in graph:
        for value in node.outputs:
            if value.name in ports and id(value) not in names:
                value.name = f"{node.name}/{value.name}"
    for value in (*graph.inputs, *graph.outputs):
        value.name = names[id(value)]


def _names(source: Source) -> list[str]:
    return list(tensor_inputs(graph_of(source).program))


def _output_names(source: Source, graph: Any) -> list[str]:
    """An output may not have the name of an input or of a weight."""
    taken = {*_names(source), *graph.initializers}
    return [f"{name}_out" if name in taken else name for name in live_of(source).batches[0].outputs]


def _name_axes(value: Any) -> None:
    """``batch`` for the symbol that torch.export made up."""
    if value.shape is not None:
        for index, size in enumerate(value.shape):
            if not isinstance(size, int) and size.value is not None:
                value.shape[index] = re.sub(r"\bs\d+\b", AXIS, str(size.value))


def _values(graph: Any) -> Iterator[Any]:
    """Everything in a graph that has a name and a shape."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _forget_this_machine(model: Any) -> None:
    """Take away what the exporter notes of itself: stack traces with paths and lines of code, names of classes."""
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in graphs:
        for thing in (graph, *graph, *_values(graph)):
            thing.metadata_props.clear()
            thing.doc_string = None
    model.metadata_props.clear()


def _cannot_convert(source: Source, error: Exception) -> CannotCarryError:
    text = str(error.__cause__ or error)
    found = re.search(
        r"No ONNX function found for <OpOverload\(op='([\w.:]+)'|No decompositions.*?'([\w.:]+)'", text
    )
    own = own_operators(source)
    operator = own[0] if own else next((name for name in found.groups() if name), "") if found else ""
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    what = (
        f"onnx has no word for the operator {operator}"
        if operator
        else f"the graph cannot be an onnx file: {first}"
    )
    return CannotCarryError(
        what,
        path=type(source.module).__name__,
        type_name=operator or type(error).__name__,
        hint='use "pth" or "safetensors", which hold the weights' if own else 'use the format "pt2"',
    )


def _prove(source: Source, path: Path) -> Parity:
    return prove_graph(source, path, "onnx", "onnxruntime", all=False, inputs=_names(source))


ONNX = register(
    Format("onnx", ".onnx", "torch", "graph and weights for other runtimes", _check, full_bytes, _write, _prove)
)
