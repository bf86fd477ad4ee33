"""Reads what Keras and TensorFlow write: .keras, .h5 with a model or weights alone, SavedModel."""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.core.errors import MissingExtraError
from perdure.models.contents import Contents, Forward, damaged, not_safe
from perdure.models.formats import Example, Port, Signature
from perdure.models.keras_config import foreign_in, lambdas_in, signature_in
from perdure.models.keras_model import Call
from perdure.models.keras_process import ChildError, ask
from perdure.models.keras_stored import stored_arrays
from perdure.models.zips import check_zip

_PYTHON_OPERATORS = (b"PyFunc", b"EagerPyFunc", b"PyFuncStateless")
_FILE_OPERATORS = (b"WriteFile", b"ReadFile", b"MatchingFiles")
_ATTRIBUTES = ("model_config", "keras_version", "backend")
_INSTALL = "pip install 'perdure[keras]', and TensorFlow or torch"
_NUMBERS = "biufcV"  # V: bfloat16
_H5_NOTE = "HDF5 has no checksums here, so damage in the numbers shows only against a digest"


def read_keras(path: Path, trust: bool) -> Contents:
    """A ``.keras`` archive, read without building the model."""
    notes = check_zip(path)
    try:
        with zipfile.ZipFile(path) as archive:
            config = _object(archive.read("config.json"))
            metadata = _object(archive.read("metadata.json"))
    except (ValueError, KeyError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    safe, foreign = _look_through(path, config, trust)
    return Contents(
        f"a Keras model, {config.get('class_name', 'of unknown class')}",
        _safety(safe),
        _arrays(path).items(),
        safe,
        main=lambda name: not name.startswith("optimizer"),
        signature=signature_in(config),
        facts={"keras": metadata.get("keras_version", "?")},
        notes=(*notes, *_needs(foreign)),
        forward=_runner(path, "keras", trust, foreign),
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
        config = _object(attributes["model_config"])
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    safe, foreign = _look_through(path, config, trust)
    return Contents(
        f"a Keras model in the legacy format, {config.get('class_name', 'of unknown class')}",
        _safety(safe),
        _arrays(path).items(),
        safe,
        main=lambda name: not name.startswith("optimizer"),
        signature=signature_in(config),
        facts=facts,
        notes=(_H5_NOTE, "the legacy format of Keras; .keras holds more", *_needs(foreign)),
        forward=_runner(path, "keras", trust, foreign),
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


def _object(text: str | bytes) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"the description of the model is a {type(found).__name__}")
    return found


def _words(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _arrays(path: Path) -> dict[str, Any]:
    try:
        import h5py  # noqa: F401
    except ImportError:
        raise MissingExtraError(f"{path} needs h5py", hint="pip install 'perdure[keras]'") from None
    try:
        return {name: value for name, value in stored_arrays(path).items() if value.dtype.kind in _NUMBERS}
    except (OSError, RuntimeError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise damaged(path, str(error)) from error


def _look_through(path: Path, config: Any, trust: bool) -> tuple[bool, list[str]]:
    """Whether it holds no code, and what the loader would look for elsewhere; code is refused unless trusted."""
    if (lambdas := lambdas_in(config)) and not trust:
        raise not_safe(path, f"its layer {lambdas[0]} is a Lambda with Python code in it")
    return not lambdas, foreign_in(config)


def _needs(foreign: list[str]) -> tuple[str, ...]:
    return (f"it needs what is not in Keras: {', '.join(foreign)}",) if foreign else ()


def _safety(safe: bool) -> str:
    return (
        "numbers and a description of layers, no code" if safe else "it was loaded as trusted: a layer holds code"
    )


def _ports(described: list[dict[str, Any]]) -> tuple[Port, ...]:
    return tuple(
        Port(each["name"], each["dtype"], tuple("?" if size is None else size for size in each["shape"]))
        for each in described
    )


def _runner(path: Path, job: str, trust: bool, foreign: Sequence[str] = ()) -> Forward:
    def run(example: Example) -> Mapping[str, Any]:
        if foreign and not trust:
            raise not_safe(path, f"to build it, Keras imports {foreign[0]}")
        args: tuple[Any, ...] = example.args
        if job == "keras" and len(args) > 1:
            args = (list(args),)
        call = Call(tuple(_arrayed(each) for each in args), {n: _arrayed(v) for n, v in example.kwargs.items()})
        if job == "keras" and example.kwargs and not example.args:
            call = Call((dict(call.kwargs),), {})
        asked = {"do": job, "file": str(path), "safe": not trust, "compile": False}
        try:
            answer, outputs = ask(asked, [call], backend())
        except ChildError as error:
            if error.kind != "ModuleNotFoundError":
                raise
            raise MissingExtraError(f"{path} cannot be run here: {error.line}", hint=_INSTALL) from error
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
