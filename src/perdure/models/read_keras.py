"""Reads what Keras and TensorFlow write: .keras, .h5 with a model or weights alone, SavedModel."""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perdure.core.errors import MissingExtraError
from perdure.models.contents import Contents, Forward, damaged, not_safe
from perdure.models.formats import Example, Port, Signature
from perdure.models.keras_model import Call
from perdure.models.keras_process import ChildError, ask
from perdure.models.keras_stored import stored_arrays
from perdure.models.zips import check_zip

_PYTHON_OPERATORS = (b"PyFunc", b"EagerPyFunc", b"PyFuncStateless")
_FILE_OPERATORS = (b"WriteFile", b"ReadFile", b"MatchingFiles")
_ATTRIBUTES = ("model_config", "keras_version", "backend")
_NUMBERS = "biufcV"  # V: bfloat16
_H5_NOTE = "HDF5 has no checksums here, so damage in the numbers shows only against a digest"


def read_keras(path: Path, trust: bool) -> Contents:
    """A ``.keras`` archive, read without building the model."""
    notes = check_zip(path)
    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
            metadata = json.loads(archive.read("metadata.json"))
    except (ValueError, KeyError) as error:
        raise damaged(path, str(error)) from error
    notes += _look_through(path, config, trust)
    arrays = _arrays(path)
    safe = not _lambdas(config)
    return Contents(
        f"a Keras model, {config.get('class_name', 'of unknown class')}",
        _safety(safe),
        arrays.items(),
        safe,
        main=lambda name: not name.startswith("optimizer"),
        signature=_signature(config),
        facts={"keras": metadata.get("keras_version", "?")},
        notes=notes,
        forward=_runner(path, "keras", trust),
    )


def read_h5(path: Path, trust: bool) -> Contents:
    """An HDF5 file of Keras: a whole model in the legacy format, or weights alone."""
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("an .h5 file needs h5py", hint="pip install 'perdure[keras]'") from None
    try:
        with h5py.File(path, "r") as file:
            attributes = {
                name: _words(file.attrs[name])
                for name in ("model_config", "keras_version", "backend")
                if name in file.attrs
            }
    except (OSError, RuntimeError, KeyError) as error:
        raise damaged(path, str(error)) from error
    facts = {name: value for name, value in attributes.items() if name != "model_config"}
    if "model_config" not in attributes:
        return Contents(
            "weights of a Keras model, without its graph",
            "numbers and names only",
            _arrays(path).items(),
            main=lambda name: not name.startswith("optimizer"),
            facts=facts,
            notes=(_H5_NOTE,),
        )
    try:
        config = json.loads(attributes["model_config"])
    except ValueError as error:
        raise damaged(path, str(error)) from error
    notes = (_H5_NOTE, "the legacy format of Keras; .keras holds more", *_look_through(path, config, trust))
    safe = not _lambdas(config)
    return Contents(
        f"a Keras model in the legacy format, {config.get('class_name', 'of unknown class')}",
        _safety(safe),
        _arrays(path).items(),
        safe,
        main=lambda name: not name.startswith("optimizer"),
        signature=_signature(config),
        facts=facts,
        notes=notes,
        forward=_runner(path, "keras", trust),
    )


def read_savedmodel(path: Path, trust: bool) -> Contents:
    """A SavedModel folder, opened by TensorFlow in a process of its own."""
    program = (path / "saved_model.pb").read_bytes()
    found = [word.decode() for word in (*_PYTHON_OPERATORS, *_FILE_OPERATORS) if word in program]
    if found and not trust:
        raise not_safe(path, f"its graph has the operator {found[0]}, which reaches outside of it")
    if importlib.util.find_spec("tensorflow") is None:
        raise MissingExtraError("a SavedModel needs tensorflow", hint="pip install tensorflow-cpu")
    try:
        answer, _ = ask({"do": "savedmodel", "file": str(path)}, [], "tensorflow")
    except ChildError as error:
        raise damaged(path, error.line) from error
    return Contents(
        "a TensorFlow SavedModel",
        f"it was loaded as trusted although its graph has {found[0]}"
        if found
        else "no operator of its graph calls Python or opens files",
        answer["table"],
        not found,
        signature=Signature(_ports(answer["inputs"]), _ports(answer["outputs"])),
        facts={"signatures": " ".join(answer["signatures"]) or "none", "read by tensorflow": answer["version"]},
        forward=_runner(path, "savedmodel", trust),
    )


def _words(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _arrays(path: Path) -> dict[str, Any]:
    try:
        return {name: value for name, value in stored_arrays(path).items() if value.dtype.kind in _NUMBERS}
    except (OSError, RuntimeError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise damaged(path, str(error)) from error


def _look_through(path: Path, config: Any, trust: bool) -> tuple[str, ...]:
    """Refuse layers with Python code in them; name classes that the loader will have to find."""
    if (lambdas := _lambdas(config)) and not trust:
        raise not_safe(path, f"its layer {lambdas[0]} is a Lambda with Python code in it")
    foreign = sorted({name for each in _objects(config) if (name := _foreign(each))})
    return (f"it needs classes of its own: {', '.join(foreign)}",) if foreign else ()


def _lambdas(config: Any) -> list[str]:
    """Names of layers that carry code: a Lambda whose function is not a name."""
    return [
        str(each.get("config", {}).get("name", "?"))
        for each in _objects(config)
        if each["class_name"] == "Lambda" and _holds_code(each.get("config", {}).get("function"))
    ]


def _holds_code(function: Any) -> bool:
    """Code is a list of marshalled bytes in the legacy format, and an object ``__lambda__`` in the new one."""
    return isinstance(function, list) or "__lambda__" in json.dumps(function)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("class_name"), str):
            yield value
        for each in value.values():
            yield from _objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from _objects(each)


def _foreign(described: Mapping[str, Any]) -> str:
    module, registered = described.get("module"), described.get("registered_name")
    if module is None:
        return str(registered or "")
    return "" if str(module).partition(".")[0] in ("keras", "builtins") else f"{module}.{described['class_name']}"


def _signature(config: Any) -> Signature:
    """The declared inputs; Keras stores no shapes of outputs."""
    inputs = []
    for each in _objects(config):
        details = each.get("config")
        if each["class_name"] == "InputLayer" and isinstance(details, dict):
            shape = details.get("batch_shape") or details.get("batch_input_shape") or []
            sizes = tuple("batch" if i == 0 and n is None else "?" if n is None else n for i, n in enumerate(shape))
            inputs.append(Port(str(details.get("name")), str(details.get("dtype", "float32")), sizes))
    return Signature(tuple(inputs))


def _safety(safe: bool) -> str:
    return (
        "numbers and a description of layers, no code" if safe else "it was loaded as trusted: a layer holds code"
    )


def _ports(described: list[dict[str, Any]]) -> tuple[Port, ...]:
    return tuple(
        Port(each["name"], each["dtype"], tuple("?" if size is None else size for size in each["shape"]))
        for each in described
    )


def _runner(path: Path, job: str, trust: bool) -> Forward:
    def run(example: Example) -> Mapping[str, Any]:
        args: tuple[Any, ...] = example.args
        if job == "keras" and len(args) > 1:
            args = (list(args),)
        call = Call(tuple(_arrayed(each) for each in args), {n: _arrayed(v) for n, v in example.kwargs.items()})
        if job == "keras" and example.kwargs and not example.args:
            call = Call((dict(call.kwargs),), {})
        answer, outputs = ask(
            {"do": job, "file": str(path), "safe": not trust, "compile": False}, [call], backend()
        )
        names = [each["name"] for each in answer["outputs"]]
        flat = outputs[0]
        names = names if len(names) == len(flat) else [f"output_{index}" for index in range(len(flat))]
        return dict(zip(names, flat, strict=True))

    return run


def _arrayed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_arrayed(each) for each in value]
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def backend() -> str:
    """The backend of Keras to open a file with: the one that is set, else TensorFlow if it is there, else torch."""
    if chosen := os.environ.get("KERAS_BACKEND"):
        return chosen
    return "tensorflow" if importlib.util.find_spec("tensorflow") else "torch"
