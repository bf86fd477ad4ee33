"""Files of ``torch.save``: read with the safe loader, or, where the user says so, with the one that runs code."""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from perdure.core.errors import PerdureError, UnreadableError, UnsafeFileError
from perdure.models.kinds import no_model
from perdure.models.zips import check_zip
from perdure.training.foreign.content import Content, corrupt, no_states

PICKLE = b"\x80"
ZIP = b"PK\x03\x04"
_LIGHTNING = "pytorch-lightning_version"
_TRUSTED = "it was read with trust=True: whatever code it carries has run"


def read_torch(path: Path, *, trust: bool = False) -> Content:
    """The content of a file of ``torch.save``, on the CPU whatever device it was written on.

    Args:
        path: The file.
        trust: Let it make any object, which may run any code.

    Raises:
        UnsafeFileError: It holds objects that only a pickle with code can make, and ``trust`` is False.
        CorruptError: It is torn or damaged, or no file of ``torch.save``.
        ConfigError: It is a program (TorchScript, torch.export).
        UnreadableError: The system does not let it be read.
    """
    notes: tuple[str, ...] = ()
    try:
        loaded = load(path, trust=False)
    except UnsafeFileError:
        if not trust:
            raise
        loaded, notes = load(path, trust=True), (_TRUSTED,)
    if isinstance(loaded, nn.Module):
        return Content(path, f"a whole {type(loaded).__name__}, pickled", loaded.state_dict(), True, notes)
    if not isinstance(loaded, Mapping):
        raise corrupt(path, f"it holds a {type(loaded).__name__} and no dict of states")
    bare = is_state_dict(loaded)
    return Content(path, _form(loaded, bare), loaded, bare, notes)


def is_state_dict(values: Mapping[Any, Any]) -> bool:
    """Whether these are the tensors of one module, and not sections."""
    tensors = [key for key, value in values.items() if isinstance(value, torch.Tensor)]
    extra = [key for key in values if str(key).endswith("_extra_state")]
    return bool(tensors) and len(tensors) + len(extra) == len(values)


def _form(values: Mapping[str, Any], bare: bool) -> str:
    if bare:
        return "a state_dict"
    where = "".join(f", {word} {values[key]}" for key, word in _COUNTS if isinstance(values.get(key), int))
    return ("a Lightning checkpoint" if _LIGHTNING in values else "a dict of states") + where


_CUT_SHORT = (EOFError, RuntimeError, zipfile.BadZipFile, ValueError, LookupError, TypeError, struct.error)
"""What torch raises of a file that is damaged or ends too early, besides its own errors."""

_COUNTS = (("epoch", "epoch"), ("global_step", "step"), ("step", "step"))


def load(path: Path, *, trust: bool) -> Any:
    """The object in a file of ``torch.save``; errors as ``read_torch``."""
    try:
        with open(path, "rb") as file:
            start = file.read(64)
        head = start[:4]
        if what := no_model(start):
            raise corrupt(path, what)
        if head == ZIP:
            _check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about pickle protocols
            return torch.load(path, map_location="cpu", weights_only=not trust)
    except PerdureError:
        raise
    except pickle.UnpicklingError as error:
        if not trust and (head[:1] == PICKLE or head == ZIP):
            raise _unsafe(path, str(error)) from None
        raise corrupt(path, "is no file of torch.save") from None
    except (AttributeError, ModuleNotFoundError) as error:
        if not trust:
            raise corrupt(path, str(error)) from None
        raise UnsafeFileError(
            f"{path} needs code that is not here: {error}", path=path, hint="import or install it, then try again"
        ) from error
    except _CUT_SHORT as error:
        if start and head[:1] != PICKLE and head != ZIP:
            raise corrupt(path, "is no file of torch.save") from None
        if "magic number" in str(error):
            raise corrupt(path, "it is a pickle, but not one that torch.save wrote") from None
        raise corrupt(path, (str(error) or "it ends too early").splitlines()[0][:200]) from None
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> UnreadableError:
    """The error for a file that the system does not give."""
    return UnreadableError(f"{path}: {error.strerror or error}", path=path, hint="check the path")


def _check_archive(path: Path) -> None:
    """torch does not look at the checksums in its own files; a flipped bit would be loaded as it is."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        if "constants.pkl" in names and "data.pkl" in names:
            hint = "torch.jit.load(path).state_dict() gives its tensors; save those, or restore from the checkpoint"
            raise no_states(path, "a TorchScript program", hint)
        if names & {"archive_format", "serialized_exported_program.json"} or "models/model.json" in names:
            hint = "torch.export.load(path).state_dict gives its tensors; save those with torch.save"
            raise no_states(path, "a program of torch.export", hint)
    check_zip(path)


def _unsafe(path: Path, message: str) -> UnsafeFileError:
    found = re.search(r"GLOBAL (\S+)", message)
    what = f"it holds a {found[1]}" if found else "it holds more than tensors and plain values"
    return UnsafeFileError(
        f"{path} could run code when it is loaded: {what}",
        path=path,
        hint="if you trust whoever made it, give trust=True: that may run any code in it, once; "
        "perdure.save then makes a file without code of what you need",
    )
