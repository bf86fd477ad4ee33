"""The names of a foreign state_dict and those of a live module, brought together.

Wrappers (DataParallel, DistributedDataParallel, AveragedModel, torch.compile) put ``module.`` or ``_orig_mod.``
into names, at any depth; trainers and bigger models put a name of their own before all of them. Neither says
anything of which tensor it is.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from perdure.training.world.modules import ModulePart
from perdure.training.world.names import ModuleNames

_WRAPPING = ("module", "_orig_mod")
_USUAL = ("model", "net")
"""What trainers call the model before the names of its tensors."""
_COUNTERS = ("num_batches_tracked",)
"""Buffers that older files of torch lack, and torch itself lets begin at zero."""
_BOOKKEEPING = ("n_averaged",)
"""What wrappers keep beside the tensors of a model."""


@dataclass
class Match:
    """How the tensors of a file fit a module.

    Attributes:
        saved: Those that belong to it, in the form of a saved state of ``ModulePart``.
        left: Those that do not, by their key in the file.
        notes: What the reader should say of it.
        differences: Why it does not fit, beyond what ``ModulePart.differences`` finds.
    """

    saved: dict[str, Any]
    left: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def match(part: ModulePart, section: Any) -> Match:
    """Give each tensor of a section of a file to its place in a live module.

    Args:
        part: The module.
        section: Its state in the file: a ``state_dict``, or a whole module.
    """
    if isinstance(section, nn.Module):
        section = section.state_dict()
    if not isinstance(section, Mapping):
        return Match(_form(part.names(), {}), differences=[f"{part.path}: that is a {type(section).__name__}"])
    section = {str(key): value for key, value in section.items()}
    mine = part.names()
    wanted = _wanted(mine)
    names = _Names(wanted, section, part.path, adapter=_adapter_of(part.value, wanted, section))
    given = {
        names.of_key[key]: value
        for key, value in section.items()
        if key in names.of_key and (isinstance(value, torch.Tensor) or key.endswith("_extra_state"))
    }
    found = Match(_form(mine, given), notes=names.notes(part.path))
    for key, value in section.items():
        if not isinstance(value, torch.Tensor) and not key.endswith("_extra_state"):
            found.differences.append(f"{part.path}: {key} is a {type(value).__name__} in the file, and no tensor")
        elif isinstance(value, torch.Tensor) and value.is_meta:
            found.differences.append(f"{part.path}: {key} is a shape without values in the file (device meta)")
        elif key in names.of_key:
            continue
        elif names.is_aside(key) or _may_be_left(part.value, key, mine, names):
            found.left[key] = value
        elif (inner := names.inner(key)) in found.saved["parameters"] or inner in found.saved["buffers"]:
            found.differences.append(f"{part.path}: {inner} is twice in the file, once as {key}")
        else:  # of this module by its name, and not in it: a difference
            found.saved["parameters"][inner] = value
    found.notes += _tolerate(found.saved, mine, given, names)
    found.notes += _widen(part.path, found.saved, mine)
    found.differences += _torn_ties(part.path, mine, given)
    if names.rivals:
        rivals = ", ".join(f"{rival}.*" for rival in names.rivals[:5])
        found.differences.append(
            f"{part.path}: several parts of the file fit: {rivals}; name it like the one you mean"
        )
    return found


def _form(mine: ModuleNames, given: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by canonical name, as ``ModulePart`` saves them."""
    transient = [name for name, slot in mine.buffers.items() if not slot.is_persistent]
    saved: dict[str, Any] = {"parameters": {}, "buffers": {}, "extra": {}}
    for name, value in given.items():
        owner, _, key = name.rpartition(".")
        if key == "_extra_state":
            saved["extra"][owner] = value
        else:
            saved["buffers" if name in mine.buffers else "parameters"][name] = value
    return saved | {"transient": transient, "lazy": list(transient), "ties": []}


def _wanted(mine: ModuleNames) -> list[str]:
    """Every name that a state_dict of the module may hold."""
    kept = [name for name, slot in mine.buffers.items() if slot.is_persistent]
    extra = [f"{name}._extra_state" if name else "_extra_state" for name in mine.modules]
    return [*mine.parameters, *kept, *extra]


class _Names:
    """Keys of a file and names of a module.

    Attributes:
        of_key: Key in the file to name in the module.
        aside: What stands before the names of this module in the file, and not before those of others.
        added: What stands before the names in the module and not in the file.
        adapter: The file holds only this adapter of the module; empty if it holds a whole state.
        rivals: Parts of the file that fit equally well; empty if one fits best.
    """

    def __init__(self, wanted: Iterable[str], keys: Iterable[str], path: str, *, adapter: str = "") -> None:
        self.adapter = adapter
        self.keys = {key: bare_name(key) for key in keys}
        live = _unique((_without_adapter(bare_name(name), adapter), name) for name in wanted)
        self.aside, self.added, self.rivals = _prefixes(set(self.keys.values()), set(live), path)
        exact = set(wanted)
        taken: dict[str, str] = {key: key for key in self.keys if key in exact and not adapter and not self.aside}
        for key in self.keys:
            name = live.get(self.inner(key))
            if name is not None and key not in taken and not self.is_aside(key):
                taken.setdefault(name, key)
        self.of_key = {key: name for name, key in taken.items()}

    def inner(self, key: str) -> str:
        """A key without wrappers, and with the prefix that the module's own names have."""
        bare = self.keys[key]
        if self.aside:
            bare = bare.removeprefix(f"{self.aside}.")
        return f"{self.added}.{bare}" if self.added else bare

    def is_aside(self, key: str) -> bool:
        """Whether a key belongs to something beside the module."""
        return bool(self.aside) and not self.keys[key].startswith(f"{self.aside}.")

    def notes(self, path: str) -> list[str]:
        """What was done to names, if it may surprise."""
        notes = []
        if self.adapter:
            notes.append(f"{path}: the adapter {self.adapter!r} only; the base model is as it was")
        if self.aside:
            notes.append(f"{path}: what the file calls {self.aside}.*")
        if self.added:
            notes.append(f"{path}: the file is one of {self.added}.*, by the names here")
        return notes


def bare_name(name: str) -> str:
    """A name without the words of wrappers."""
    return ".".join(word for word in name.split(".") if word not in _WRAPPING)


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Bare name to name; where two names become one, both are left out, and only the exact key finds them."""
    listed = list(pairs)
    count = Counter(bare for bare, _ in listed)
    return {bare: name for bare, name in listed if count[bare] == 1}


def _prefixes(keys: set[str], live: set[str], path: str) -> tuple[str, str, list[str]]:
    """What to take off the keys, or put before them, so that most are names of the module; and rivals."""
    here = len(keys & live)
    asides, addeds = _before(keys, live), _before(live, keys)
    if (most := max(asides.values(), default=0)) > max(here, *addeds.values(), 0):
        best = sorted(prefix for prefix, count in asides.items() if count == most)
        meant = [prefix for prefix in best if prefix.rpartition(".")[2] == path.rpartition(".")[2]]
        meant = meant or [prefix for prefix in best if prefix in _USUAL]
        return (meant or best)[0], "", [] if 1 in (len(best), len(meant)) else best
    if (most := max(addeds.values(), default=0)) > here:
        return "", min(prefix for prefix, count in addeds.items() if count == most), []
    return "", "", []


def _before(longer: set[str], shorter: set[str]) -> Counter[str]:
    """How many of ``longer`` are one of ``shorter`` behind a prefix, by prefix."""
    found: Counter[str] = Counter()
    for name in longer:
        words = name.split(".")
        for at in range(1, len(words)):
            if ".".join(words[at:]) in shorter:
                found[".".join(words[:at])] += 1
    return found


# ---------------------------------------------------------------- adapters


def _adapter_of(module: nn.Module, wanted: list[str], keys: Iterable[str]) -> str:
    """The adapter that the file holds alone: PEFT leaves its name out there, and the base model too."""
    keys = [bare_name(key) for key in keys]
    live = [bare_name(name) for name in wanted]
    adapters = Counter(adapter for name in live if (adapter := _adapter_in(name)))
    if not adapters or not any(word.startswith("lora_") for key in keys for word in key.split(".")):
        return ""
    active = getattr(module, "active_adapter", None)
    adapter = active if isinstance(active, str) and active in adapters else adapters.most_common(1)[0][0]
    without = {_without_adapter(name, adapter) for name in live}
    return adapter if len(without & set(keys)) > len(set(live) & set(keys)) else ""


def _adapter_in(name: str) -> str:
    """The name of the adapter in a live name: the word behind ``lora_A``, ``lora_B`` ... or ``modules_to_save``."""
    words = name.split(".")
    for word, after in itertools.pairwise(words):
        if word.startswith("lora_") or word == "modules_to_save":
            return after
    return ""


def _without_adapter(name: str, adapter: str) -> str:
    if not adapter or _adapter_in(name) != adapter:
        return name
    words = name.split(".")
    at = next(i for i, word in enumerate(words) if word.startswith("lora_") or word == "modules_to_save")
    kept = words[: at + (words[at] != "modules_to_save")]
    return ".".join([*kept, *words[at + 2 :]])


# ---------------------------------------------------------------- what may be missing, left, or of another type


def _may_be_left(module: nn.Module, key: str, mine: ModuleNames, names: _Names) -> bool:
    """Whether a key that fits nothing is known to mean nothing."""
    name = names.inner(key)
    if name in mine.buffers or name.rpartition(".")[2] in _BOOKKEEPING:
        return True  # a buffer that is no longer part of the state: it is computed
    patterns = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    return any(re.search(pattern, name) for pattern in patterns)


def _tolerate(saved: dict[str, Any], mine: ModuleNames, given: Mapping[str, Any], names: _Names) -> list[str]:
    """Mark what need not be in the file: tied to something that is, a counter, the base of an adapter."""
    covered = {id(mine.parameters[name].parameter) for name in given if name in mine.parameters}
    counters, tied = [], []
    for name in (*mine.parameters, *mine.buffers):
        if name in given:
            continue
        if name in mine.parameters and id(mine.parameters[name].parameter) in covered:
            tied.append(name)
        elif name.rpartition(".")[2] in _COUNTERS:
            counters.append(name)
        elif names.adapter and _adapter_in(bare_name(name)) != names.adapter:
            saved["lazy"].append(name)
    saved["lazy"] += [*tied, *counters]
    return [f"{len(counters)} counters of batch norms are not in it and stay as they are"] if counters else []


def _widen(path: str, saved: dict[str, Any], mine: ModuleNames) -> list[str]:
    """Turn numbers into a wider type where the live module has one and nothing is lost by it."""
    live: dict[str, torch.Tensor | None] = {name: slot.parameter for name, slot in mine.parameters.items()}
    live |= {name: slot.buffer for name, slot in mine.buffers.items()}
    turned: Counter[str] = Counter()
    for values in (saved["parameters"], saved["buffers"]):
        for name, value in values.items():
            here = live.get(name)
            if isinstance(value, torch.Tensor) and here is not None and _widens(value.dtype, here.dtype):
                turned[f"{value.dtype} to {here.dtype}".replace("torch.", "")] += 1
                values[name] = value.to(here.dtype)
    return [f"{path}: {count} tensors turned from {what}, exactly" for what, count in turned.items()]


def _widens(old: torch.dtype, new: torch.dtype) -> bool:
    same_sort = old.is_floating_point == new.is_floating_point and old.is_complex == new.is_complex
    plain = old.itemsize > 1 or not old.is_floating_point  # 8-bit floats promote to nothing
    return old != new and same_sort and plain and new is not torch.bool and torch.promote_types(old, new) == new


def _torn_ties(path: str, mine: ModuleNames, given: Mapping[str, Any]) -> Iterator[str]:
    """Names that are one tensor here and tensors of different values in the file."""
    first: dict[int, str] = {}
    for name, value in given.items():
        parameter = mine.parameters[name].parameter if name in mine.parameters else None
        if parameter is None or not isinstance(value, torch.Tensor):
            continue
        other = first.setdefault(id(parameter), name)
        if other != name and not _equal(given[other], value):
            yield f"{path}: {other} and {name} are one tensor here and two of different values in the file"


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)
