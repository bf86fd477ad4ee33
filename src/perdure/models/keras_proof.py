"""Proves files of a Keras model: a fresh process opens them and is compared with the live model."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.errors import CannotCarryError, CorruptError
from perdure.models.formats import Difference, Parity, Source
from perdure.models.keras_model import (
    Call,
    answers,
    batches_of,
    call_of,
    example_of,
    fingerprint,
    fingerprints,
    own_modules,
    signature_of,
)
from perdure.models.keras_process import ChildError, Outputs, ask
from perdure.models.keras_stored import stored_fingerprints
from perdure.models.keras_worker import Worker

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest accepted difference, as a part of the largest output: other kernels, and fused ones, round otherwise."""

_UNKNOWN_CLASS = ("Could not locate", "register_keras_serializable", "custom_objects", "No module named")


def prove_keras(source: Source, path: Path) -> Parity:
    """Prove a ``.keras`` or ``.h5`` file by the safe loader of Keras: every weight, the optimizer, the outputs."""
    backend, calls, live = live_of(source)
    try:
        job = {"do": "keras", "file": str(path), "compile": path.suffix == ".keras"}
        job |= {"imports": own_modules(source.module)}
        answer, outputs = ask(job, list(calls.values()), backend, _worker(source, backend))
    except ChildError as error:
        if any(word in error.message for word in _UNKNOWN_CLASS):
            return _by_weights_alone(source, path, error)
        raise _cannot_load(source, path, error) from error
    problems = _unequal("weight", source.module.weights, answer["weights"])
    if path.suffix == ".keras":
        problems += _unequal("optimizer variable", _optimizer(source.module), answer["optimizer"])
    _refuse(path, problems)
    tensors = len(answer["weights"]) + (len(answer["optimizer"]) if path.suffix == ".keras" else 0)
    found = _compared(path, live, outputs)
    return Parity("keras.saving.load_model(safe_mode=True)", tensors, found, tuple(calls), note=_note(calls))


def prove_savedmodel(source: Source, path: Path) -> Parity:
    """Prove a SavedModel by TensorFlow alone: every weight is in it, the outputs are the same."""
    _, calls, live = live_of(source)
    answer, outputs = _asked(source, path, "savedmodel", calls)
    missing = Counter(fingerprints(source.module.weights)) - Counter(answer["weights"])
    _refuse(path, [f"a weight is not in it: {line}" for line in missing])
    found = _compared(path, live, outputs)
    return Parity("tf.saved_model.load", len(source.module.weights), found, tuple(calls), note=_note(calls))


def prove_onnx(source: Source, path: Path) -> Parity:
    """Prove an ONNX file by onnxruntime: the outputs are the same; its weights may be folded into others."""
    _, calls, live = live_of(source)
    _, outputs = _asked(source, path, "onnx", calls)
    return Parity("onnxruntime", 0, _compared(path, live, outputs), tuple(calls), note=_note(calls))


def live_of(source: Source) -> tuple[str, dict[int, Call], dict[int, dict[str, Any]]]:
    """Backend, calls by batch size, and the live model's outputs; once an export."""
    import keras

    if "keras" not in source.scratch:
        calls: dict[int, Call] = {}
        example = example_of(source)
        if example is not None:
            calls = batches_of(source.module, call_of(source.module, example), source.dynamic)
        live = {size: answers(source.module, call) for size, call in calls.items()}
        source.scratch["keras"] = (keras.backend.backend(), calls, live)
        if calls:  # for the card
            size = next(iter(calls))
            source.scratch["signature"] = signature_of(source.module, calls[size], live[size], len(calls) > 1)
    found: tuple[str, dict[int, Call], dict[int, dict[str, Any]]] = source.scratch["keras"]
    return found


def _worker(source: Source, backend: str) -> Worker:
    """The process that proves, one a backend and export; none of them has written what it proves."""
    name = f"keras worker {backend}"
    if name not in source.scratch:
        source.scratch[name] = source.closing.enter_context(Worker(backend))
    worker: Worker = source.scratch[name]
    return worker


def _asked(source: Source, path: Path, job: str, calls: Mapping[int, Call]) -> tuple[dict[str, Any], Outputs]:
    asked, worker = {"do": job, "file": str(path)}, _worker(source, "tensorflow")
    try:
        return ask(asked, list(calls.values()), "tensorflow", worker)
    except ChildError as error:
        raise CorruptError(f"a fresh process cannot use {path}", path=path, problems=[error.line]) from error


def _note(calls: Mapping[int, Call]) -> str:
    return "" if calls else "no forward pass: the model declares no shapes and there was no example"


def _optimizer(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    return list(optimizer.variables) if optimizer is not None else []


def _unequal(what: str, variables: Sequence[Any], theirs: Sequence[str]) -> list[str]:
    if len(variables) != len(theirs):
        return [f"{len(theirs)} {what}s came back, {len(variables)} were written"]
    lines = []
    for variable, was, now in zip(variables, fingerprints(variables), theirs, strict=True):
        kinds = was.rpartition(" ")[0], now.rpartition(" ")[0]
        if was != now:
            lines.append(f"{variable.path}: " + ("other bytes" if len(set(kinds)) == 1 else " became ".join(kinds)))
    return lines


def _refuse(path: Path, problems: list[str]) -> None:
    if problems:
        raise CorruptError(
            f"the model file does not read back as written: {path}",
            path=path,
            problems=problems[:20],
            hint="the file was removed; write another format, or report this with the versions of Keras",
        )


def _compared(path: Path, live: Mapping[int, Mapping[str, Any]], outputs: Outputs) -> tuple[Difference, ...]:
    """The largest difference of each output over all batches, refused where it is too large."""
    found: dict[str, Difference] = {}
    problems = []
    for expected, got in zip(live.values(), outputs, strict=True):
        if [value.shape for value in expected.values()] != [value.shape for value in got]:
            problems.append(f"shapes {_shapes(expected.values())} became {_shapes(got)}")
            continue
        for (name, ours), theirs in zip(expected.items(), got, strict=True):
            each = _difference(name, ours, theirs, found.get(name))
            found[name] = each
            if not each.largest <= each.tolerance * each.scale:
                problems.append(f"{name} differs by {each.largest:.3g} where values reach {each.scale:.3g}")
    if problems:
        raise CorruptError(
            f"the model in {path} answers otherwise than the live one",
            path=path,
            problems=problems,
            hint="it may depend on Python code or on random numbers that a graph does not hold",
        )
    return tuple(found.values())


def _difference(name: str, ours: Any, theirs: Any, so_far: Difference | None) -> Difference:
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        gap = float(np.where(same, 0.0, np.abs(a - b)).max(initial=0.0))
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    tolerance = TOLERANCE.get(ours.dtype.name, 0.0)
    if so_far is not None:
        gap, scale = max(gap, so_far.largest), max(scale, so_far.scale)
    return Difference(name, ours.dtype.name, gap, tolerance, scale)


def _shapes(values: Any) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in values]


def _by_weights_alone(source: Source, path: Path, error: ChildError) -> Parity:
    """A class that a fresh process does not know: the file is like a ``.pth``, whole but for the code."""
    missing = Counter(fingerprints(source.module.weights)) - Counter(stored_fingerprints(path))
    _refuse(path, [f"a weight is not in it: {line}" for line in missing])
    name = type(source.module).__name__
    note = (
        f"weights only: a fresh process cannot import the classes of {name}; put them into a module, decorate them "
        "with keras.saving.register_keras_serializable() and import it before loading"
    )
    return Parity("h5py", len(source.module.weights), note=note)


def _cannot_load(source: Source, path: Path, error: ChildError) -> CannotCarryError:
    name = type(source.module).__name__
    return CannotCarryError(
        f"a {path.suffix} file cannot hold {name}: it does not load in a fresh process: {error.line}",
        path=source.module.name,
        type_name=name,
        hint='give its classes get_config(), or use the format "savedmodel", which needs no classes',
    )


def keras_digest(source: Source) -> str:
    """A digest of all that the files of a model are made of; empty if it has classes that are not Keras' own."""
    import keras

    model = source.module
    if own_modules(model):
        return ""
    backend, _, live = live_of(source)
    outputs = [fingerprint(value) for batch in live.values() for value in batch.values()]
    numbers = [*fingerprints([*model.weights, *_optimizer(model)]), *outputs]
    parts = [keras.__version__, backend, model.to_json(), *numbers]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
