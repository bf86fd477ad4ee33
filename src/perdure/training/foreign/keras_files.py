"""Files of Keras, put into a live Keras model by Keras's own loader; on any backend.

Keras makes the variables of an optimizer at the first step only, and its loader skips what is not there yet,
without a word (keras 3.15, ``saving_lib._load_state``): the optimizer is built first, so that its slots and its
step count come back. A whole-model ``.h5`` holds them in a group of its own that ``load_weights`` does not look at.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.errors import ConfigError, MissingExtraError, StateMismatchError
from perdure.models.zips import check_zip
from perdure.training.foreign.content import Content, corrupt
from perdure.training.foreign.taking import Taken

_NOT_LOADED = "could not be loaded"


def is_keras(value: Any) -> bool:
    """Whether it is a model of Keras; without importing Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, getattr(keras, "Model", ()))


def take_over_keras(content: Content, objects: Mapping[str, Any]) -> Taken:
    """Load a ``.keras``, ``.h5`` or ``.weights.h5`` file into a live model, and its optimizer if it is compiled.

    Args:
        content: The file.
        objects: One Keras model; its own optimizer may be named too.

    Raises:
        ConfigError: There is no Keras model among the objects, or more than one.
        StateMismatchError: The model does not fit, or an optimizer was asked for and is not in the file; the model
            is as it was.
        CorruptError: The file is damaged.
    """
    models = {name: value for name, value in objects.items() if is_keras(value)}
    if len(models) != 1:
        raise ConfigError(
            f"{content.path} is a file of Keras, and {len(models)} of the objects are models of Keras",
            hint="give it one: perdure.restore(path, model=model); to other models there is no way by name",
        )
    ((name, model),) = models.items()
    others = {key: value for key, value in objects.items() if key != name}
    wrong = [key for key, value in others.items() if value is not getattr(model, "optimizer", None)]
    if wrong:
        raise StateMismatchError(
            f"{content.path} does not hold all that was asked for",
            differences=[f"{key} is not in it: a file of Keras holds a model and its optimizer" for key in wrong],
            hint="leave it out of the call; it then begins as it is",
        )
    return _load(content, name, model, asked=tuple(others))


def _load(content: Content, name: str, model: Any, *, asked: tuple[str, ...]) -> Taken:
    path = content.path
    if zipfile.is_zipfile(path):
        check_zip(path)  # neither Keras nor h5py look at the checksums of the archive
    _build(path, model)
    to_numpy = sys.modules["keras"].ops.convert_to_numpy
    before = [(variable, to_numpy(variable)) for variable in _variables(model)]
    try:
        notes = _load_weights(path, model)
        optimizer = _load_optimizer(path, model)
        if asked and not optimizer:
            raise StateMismatchError(
                f"{path} does not hold all that was asked for",
                differences=[f"{key} is not in it, or does not fit: only the weights are" for key in asked],
                hint="train on from a .keras file, which holds the optimizer",
            )
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        raise
    kinds = {"module", "optimizer", "scheduler"} if optimizer else {"module"}  # the rate is one of its variables
    taken = (name, *asked) if asked else (name, *([f"{name}.optimizer"] if optimizer else []))
    return Taken(taken, kinds, notes=notes)


def _variables(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *(optimizer.variables if optimizer is not None else [])]


def _build(path: Path, model: Any) -> None:
    """Give the model and its optimizer their variables: from the shapes in the file, where the model has none."""
    if not model.built and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            built = json.loads(archive.read("config.json")).get("build_config")
        if built:
            model.build_from_config(built)
            model.built = bool(model.variables)  # Keras leaves it False in a subclass, all of whose layers it built
    if not model.built or not model.variables:
        raise StateMismatchError(
            f"the model has no variables yet, and {path} does not say of what shape its input is",
            differences=["it is not built"],
            hint="call it once on a batch, then restore",
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def _load_weights(path: Path, model: Any) -> list[str]:
    """By Keras's loader; what it only warns of is an error here, or a note if it is about the optimizer."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model.load_weights(str(path))
        except (OSError, KeyError, EOFError) as error:
            raise corrupt(path, str(error).splitlines()[0][:200] or type(error).__name__) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise StateMismatchError(
                f"the live model does not fit {path}",
                differences=[" ".join(str(error).split())[:400]],
                hint="build the model as it was built for the file",
            ) from error
        except ImportError as error:
            raise MissingExtraError(f"reading {path} needs h5py: {error}", hint="pip install h5py") from error
    return [str(one.message).splitlines()[0] for one in said if _NOT_LOADED in str(one.message)]


def _load_optimizer(path: Path, model: Any) -> bool:
    """Whether the optimizer now has what the file holds of it."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return False
    import h5py

    with _hdf5(path) as file, h5py.File(file, "r") as h5:
        is_legacy = "model_weights" in h5 or "layer_names" in h5.attrs
        stored = list(_in_legacy(h5) if is_legacy else _in_own(h5))
    live = list(optimizer.variables)
    if [tuple(value.shape) for value in stored] != [tuple(variable.shape) for variable in live]:
        return False
    if is_legacy:
        for variable, value in zip(live, stored, strict=True):
            variable.assign(value)
    return True


def _hdf5(path: Path) -> Any:
    """The HDF5 part of a file, open for reading."""
    if not zipfile.is_zipfile(path):
        return open(path, "rb")
    with zipfile.ZipFile(path) as archive:
        return io.BytesIO(archive.read("model.weights.h5"))


def _in_own(h5: Any) -> Iterator[Any]:
    """Variables of the optimizer in Keras 3's own form: ``optimizer/vars/0`` and on."""
    group = h5.get("optimizer/vars") or h5.get("_optimizer/vars") or {}
    for number in range(len(group)):
        yield np.array(group[str(number)])


def _in_legacy(h5: Any) -> Iterator[Any]:
    """Variables of the optimizer in the legacy form: named in an attribute, in the order of ``variables``."""
    group = h5.get("optimizer_weights")
    if group is not None:
        for name in group.attrs["weight_names"]:
            yield np.array(group[name.decode() if isinstance(name, bytes) else name])
