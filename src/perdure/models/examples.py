"""Inputs for a model, from a file or from a typed shape: for ``perdure export`` and ``perdure check-model``."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perdure.core.errors import ConfigError, UnsafeFileError
from perdure.models.formats import Example

SEED = 0
"""Of the numbers that fill a shape: the same every time, so that figures can be compared."""

_SHAPE = re.compile(r"(\d+(?:,\d+)*)?(?::(\w+))?")
_KINDS = (".npy", ".npz", ".pt", ".pth")


def example_from(file: Path | None, shapes: Sequence[str] = ()) -> Example | None:
    """The example that the flags ``--example`` and ``--input-shape`` name.

    Args:
        file: As for ``load_example``.
        shapes: One a positional input, as for ``parse_shape``.

    Returns:
        None if neither was given.

    Raises:
        ConfigError: Both were given, or one of them cannot be read.
    """
    if file is not None and shapes:
        raise ConfigError("--example and --input-shape say the same thing", hint="give one of them")
    if file is not None:
        return load_example(file)
    return Example(tuple(parse_shape(shape) for shape in shapes)) if shapes else None


def parse_shape(text: str) -> torch.Tensor:
    """A tensor of that shape: ``1,3,224,224`` or ``1,128:int64``.

    Floats are drawn from a normal distribution, integers from {0, 1} (small enough for every table of embeddings),
    always the same ones.

    Raises:
        ConfigError: It is no shape, or torch has no such type.
    """
    match = _SHAPE.fullmatch(text.replace(" ", ""))
    dtype = getattr(torch, match[2] or "float32", None) if match else None
    if match is None or not text or not isinstance(dtype, torch.dtype):
        raise ConfigError(f"no input shape: {text!r}", hint="write sizes and, if not float32, a type: 1,128:int64")
    shape = [int(size) for size in match[1].split(",")] if match[1] else []
    generator = torch.Generator().manual_seed(SEED)
    if dtype.is_floating_point or dtype.is_complex:
        drawn = torch.randn(
            shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32
        )
    else:
        drawn = torch.randint(0, 2, shape, generator=generator)
    return drawn.to(dtype)


def load_example(path: Path) -> Example:
    """The inputs in a file.

    Args:
        path: ``.npy`` (one input), ``.npz`` (inputs by name; ``arr_0``, ``arr_1`` ... are positional), or ``.pt``
            (a tensor, a list or tuple of inputs, or a dict of inputs by name), read without running code from it.

    Raises:
        ConfigError: There is no such file, or it holds no inputs.
        UnsafeFileError: It is a pickle that could run code.
    """
    if path.suffix not in _KINDS:
        raise ConfigError(
            f"an example is one of {', '.join(_KINDS)}, got {path}", hint="numpy.save or torch.save it"
        )
    try:
        found = _load(path)
    except pickle.UnpicklingError as error:
        raise _unsafe(path) from error
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"the example {path} cannot be read: {reason}", hint="check the path") from error
    return _as_example(path, found)


def _load(path: Path) -> Any:
    if path.suffix in (".pt", ".pth"):
        return torch.load(path, map_location="cpu", weights_only=True)
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return torch.from_numpy(loaded)
    with loaded:
        named = {name: torch.from_numpy(loaded[name]) for name in loaded.files}
    positional = [named.pop(f"arr_{index}") for index in range(len(named)) if f"arr_{index}" in named]
    return named if not positional else (*positional, named) if named else tuple(positional)


def _as_example(path: Path, found: Any) -> Example:
    if isinstance(found, torch.Tensor):
        return Example((found,))
    if isinstance(found, dict) and found and all(isinstance(name, str) for name in found):
        return Example(kwargs=found)
    if isinstance(found, (list, tuple)) and found:
        if isinstance(found[-1], dict) and all(isinstance(name, str) for name in found[-1]):
            return Example(tuple(found[:-1]), found[-1])
        return Example(tuple(found))
    raise ConfigError(
        f"the example {path} holds a {type(found).__name__}",
        hint="a tensor, a list or tuple of inputs, or a dict of inputs by name",
    )


def _unsafe(path: Path) -> UnsafeFileError:
    return UnsafeFileError(
        f"the example {path} could run code when it is loaded",
        path=path,
        hint="save tensors and plain containers only: torch.save(images, 'example.pt')",
    )
