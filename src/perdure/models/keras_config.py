"""The description of a Keras model, as it stands in its files: looked through without building anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from perdure.models.formats import Port, Signature

_FUNCTIONS = ("activations", "constraints", "initializers", "losses", "metrics", "ops", "regularizers")
"""Where Keras keeps functions that a model may name; others, as ``keras.utils.get_file``, do more than compute."""


def lambdas_in(config: Any) -> list[str]:
    """Names of layers that carry code: a Lambda whose function is not a name."""
    return [
        str(_details(each).get("name", "?"))
        for each in _objects(config)
        if each["class_name"] == "Lambda" and _holds_code(_details(each).get("function"))
    ]


def _details(described: Mapping[str, Any]) -> Mapping[str, Any]:
    found = described.get("config")
    return found if isinstance(found, dict) else {}


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


def foreign_in(config: Any) -> list[str]:
    """Classes and functions that the loader would look for outside of Keras, or in parts of it that do more."""
    return sorted({name for each in _objects(config) if (name := _foreign(each))})


def _foreign(described: Mapping[str, Any]) -> str:
    module, registered = described.get("module"), described.get("registered_name")
    if module is None:
        return str(registered or "")
    parts, name = str(module).split("."), described["class_name"]
    if name == "function":
        known = parts[0] == "keras" and parts[-1] in _FUNCTIONS
        return "" if known else f"{module}.{described.get('config')}"
    return "" if parts[0] == "keras" else f"{module}.{name}"


def signature_in(config: Any) -> Signature:
    """The declared inputs; Keras stores no shapes of outputs."""
    inputs = []
    for each in _objects(config):
        details = _details(each)
        if each["class_name"] == "InputLayer":
            shape = details.get("batch_shape") or details.get("batch_input_shape") or []
            shape = shape if isinstance(shape, list) else []
            sizes = tuple("batch" if i == 0 and n is None else "?" if n is None else n for i, n in enumerate(shape))
            inputs.append(Port(str(details.get("name")), str(details.get("dtype", "float32")), sizes))
    return Signature(tuple(inputs))
