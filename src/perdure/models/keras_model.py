"""A live Keras model: its weights, its inputs, what it answers. Keras 3, on TensorFlow or torch."""

from __future__ import annotations

import hashlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from perdure.core.errors import CannotCarryError, MissingExtraError
from perdure.models.formats import Example, Port, Signature, Source

EXAMPLE_BATCH = 2
"""Rows of an example that is made up from the shapes that a model declares."""


@dataclass(frozen=True)
class Call:
    """How a model is called: nested lists, tuples and dicts of arrays, as ``model(*args, **kwargs)`` takes them."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def check_ready(model: Any) -> None:
    """Raise what makes every format impossible.

    Raises:
        MissingExtraError: It is a model of Keras 2.
        CannotCarryError: It has no weights yet.
    """
    import keras

    if int(keras.__version__.partition(".")[0]) < 3:
        raise MissingExtraError(
            f"this is a model of Keras {keras.__version__}; Keras 3 is needed", hint="pip install 'perdure[keras]'"
        )
    if not model.built or not model.weights:
        raise CannotCarryError(
            f"the Keras model {model.name!r} has no weights yet: it was never called",
            path=model.name,
            type_name=type(model).__name__,
            hint="call it once on a batch, or model.build(shape), before it is exported",
        )


def own_modules(model: Any) -> list[str]:
    """Where the classes of a model come from that are not Keras' own; ``__main__`` for a script or notebook."""
    names = {type(each).__module__ for each in model._flatten_layers()}
    return sorted(name for name in names if name.partition(".")[0] != "keras")


def example_of(source: Source) -> Example | None:
    """The example of a source; made-up inputs where the model declares their shapes; None if there are neither."""
    return source.example if source.example is not None else made_up(source.module)


def fingerprints(variables: Sequence[Any]) -> list[str]:
    """One line a variable: type, shape and SHA-256 of the bytes. ``_keras_child`` has the same function."""
    return [fingerprint(array(variable)) for variable in variables]


def fingerprint(value: np.ndarray[Any, Any]) -> str:
    """Type, shape and SHA-256 of the bytes of an array."""
    data = np.ascontiguousarray(value)
    return f"{value.dtype.name} {list(value.shape)} {hashlib.sha256(data.tobytes()).hexdigest()}"


def array(value: Any) -> np.ndarray[Any, Any]:
    """A tensor or variable of any backend as an array."""
    import keras

    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if type(value).__module__.partition(".")[0] == "torch":
        value = value.detach().cpu()
        value = value.float() if value.dtype.itemsize < 4 and value.dtype.is_floating_point else value
        return np.asarray(value.numpy())
    return np.asarray(keras.ops.convert_to_numpy(value))


def made_up(model: Any) -> Example | None:
    """Inputs of the shapes that a model declares: normal floats, zero and one for integers; the same every time."""
    declared = getattr(model, "inputs", None)
    if not declared or any(None in spec.shape[1:] for spec in declared):
        return None
    generator = np.random.Generator(np.random.PCG64(0))
    rows = declared[0].shape[0] or EXAMPLE_BATCH
    return Example(tuple(_drawn(generator, spec, rows) for spec in declared))


def _drawn(generator: np.random.Generator, spec: Any, rows: int) -> np.ndarray[Any, Any]:
    shape, dtype = (spec.shape[0] or rows, *spec.shape[1:]), str(spec.dtype)
    if "float" in dtype:
        return generator.standard_normal(shape, np.float32).astype("float32" if dtype == "bfloat16" else dtype)
    return generator.integers(0, 2, shape).astype(dtype)


def call_of(model: Any, example: Example) -> Call:
    """How to call a model with an example: several inputs of a functional model go in as the one that it takes."""
    import keras

    args = tuple(keras.tree.map_structure(array, each) for each in example.args)
    kwargs = {name: keras.tree.map_structure(array, each) for name, each in example.kwargs.items()}
    names = [spec.name for spec in getattr(model, "inputs", None) or []]
    struct = getattr(model, "_inputs_struct", names)
    if names and not kwargs and len(args) == len(names) > 1:
        return Call((keras.tree.pack_sequence_as(struct, list(args)),), {})
    if names and not args and set(kwargs) == set(names):
        flat = [kwargs[name] for name in names]
        return Call((keras.tree.pack_sequence_as(struct, flat),), {})
    return Call(args, kwargs)


def batches_of(model: Any, call: Call, dynamic: bool) -> dict[int, Call]:
    """The call at several sizes of its batch: its own, 1 and one more; only its own where the size is fixed."""
    import keras

    arrays = [leaf for leaf in keras.tree.flatten([call.args, dict(call.kwargs)]) if leaf.ndim]
    rows = len(arrays[0]) if arrays else 0
    fixed = any(spec.shape[:1] != (None,) for spec in getattr(model, "inputs", None) or [])
    if not rows or fixed or not dynamic or any(len(leaf) != rows for leaf in arrays):
        return {rows: call}

    def sized(count: int) -> Call:
        args, kwargs = keras.tree.map_structure(
            lambda leaf: np.resize(leaf, (count, *leaf.shape[1:])) if leaf.ndim else leaf,
            [call.args, dict(call.kwargs)],
        )
        return Call(tuple(args), kwargs)

    return {count: sized(count) for count in dict.fromkeys((rows, 1, rows + 1))}


def answers(model: Any, call: Call) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of a live model in inference, by name. Its state and every generator stay as they are."""
    import keras

    state = model.non_trainable_variables if _stateful(model) else []
    before = [array(variable) for variable in state]
    with _no_grad(), quiet():
        outputs = model(*call.args, **call.kwargs, training=False)
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    flat = [array(leaf) for leaf in keras.tree.flatten(outputs)]
    return dict(zip(_output_names(model, outputs, len(flat)), flat, strict=True))


def signature_of(model: Any, call: Call, outputs: Mapping[str, np.ndarray[Any, Any]], dynamic: bool) -> Signature:
    """Names, types and shapes of what goes in and comes out."""
    import keras

    leaves = keras.tree.flatten([call.args, dict(call.kwargs)])
    declared = [spec.name for spec in getattr(model, "inputs", None) or []]
    names = declared if len(declared) == len(leaves) else [f"input_{index}" for index in range(len(leaves))]
    names = [*names[: len(leaves) - len(call.kwargs)], *sorted(call.kwargs)] if call.kwargs else names

    def port(name: str, value: np.ndarray[Any, Any]) -> Port:
        shape = ("batch", *value.shape[1:]) if dynamic and value.ndim else value.shape
        return Port(name, value.dtype.name, shape)

    inputs = tuple(port(name, leaf) for name, leaf in zip(names, leaves, strict=False))
    return Signature(inputs, tuple(port(name, value) for name, value in outputs.items()))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what Keras, TensorFlow and absl print and warn of off stdout, and their known warnings off the tests."""
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        absl.setLevel(level)


def _no_grad() -> Any:
    import keras

    if keras.backend.backend() != "torch":
        return nullcontext()
    import torch

    return torch.no_grad()


def _stateful(model: Any) -> bool:
    return any(getattr(layer, "stateful", False) for layer in model._flatten_layers())


def _output_names(model: Any, outputs: Any, count: int) -> list[str]:
    if isinstance(outputs, dict) and len(outputs) == count:
        return sorted(map(str, outputs))
    declared = list(getattr(model, "output_names", None) or [])
    return declared if len(set(declared)) == count else [f"output_{index}" for index in range(count)]
