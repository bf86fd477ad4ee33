"""The formats of Keras models: .keras, the legacy .h5, TensorFlow's SavedModel, and ONNX."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from perdure.core.errors import CannotCarryError, ConfigError, MissingExtraError
from perdure.models.formats import Format, Source, register
from perdure.models.keras_model import check_ready, example_of, own_modules, quiet
from perdure.models.keras_process import ChildError, ask
from perdure.models.keras_proof import live_of, prove_keras, prove_onnx, prove_savedmodel

_LAYER_BYTES = 20_000
"""What a layer adds to a file besides its numbers: its description, its part of a graph. Generous."""

ONNX_BYTES = 1_900_000_000
"""An ONNX file is one message of protobuf, which ends at 2 GiB; the exporter of Keras puts no weights beside it."""

_CONVERTED = ".converted.keras"

H5_NOTE = (
    "the .h5 format is legacy: it holds no optimizer, no step counter and no classes, so no training can go on "
    "from it; .keras holds all of them"
)


def _backend() -> str:
    import keras

    name: str = keras.backend.backend()
    return name


def _numbers(model: Any) -> int:
    return sum(_bytes(weight) for weight in model.weights)


def _bytes(variable: Any) -> int:
    import keras

    count = 1
    for size in variable.shape:
        count *= int(size)
    name = str(keras.backend.standardize_dtype(variable.dtype))
    bits = {"bool": 8, "bfloat16": 16, "string": 512}.get(name) or int("".join(filter(str.isdigit, name))[:2] or 32)
    return count * max(bits // 8, 1)


def _slack(model: Any) -> int:
    return 1_000_000 + _LAYER_BYTES * len(list(model._flatten_layers()))


def _size(source: Source) -> int:
    return _numbers(source.module) + _slack(source.module)


def _size_with_optimizer(source: Source) -> int:
    optimizer = getattr(source.module, "optimizer", None)
    return _size(source) + (sum(map(_bytes, optimizer.variables)) if optimizer is not None else 0)


def _size_of_graph(source: Source) -> int:
    """With the ``.keras`` file that lies beside it for a moment where another backend has to write it."""
    return 2 * _size(source) + _size_with_optimizer(source)


def _cannot(source: Source, what: str, hint: str) -> CannotCarryError:
    return CannotCarryError(what, path=source.module.name, type_name=type(source.module).__name__, hint=hint)


def _check_keras(source: Source) -> None:
    check_ready(source.module)
    for layer in source.module._flatten_layers():
        function = getattr(layer, "function", None) if type(layer).__name__ == "Lambda" else None
        if getattr(function, "__name__", "") == "<lambda>":
            raise _cannot(
                source,
                f"a Keras file cannot hold {layer.name}: it is a Lambda layer with Python code in it, which safe "
                "loaders refuse",
                'make it a layer class of its own, or use the format "savedmodel" or "onnx", which hold the graph',
            )


def _check_h5(source: Source) -> None:
    if not {"Sequential", "Functional"} & {base.__name__ for base in type(source.module).__mro__}:
        name = type(source.module).__name__
        raise _cannot(
            source,
            f"an .h5 file cannot hold {name}: the legacy format holds Sequential and functional models only",
            'use the format "keras"',
        )
    _check_keras(source)


def _check_graph(source: Source) -> None:
    check_ready(source.module)
    if example_of(source) is None:
        raise ConfigError(
            f"the Keras model {source.module.name!r} declares no input shapes, so its graph needs an example",
            hint="perdure.export(model, folder, example=images)",
        )


def _check_crossing(source: Source, backend: str, format: str) -> None:
    """To be written under the other backend, a model must be loaded there."""
    if _backend() != backend and "__main__" in own_modules(source.module):
        raise _no_graph(
            source, format, f"Keras writes it under {backend}, and no other process can import its class"
        )


def _check_savedmodel(source: Source) -> None:
    _check_graph(source)
    _check_crossing(source, "tensorflow", "tf_saved_model")
    if importlib.util.find_spec("tensorflow") is None:
        raise MissingExtraError(
            "a SavedModel is written by TensorFlow, which is not installed here",
            hint='use the format "keras" or "onnx", or install tensorflow-cpu',
        )


def _check_onnx(source: Source) -> None:
    _check_graph(source)
    _check_crossing(source, "torch", "onnx")
    if _numbers(source.module) > ONNX_BYTES:
        raise _cannot(
            source,
            f"an ONNX file of {source.module.name} would be larger than 2 GB, which Keras cannot write",
            'use the format "keras" or "savedmodel"',
        )
    for layer in source.module._flatten_layers():
        if "bfloat16" in (layer.compute_dtype, layer.variable_dtype):
            raise _cannot(
                source,
                f"an ONNX file cannot hold {layer.name}: onnxruntime cannot compute in bfloat16 on a CPU",
                'use the format "keras" or "savedmodel", or build the model in float32 and load the weights',
            )
    needed = ("torch", "onnx", "onnxruntime", "onnxscript")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise MissingExtraError(
            f"an ONNX file of a Keras model needs {' and '.join(missing)}", hint="pip install 'perdure[onnx]'"
        )


def _write_keras(source: Source, path: Path) -> tuple[str, ...]:
    with quiet():
        source.module.save(path)
    modules = [name for name in own_modules(source.module) if name != "__main__"]
    return (f"to load it, first import its classes: {', '.join(modules)}",) if modules else ()


def _write_h5(source: Source, path: Path) -> tuple[str, ...]:
    with quiet():
        source.module.save(path, include_optimizer=False)
    return (H5_NOTE,)


def _write_savedmodel(source: Source, path: Path) -> tuple[str, ...]:
    return _exported(source, path, "tensorflow", "tf_saved_model")


def _write_onnx(source: Source, path: Path) -> tuple[str, ...]:
    notes = _exported(source, path, "torch", "onnx")
    import onnx

    opsets = onnx.load(path, load_external_data=False).opset_import
    return (*notes, f"opset {next(each.version for each in opsets if each.domain in ('', 'ai.onnx'))}")


def _exported(source: Source, path: Path, backend: str, format: str) -> tuple[str, ...]:
    """By Keras itself; where this backend has no exporter, by way of a ``.keras`` file under the one that has."""
    live_of(source)  # Keras refuses to export what was never called
    if _backend() == backend:
        try:
            with quiet():
                source.module.export(path, format=format, verbose=False)
        except Exception as error:
            raise _no_graph(source, format, f"{type(error).__name__}: {error}") from error
        return ()
    _convert(source, path, backend, format)
    return (f"written under the {backend} backend of Keras: {_backend()} has no exporter for it",)


def _convert(source: Source, path: Path, backend: str, format: str) -> None:
    between = path.with_name(path.name + _CONVERTED)
    _, calls, _ = live_of(source)
    try:
        with quiet():
            source.module.save(between)
        words = {"do": "convert", "file": str(between), "to": str(path), "format": format}
        job = {**words, "imports": own_modules(source.module)}
        ask(job, list(calls.values())[:1], backend)
    except ChildError as error:
        raise _no_graph(source, format, error.line) from error
    finally:
        between.unlink(missing_ok=True)


def _no_graph(source: Source, format: str, why: str) -> CannotCarryError:
    name, word = type(source.module).__name__, {"onnx": "an ONNX file", "tf_saved_model": "a SavedModel"}[format]
    others = {"onnx": '"keras" or "savedmodel"', "tf_saved_model": '"keras" or "onnx"'}[format]
    why = next((line for line in why.splitlines() if line.strip()), "")[:300]
    return _cannot(
        source,
        f"{word} of {name} cannot be made under the {_backend()} backend: {why}",
        f"use the format {others}; classes of your own must be registered and importable to cross from one backend "
        "to the other",
    )


for _format in (
    Format(
        "keras",
        ".keras",
        "keras",
        "Keras 3, with the optimizer",
        _check_keras,
        _size_with_optimizer,
        _write_keras,
        prove_keras,
    ),
    Format("h5", ".h5", "keras", "legacy Keras, without the optimizer", _check_h5, _size, _write_h5, prove_keras),
    Format(
        "savedmodel",
        ".savedmodel",
        "keras",
        "TensorFlow SavedModel",
        _check_savedmodel,
        _size_of_graph,
        _write_savedmodel,
        prove_savedmodel,
    ),
    Format("onnx", ".onnx", "keras", "ONNX, for onnxruntime", _check_onnx, _size_of_graph, _write_onnx, prove_onnx),
):
    register(_format)
