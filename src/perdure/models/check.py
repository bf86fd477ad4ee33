"""``perdure.check_model``: what a model file is, whether it is whole, safe to load and sane; ours or anybody's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.core.digests import digest, size
from perdure.core.errors import ConfigError, CorruptError, PerdureError
from perdure.models.card import CARD, find_entry
from perdure.models.contents import Contents, damaged
from perdure.models.examples import example_from
from perdure.models.formats import Example
from perdure.models.kinds import kind_of, only_file
from perdure.models.read_keras import read_h5, read_keras, read_savedmodel
from perdure.models.read_onnx import read_onnx
from perdure.models.read_safetensors import read_index, read_safetensors
from perdure.models.read_torch import read_pt2, read_pth, read_torchscript
from perdure.models.report import Answer, ModelReport, Row
from perdure.models.tables import as_tensor, parameters_of, rows_of

_READERS: dict[str, Callable[[Path, bool], Contents]] = {
    "h5": read_h5,
    "keras": read_keras,
    "onnx": read_onnx,
    "pt2": read_pt2,
    "pth": read_pth,
    "pth-legacy": read_pth,
    "safetensors": read_safetensors,
    "savedmodel": read_savedmodel,
    "torchscript": read_torchscript,
}


def check_model(
    path: Path | str,
    *,
    example: Any = None,
    input_shapes: str | Sequence[str] = (),
    trust: bool = False,
) -> ModelReport:
    """Look at a model file of any kind: is it whole, what is in it, is it safe to load, does it run.

    Nothing in the file is executed, unless it is trusted. Files of Keras and TensorFlow are run in a process of
    their own.

    Args:
        path: A ``.pth``, ``.pt``, ``.bin``, ``.ckpt``, ``.safetensors`` (or the index of several), ``.pt2``,
            ``.onnx``, ``.keras`` or ``.h5`` file, or a SavedModel folder. What counts is what is in it, not its
            name.
        example: Inputs for a forward pass: a tensor, a tuple of inputs, a dict of inputs by name, or the path of a
            file (``.npy``, ``.npz``, ``.pt``).
        input_shapes: Shapes for made-up inputs instead: ``"1,3,224,224"``, or ``["1,128:int64", "1,128:bool"]``.
        trust: Load also what can run code. Only for files of people you trust.

    Returns:
        The report; ``print`` it, or read its fields.

    Raises:
        CorruptError: It is damaged, cut short, or not the file that the model card beside it describes.
        UnsafeFileError: It could run code, and is not trusted.
        ConfigError: There is no such file; or inputs were given that it does not take.
        MissingExtraError: A package is needed to read it.
    """
    file = only_file(Path(path))
    kind = kind_of(file)
    inputs = _inputs(example, input_shapes)
    card = compare_with_card(file)
    contents, rows = _looked_through(file, kind, trust)
    main = [row for row in rows if contents.main is None or contents.main(row.name)]
    report = ModelReport(
        path=file,
        kind=kind,
        what=contents.what,
        bytes=size(file) + sum(map(size, contents.files)),
        digest=digest(file),
        card=card,
        safe=contents.safe,
        safety=contents.safety,
        tensors=tuple(rows),
        parameters=parameters_of(main),
        signature=contents.signature,
        facts=contents.facts,
        notes=contents.notes,
        problems=_problems(rows),
    )
    return report if inputs is None else _with_forward(report, contents, inputs)


def compare_with_card(path: Path) -> str:
    """What the model card beside a file says of it, in words; empty if it says nothing.

    Raises:
        CorruptError: The file is not the one that the card describes.
    """
    entry = find_entry(path)
    if entry is None:
        return ""
    pairs = [
        (path, entry.file),
        *((path.with_name(str(each.get("file"))), each) for each in _companions(entry.file)),
    ]
    for file, told in pairs:
        if not file.exists() or digest(file) != told.get("digest"):
            raise CorruptError(
                f"{file} is not the file that {CARD} describes",
                path=file,
                problems=[_otherwise(file, told)],
                hint="it was damaged or changed after the export; copy it again",
            )
    run, step = entry.model.get("run"), entry.model.get("step")
    origin = (f" of run {run}" if run else "") + (f" at step {step}" if step is not None else "")
    return f"as {CARD} describes it{',' if origin else ''}{origin}"


def _companions(file: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = file.get("companions")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _otherwise(file: Path, told: Mapping[str, Any]) -> str:
    if not file.exists():
        return f"{file.name} is not there"
    if size(file) != told.get("bytes"):
        return f"{file.name} has {size(file)} bytes, {told.get('bytes')} were written"
    return f"{file.name} has as many bytes as were written, but others"


def _inputs(example: Any, shapes: str | Sequence[str]) -> Example | None:
    shapes = [shapes] if isinstance(shapes, str) else shapes
    if example is None or isinstance(example, (str, Path)):
        return example_from(None if example is None else Path(example), shapes)
    if shapes:
        raise ConfigError("an example and input shapes say the same thing", hint="give one of them")
    if isinstance(example, Example):
        return example
    if isinstance(example, Mapping):
        return Example(kwargs=example)
    return Example(tuple(example) if isinstance(example, (tuple, list)) else (example,))


def _looked_through(path: Path, kind: str, trust: bool) -> tuple[Contents, list[Row]]:
    """What a reader says of a file, and its tensors; whatever else goes wrong in it is the fault of the file."""
    try:
        contents = _read(path, kind, trust)
        return contents, _rows(contents)
    except PerdureError:
        raise
    except Exception as error:  # strangers' files lead libraries to errors of any kind
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def _read(path: Path, kind: str, trust: bool) -> Contents:
    if kind == "index":
        return read_index(path, trust, lambda shard, trusted: _read(shard, kind_of(shard), trusted))
    return _READERS[kind](path, trust)


def _rows(contents: Contents) -> list[Row]:
    if isinstance(contents.tensors, list) and contents.tensors and isinstance(contents.tensors[0], dict):
        return [Row(**{**each, "shape": tuple(each["shape"])}) for each in contents.tensors]
    return rows_of(contents.tensors)


def _problems(rows: Sequence[Row]) -> tuple[str, ...]:
    """NaN is always wrong. Inf is not: masks of attention are made of it."""
    bad = [row for row in rows if row.nan]
    return tuple(f"{row.name} holds {row.nan:,} NaN of {row.values:,} numbers" for row in bad[:20])


def _with_forward(report: ModelReport, contents: Contents, inputs: Example) -> ModelReport:
    if contents.forward is None:
        raise ConfigError(
            f"{report.path} holds no graph, so it cannot be run: it is {contents.what}",
            hint="load the weights into their model, or check a .pt2, .onnx, .keras or SavedModel file",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = contents.forward(inputs)
    except PerdureError:
        raise
    except Exception as error:  # whatever the model or its runtime says of these inputs
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ConfigError(
            f"{report.path} does not run on these inputs: {(lines or [type(error).__name__])[0][:300]}",
            hint=_takes(report),
        ) from error
    answers = tuple(_answer(name, value) for name, value in outputs.items())
    wrong = tuple(f"output {each.name} is not finite" for each in answers if not each.finite)
    return replace(report, forward=answers, problems=(*report.problems, *wrong))


def _takes(report: ModelReport) -> str:
    ports = [f"{p.name} {p.dtype} [{', '.join(map(str, p.shape))}]" for p in report.signature.inputs]
    return f"it takes {'; '.join(ports)}" if ports else "give inputs of the shapes and types that it was made for"


def _answer(name: str, value: Any) -> Answer:
    tensor = as_tensor(value)
    finite = bool(tensor.isfinite().all()) if tensor.is_floating_point() or tensor.is_complex() else True
    return Answer(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), finite)
