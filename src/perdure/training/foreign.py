"""Checkpoint files that people write by hand with ``torch.save``: read as data only, taken over by name."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from perdure.core.errors import CorruptError, StateMismatchError, UnreadableError, UnsafeFileError
from perdure.training.world.code import load_own_state
from perdure.training.world.modules import ModulePart
from perdure.training.world.names import ParameterNames
from perdure.training.world.optimizers import OptimizerPart
from perdure.training.world.part import Part
from perdure.training.world.refill import Refill
from perdure.training.world.stateful import StatefulPart
from perdure.training.world.world import World

_PICKLE = b"\x80"
_ZIP = b"PK\x03\x04"
_ENDINGS = ("", "_state_dict", "_state")
_USUAL = {
    "module": ("model", "net", "state_dict"),
    "optimizer": ("optimizer", "optim", "opt"),
    "scheduler": ("scheduler", "lr_scheduler", "sched"),
    "scaler": ("scaler", "grad_scaler"),
}
"""What the parts of a checkpoint are called in hand-written files; with each of the endings."""


def read_foreign(path: Path) -> Mapping[str, Any]:
    """The content of a ``.pth`` file, read so that it cannot run code.

    Raises:
        UnsafeFileError: It holds objects that only a pickle with code can make.
        CorruptError: It is torn or damaged, or no file of ``torch.save``.
        UnreadableError: The system does not let it be read.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(4)
        _check_crc(path, head)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about pickle protocols
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if head[:1] == _PICKLE or head == _ZIP:
            raise _unsafe(path, str(error)) from None
        raise _corrupt(path, "is no file of torch.save") from None
    except (EOFError, RuntimeError, zipfile.BadZipFile, ValueError, KeyError, IndexError) as error:
        raise _corrupt(path, (str(error) or "it ends too early").splitlines()[0][:200]) from None
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}", path=path, hint="check the path") from error
    if not isinstance(content, Mapping):
        raise _corrupt(path, f"it holds a {type(content).__name__} and no dict of states")
    return content


def _check_crc(path: Path, head: bytes) -> None:
    """torch does not look at the checksums in its own files; a flipped bit would be loaded as it is."""
    if head == _ZIP:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        if bad is not None:
            raise zipfile.BadZipFile(f"{bad} does not have the checksum that was written")


def _unsafe(path: Path, message: str) -> UnsafeFileError:
    found = re.search(r"GLOBAL (\S+)", message)
    what = f"it holds a {found[1]}" if found else "it holds more than tensors and plain values"
    allow = f"torch.serialization.add_safe_globals([{found[1]}])" if found else ""
    return UnsafeFileError(
        f"{path} could run code when it is loaded: {what}",
        path=path,
        hint="if you trust whoever made it, load it once with torch.load(path, weights_only=False) and save what "
        f"you need with perdure.save{', or allow that class: ' + allow if allow else ''}",
    )


def _corrupt(path: Path, problem: str) -> CorruptError:
    return CorruptError(
        f"{path} cannot be read", path=path, problems=[problem], hint="copy it again, or take an older file"
    )


def take_over(path: Path, content: Mapping[str, Any], world: World) -> dict[str, Any]:
    """Put what a foreign file holds into the tracked objects, each found under one of its usual names.

    Returns:
        What nobody took, by key.

    Raises:
        StateMismatchError: An object has no counterpart in the file, or does not fit it.
    """
    parts = world.parts()
    keys = {part.path: _section(part, parts, content) for part in parts}
    missing = [name for name, key in keys.items() if key is None]
    if missing:
        has = ", ".join(str(key) for key in list(content)[:20])
        raise StateMismatchError(
            f"{path} does not hold all that was asked for",
            differences=[f"{name} is not in it; it has: {has}" for name in missing],
            hint="leave it out of the call to take over the rest; it then begins as it is",
        )
    sections = {path: content[key] if key else content for path, key in keys.items()}
    names = world.parameter_names()
    fitted = {p.path: _as_saved(p, sections[p.path]) for p in parts if isinstance(p, ModulePart)}
    found = [line for part in parts for line in _differences(part, sections[part.path], fitted, names)]
    if found:
        raise StateMismatchError(f"the live objects do not fit {path}", differences=found)
    refill = Refill()
    for part in sorted(parts, key=lambda part: part.order):
        section = sections[part.path]
        if isinstance(part, ModulePart):
            part.restore_values(fitted[part.path], refill)
        elif isinstance(part, OptimizerPart):
            part.load_by_order(section, refill)
        elif isinstance(part, StatefulPart):
            load_own_state(part.path, part.value, section, refill)
        else:
            part.restore({"value": section}, names, refill)
    used = set(keys.values())
    return {} if "" in used else {key: value for key, value in content.items() if key not in used}


def _section(part: Part, parts: list[Part], content: Mapping[str, Any]) -> str | None:
    """Key of the section for a part; ``""`` for the whole file; None if there is none."""
    for key in _keys(part, parts):
        if key in content:
            return key
    tensors = bool(content) and all(isinstance(value, torch.Tensor) for value in content.values())
    return "" if tensors and isinstance(part, ModulePart) and _only_one(part, parts) else None


def _keys(part: Part, parts: list[Part]) -> Iterator[str]:
    usual = _USUAL.get(_role(part), ()) if _only_one(part, parts) else ()
    for name in (part.path, *usual):
        for ending in _ENDINGS:
            yield name + ending


def _role(part: Part) -> str:
    if isinstance(part, StatefulPart):
        return "scaler" if hasattr(part.value, "get_scale") else "scheduler"
    return part.kind


def _only_one(part: Part, parts: list[Part]) -> bool:
    return sum(_role(other) == _role(part) for other in parts) == 1


def _differences(
    part: Part, section: Any, fitted: Mapping[str, dict[str, Any]], names: ParameterNames
) -> list[str]:
    if isinstance(part, ModulePart):
        return part.differences(fitted[part.path], names)
    if isinstance(part, OptimizerPart):
        return part.order_differences(section)
    return [] if isinstance(part, StatefulPart) else part.differences({"value": section}, names)


def _as_saved(part: ModulePart, section: Any) -> dict[str, Any]:
    """The file's tensors in the form of a saved state of the module."""
    mine = part.names()
    states = _by_name(section, {*mine.parameters, *mine.buffers}) if isinstance(section, Mapping) else {}
    transient = [name for name, slot in mine.buffers.items() if not slot.is_persistent]
    saved: dict[str, Any] = {"parameters": {}, "buffers": {}, "extra": {}}
    for name, state in states.items():
        owner, _, key = name.rpartition(".")
        if key == "_extra_state":
            saved["extra"][owner] = state
        else:
            saved["buffers" if name in mine.buffers else "parameters"][name] = state
    return saved | {"transient": transient, "lazy": transient, "ties": []}


def _by_name(section: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """The tensors of a state_dict by canonical name: without the prefixes of wrappers."""
    states = {_without(key, "_orig_mod"): value for key, value in section.items()}
    while states and not known & states.keys() and len({key.partition(".")[0] for key in states}) == 1:
        states = {key.partition(".")[2]: value for key, value in states.items()}
    return {key if key in known else _without(key, "module"): value for key, value in states.items()}


def _without(key: str, part: str) -> str:
    return ".".join(word for word in key.split(".") if word != part)
