"""The words of an export: what goes in, what comes out, and what a kind of model file must be able to do.

Each format is one ``Format`` in ``FORMATS``; ``perdure.models.export.export_model`` does for all of them what is
the same: room, temporary names, renames, records, the card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError

Scalar = int | float | str | bool | None


@dataclass(frozen=True)
class Facts:
    """What is known of the training; plain values, for the card.

    Attributes:
        run: Name of the run; empty if there is none.
        step: Finished steps; None if unknown.
        epoch: Present epoch, from 0.
        batch: Batches of it that are done.
        metrics: Newest value of each metric.
        libraries: Name to version.
        hardware: Free words, for example ``{"device": "cuda", "card": "Tesla T4"}``.
        weights: Which weights these are: ``"live"``, or the name of an average.
    """

    run: str = ""
    step: int | None = None
    epoch: int | None = None
    batch: int | None = None
    metrics: Mapping[str, Scalar] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, Scalar] = field(default_factory=dict)
    weights: str = "live"


@dataclass(frozen=True)
class Example:
    """Inputs that a model takes: ``model(*args, **kwargs)``."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Port:
    """One input or output.

    Attributes:
        name: Its name in the graph; for outputs that are a dict, the key.
        dtype: For example ``"float32"``.
        shape: A string such as ``"batch"`` where any size goes.
        keyword: An input that is given by its name: ``model(mask=mask)``.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    keyword: bool = False


@dataclass(frozen=True)
class Signature:
    """What goes into the model and what comes out of it."""

    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()


@dataclass(frozen=True)
class Source:
    """A model that is to become files.

    Attributes:
        tensors: Canonical names (without ``module.`` and ``_orig_mod.``) to tensors, on any device.
        module: The live ``torch.nn.Module`` or ``keras.Model``; None if there are only tensors. Never changed.
        example: Inputs for graphs and for the comparison of outputs; None if there are none.
        framework: ``"torch"`` or ``"keras"``.
        dynamic: The batch may have another size than in the example.
        classic: What the dict of ``pth-classic`` holds besides the model: ``epoch``, ``optimizer_state_dict`` ...
        scratch: What the formats of one export share: outputs, the traced graph, the process that proves.
        closing: Closed when the export ends; for what stands in ``scratch``.
    """

    tensors: Mapping[str, Any]
    module: Any = None
    example: Example | None = None
    framework: str = "torch"
    dynamic: bool = True
    classic: Mapping[str, Any] = field(default_factory=dict)
    scratch: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    closing: ExitStack = field(default_factory=ExitStack, compare=False, repr=False)


@dataclass(frozen=True)
class Difference:
    """How far one output of the file is from the live model's, over all batches that were tried.

    Attributes:
        name: Name of the output.
        dtype: Type of its numbers.
        largest: Largest absolute difference.
        tolerance: Absolute difference that is accepted for this type, as a part of the largest value.
        scale: Largest absolute value of the live output.
    """

    name: str
    dtype: str
    largest: float
    tolerance: float
    scale: float


@dataclass(frozen=True)
class Parity:
    """What a fresh process found in a file.

    Attributes:
        loader: How it was opened, for example ``"torch.load(weights_only=True)"``.
        tensors: How many tensors were compared bit for bit; 0 where the format has no names for them.
        outputs: Differences to the live model's outputs; empty if there was no forward pass.
        batches: Sizes of the batches that were tried.
        where: ``"fresh process"``, or ``"this process"`` where only that was possible.
        note: Why something was not looked at; empty if everything was.
    """

    loader: str
    tensors: int = 0
    outputs: tuple[Difference, ...] = ()
    batches: tuple[int, ...] = ()
    where: str = "fresh process"
    note: str = ""


@dataclass(frozen=True)
class Exported:
    """A finished file.

    Attributes:
        format: Name of its format.
        path: The file (a folder for ``savedmodel``).
        bytes: Its size, with companions.
        digest: ``"sha256:..."`` of the file; for a folder, of its sorted ``<sha256>  <relative path>`` lines.
        parity: What the proof found; None only for files that nothing could prove.
        companions: Further files that belong to it, such as the external data of a large ONNX model.
        notes: What the user should know, one sentence each: a fixed batch, what the format loses.
        digests: Name to digest, of itself and of each companion.
        reused: It was there, whole and proved, from an earlier export of the same model.
    """

    format: str
    path: Path
    bytes: int
    digest: str
    parity: Parity | None = None
    companions: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    reused: bool = False


@dataclass(frozen=True)
class Format:
    """A kind of model file.

    Attributes:
        name: What users write in ``formats=``.
        suffix: End of the file name, with the dot.
        framework: ``"torch"`` or ``"keras"``: which models it is for.
        what: A few words for tables and errors.
        check: Raises, before anything is written, what makes the format impossible for this source:
            ``CannotCarryError`` (names tensor or operator, and the format that can), ``ConfigError`` (no example),
            ``MissingExtraError``. Cheap.
        size: Bytes that it will need at most, known beforehand.
        write: Writes to a path that has its final name but lies in a temporary folder of its own. It may make a
            folder of it, and may put companions beside it. Returns notes for the user. stdout stays clean.
        prove: Opens the written path in a fresh process, runs it, compares, and returns what was found. Raises
            ``CorruptError`` when the file is not what it should be.
    """

    name: str
    suffix: str
    framework: str
    what: str
    check: Callable[[Source], None]
    size: Callable[[Source], int]
    write: Callable[[Source, Path], tuple[str, ...]]
    prove: Callable[[Source, Path], Parity]


FORMATS: dict[tuple[str, str], Format] = {}
"""(framework, name) to format; entered by ``register`` when ``models.export`` imports the modules of formats."""


def register(format: Format) -> Format:
    """Enter a format into ``FORMATS``."""
    FORMATS[format.framework, format.name] = format
    return format


def find_format(name: str, framework: str) -> Format:
    """The format that a user named.

    Raises:
        ConfigError: There is none of that name for this framework.
    """
    if (found := FORMATS.get((framework, name))) is not None:
        return found
    others = sorted(other for other, known in FORMATS if known == name)
    known = [known for other, known in FORMATS if other == framework]
    what = (
        f"the format {name!r} is for {' and '.join(others)} models" if others else f"no such model format: {name!r}"
    )
    raise ConfigError(what, hint=f"for this {framework} model use {' or '.join(map(repr, known))}")
