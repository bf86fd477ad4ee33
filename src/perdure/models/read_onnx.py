"""Reads ONNX files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from perdure.core.errors import CorruptError, MissingExtraError
from perdure.models.contents import Contents, Forward, damaged
from perdure.models.formats import Example, Port, Signature

_NO_CHECKSUMS = "ONNX has no checksums, so damage in the numbers shows only against a digest"
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")


def read_onnx(path: Path, trust: bool) -> Contents:
    """An ONNX model with its external data.

    Raises:
        MissingExtraError: The package onnx is not there.
        CorruptError: It cannot be parsed, or is no valid model, or a file with its data is not there.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("ONNX files need onnx", hint="pip install 'perdure[onnx]'") from None
    try:
        model = onnx.load(path, load_external_data=False)
        files = _external(path, model)
        onnx.checker.check_model(str(path))
    except (DecodeError, onnx.checker.ValidationError, ValueError, RuntimeError, OSError) as error:
        raise damaged(path, str(error)) from error
    onnx.load_external_data_for_model(model, str(path.parent))
    foreign = sorted({node.domain for node in model.graph.node} - set(_STANDARD))
    notes: tuple[str, ...] = (_NO_CHECKSUMS,)
    if foreign:
        notes += (f"it needs operators that are not standard: {', '.join(foreign)}",)
    return Contents(
        "an ONNX graph with weights",
        "a graph of operators and numbers, no code",
        _initializers(model),
        signature=_signature(model),
        facts=_facts(model),
        notes=notes,
        forward=_runner(path),
        files=files,
    )


def _external(path: Path, model: Any) -> tuple[Path, ...]:
    """The files with external data, all beside the model."""
    names = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise damaged(path, f"its data are outside of its folder: {name}")
    files = tuple(path.parent / name for name in sorted(names))
    for file in files:
        if not file.is_file():
            raise CorruptError(
                f"{path} is not complete: its data are in {file.name}, which is not beside it",
                path=path,
                hint="copy both files",
            )
    return files


def _initializers(model: Any) -> Iterator[tuple[str, Any]]:
    from onnx import numpy_helper

    for tensor in model.graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)


def _facts(model: Any) -> dict[str, Any]:
    opsets = {each.domain or "ai.onnx": each.version for each in model.opset_import}
    facts = {"opset": opsets.pop("ai.onnx", None), **opsets, "IR": model.ir_version}
    if model.producer_name:
        facts["producer"] = f"{model.producer_name} {model.producer_version}".strip()
    return facts


def _signature(model: Any) -> Signature:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [_port(each) for each in model.graph.input if each.name not in weights]
    return Signature(tuple(inputs), tuple(_port(each) for each in model.graph.output))


def _port(value: Any) -> Port:
    from onnx import helper

    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if tensor.elem_type else "unknown"
    shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    return Port(value.name, dtype, tuple(shape))


def _runner(path: Path) -> Forward:
    def run(example: Example) -> Mapping[str, Any]:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError(
                "a forward pass of an ONNX file needs onnxruntime", hint="pip install 'perdure[onnx]'"
            ) from None
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        feed = {**dict(zip(names, example.args, strict=False)), **example.kwargs}
        outputs = session.run(None, {name: _array(value) for name, value in feed.items()})
        return dict(zip([each.name for each in session.get_outputs()], outputs, strict=True))

    return run


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
