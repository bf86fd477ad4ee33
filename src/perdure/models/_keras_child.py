"""Opens files of Keras and TensorFlow in a fresh process, runs them, or turns one into another. Knows no Perdure.

Each line on stdin is a folder with ``job.json`` and ``inputs.npz``; the answer is left in it as ``answer.json`` and
``outputs.npz``, and then there is a line ``done`` on stdout. Whatever the frameworks print goes to stderr.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_NOT_LISTED = ("_CHECKPOINTABLE", "_all_variables/", "keras_api/")
"""Entries of a SavedModel that are no variables, or variables that Keras lists a second time."""


def main(folder: Path) -> None:
    """Do the job in a folder."""
    job = json.loads((folder / "job.json").read_text())
    for name in job.get("imports", []):
        with contextlib.suppress(ImportError):  # the loader says what it misses
            importlib.import_module(name)
    outputs: dict[str, Any] = {}
    try:
        answer = _JOBS[job["do"]](job, list(_calls(job, folder)), outputs)
    except Exception as error:  # noqa: BLE001  # any failure is the answer
        answer = {"error": type(error).__name__, "message": str(error)}
    np.savez(folder / "outputs.npz", **outputs)
    (folder / "answer.json").write_text(json.dumps(answer))


def _calls(job: dict[str, Any], folder: Path) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    with np.load(folder / "inputs.npz", allow_pickle=False) as arrays:
        for batch in range(job["batches"]):
            args, kwargs = _unpack(job["call"], lambda leaf, batch=batch: arrays[f"{batch}_{leaf}"])
            yield tuple(args), kwargs


def _unpack(tree: Any, leaf: Any) -> Any:
    if "leaf" in tree:
        return leaf(tree["leaf"])
    if "dict" in tree:
        return {name: _unpack(each, leaf) for name, each in tree["dict"].items()}
    values = [_unpack(each, leaf) for each in tree["list"]]
    return tuple(values) if tree["tuple"] else values


def _keep(outputs: dict[str, Any], batch: int, values: list[Any]) -> None:
    for index, each in enumerate(values):
        value = np.asarray(each)
        outputs[f"{batch}_{index}"] = value.astype("float32") if value.dtype.name == "bfloat16" else value


def _fingerprint(value: Any) -> str:
    value = np.asarray(value)
    data = np.ascontiguousarray(value)
    return f"{value.dtype.name} {list(value.shape)} {hashlib.sha256(data.tobytes()).hexdigest()}"


def _array(value: Any) -> Any:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(value))


def _keras(job: dict[str, Any], calls: list[Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Load a .keras or .h5 file with the safe loader."""
    import keras

    model = keras.saving.load_model(job["file"], compile=job.get("compile", True), safe_mode=job.get("safe", True))
    for batch, (args, kwargs) in enumerate(calls):
        flat = keras.tree.flatten(model(*args, **kwargs, training=False))
        _keep(outputs, batch, [_array(each.detach() if hasattr(each, "detach") else each) for each in flat])
    optimizer = getattr(model, "optimizer", None)
    return {
        "weights": [_fingerprint(_array(each)) for each in model.weights],
        "optimizer": [_fingerprint(_array(each)) for each in optimizer.variables] if optimizer else [],
        "class": type(model).__name__,
        "inputs": [_spec(each) for each in getattr(model, "inputs", None) or []],
        "outputs": [_spec(each) for each in getattr(model, "outputs", None) or []],
        "trainable": int(sum(np.prod(each.shape) for each in model.trainable_weights)),
        "parameters": int(model.count_params()) if model.built else 0,
        "version": keras.__version__,
    }


def _spec(tensor: Any) -> dict[str, Any]:
    shape = [int(size) if size is not None else None for size in tensor.shape]
    dtype = tensor.dtype if isinstance(tensor.dtype, str) else tensor.dtype.name
    return {"name": tensor.name, "shape": shape, "dtype": dtype}


def _savedmodel(job: dict[str, Any], calls: list[Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Load a SavedModel with TensorFlow alone. Variables are told by what is in them: their names are lost."""
    import tensorflow as tf

    loaded = tf.saved_model.load(job["file"])
    serving = loaded.signatures.get("serving_default")
    for batch, (args, kwargs) in enumerate(calls):
        _keep(outputs, batch, tf.nest.flatten(_serve(loaded, serving, args, kwargs)))
    reader = tf.train.load_checkpoint(f"{job['file']}/variables/variables")
    names = [name for name in sorted(reader.get_variable_to_shape_map()) if not name.startswith(_NOT_LISTED)]
    return {
        "weights": [_fingerprint(reader.get_tensor(name)) for name in names],
        "table": [_row(name, reader.get_tensor(name)) for name in names],
        "inputs": [_spec(each) for each in tf.nest.flatten(serving.structured_input_signature)] if serving else [],
        "outputs": [_named(name, each) for name, each in sorted(serving.structured_outputs.items())]
        if serving
        else [],
        "signatures": sorted(loaded.signatures),
        "version": tf.__version__,
    }


def _row(name: str, value: Any) -> dict[str, Any]:
    value = np.asarray(value)
    number = value.dtype.kind in "fc"
    return {
        "name": name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"),
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "values": int(value.size),
        "bytes": int(value.nbytes),
        "nan": int(np.isnan(value).sum()) if number else 0,
        "inf": int(np.isinf(value).sum()) if number else 0,
    }


def _named(name: str, tensor: Any) -> dict[str, Any]:
    return {**_spec(tensor), "name": name}


def _serve(loaded: Any, serving: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import tensorflow as tf

    if hasattr(loaded, "serve"):
        try:
            return loaded.serve(*args, **kwargs)
        except TypeError:  # it takes a structure; its signature takes every input by name
            if serving is None:
                raise
    if serving is None:
        raise ValueError("it has no signature 'serving_default' to call")
    names = sorted(serving.structured_input_signature[1])
    given = {**dict(zip(names, tf.nest.flatten(args), strict=False)), **kwargs}
    return serving(**{name: tf.convert_to_tensor(value) for name, value in given.items()})


def _onnx(job: dict[str, Any], calls: list[Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Run an ONNX file with onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(job["file"], providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    for batch, (args, kwargs) in enumerate(calls):
        feed = dict(zip(names, _flat([*args, *(kwargs[name] for name in sorted(kwargs))]), strict=True))
        _keep(outputs, batch, session.run(None, feed))
    return {"weights": [], "version": onnxruntime.__version__}


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for name in sorted(value) for leaf in _flat(value[name])]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _flat(each)]
    return [value]


def _convert(job: dict[str, Any], calls: list[Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Load a .keras file under this backend, call it once, and export it in another format."""
    import keras

    model = keras.saving.load_model(job["file"], safe_mode=True)
    args, kwargs = calls[0]
    model(*args, **kwargs, training=False)
    model.export(job["to"], format=job["format"], verbose=False)
    return {"weights": []}


_JOBS = {"keras": _keras, "savedmodel": _savedmodel, "onnx": _onnx, "convert": _convert}

if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        main(Path(line.rstrip("\n")))
        print("done", file=replies, flush=True)
