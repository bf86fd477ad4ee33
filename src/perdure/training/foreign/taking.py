"""What a foreign file holds, put into live objects: all that was asked for, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core.errors import StateMismatchError
from perdure.training.foreign.content import Content
from perdure.training.foreign.matching import Match, match
from perdure.training.foreign.order import in_live_order, optimizer_differences, scheduler_differences
from perdure.training.world.code import load_own_state
from perdure.training.world.modules import ModulePart
from perdure.training.world.names import ParameterNames
from perdure.training.world.optimizers import OptimizerPart
from perdure.training.world.part import Part
from perdure.training.world.refill import Refill
from perdure.training.world.stateful import StatefulPart
from perdure.training.world.world import World

_ENDINGS = ("", "_state_dict", "_state")
_USUAL = {
    "module": ("model", "net", "state_dict"),
    "optimizer": ("optimizer", "optim", "opt"),
    "scheduler": ("scheduler", "lr_scheduler", "sched"),
    "scaler": ("scaler", "grad_scaler", "MixedPrecision", "native_amp_scaling_state"),
}
"""What the parts of a checkpoint are called in files of others; with each of the endings."""

_LISTS = {"optimizer": ("optimizer_states", "optimizers"), "scheduler": ("lr_schedulers", "schedulers")}
"""Where several are kept in a list, in the order they were made in: Lightning's ``configure_optimizers``."""


@dataclass(frozen=True)
class Place:
    """Where in a file the state of a part is.

    Attributes:
        key: The section; empty if the whole file is this state.
        index: The item of it, where the section is a list.
    """

    key: str
    index: int | None = None

    def of(self, content: Content) -> Any:
        """The state."""
        section: Any = content.values[self.key] if self.key else content.values
        return section if self.index is None else section[self.index]


@dataclass
class Taken:
    """What was done.

    Attributes:
        names: Names of the objects that were restored.
        kinds: What they are: ``"module"``, ``"optimizer"``, ``"scheduler"`` ...
        missing: Names of the objects that the file does not hold; they are as they were.
        left: What nobody took: sections by key; of a section that was taken in part, the rest of it.
        notes: What the reader should know of the way, one sentence each.
    """

    names: tuple[str, ...] = ()
    kinds: set[str] = field(default_factory=set)
    missing: tuple[str, ...] = ()
    left: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def take_over(content: Content, world: World, *, partly: bool = False) -> Taken:
    """Put what a foreign file holds into the tracked objects, each found under one of its usual names.

    Args:
        content: The file.
        world: The live objects.
        partly: An object that has no counterpart in the file is left as it is; one at least must have one.

    Raises:
        StateMismatchError: An object has no counterpart in the file, or does not fit it; nothing was changed.
    """
    parts = world.parts()
    places = {part.path: _place(part, parts, content) for part in parts}
    missing = [path for path, place in places.items() if place is None]
    if missing and (not partly or len(missing) == len(parts)):
        raise _nothing_for(missing, content)
    parts = [part for part in parts if places[part.path] is not None]
    found = {path: place for path, place in places.items() if place is not None}
    states = {path: place.of(content) for path, place in found.items()}
    fitted = {part.path: match(part, states[part.path]) for part in parts if isinstance(part, ModulePart)}
    names = world.parameter_names()
    for part in parts:
        if isinstance(part, OptimizerPart):
            states[part.path] = in_live_order(part, states[part.path], names)
    _refuse(content, [line for part in parts for line in _differences(part, states[part.path], fitted, names)])
    _put(sorted(parts, key=lambda part: part.order), states, fitted, names)
    notes = [*content.notes, *(note for one in fitted.values() for note in one.notes)]
    taken = tuple(dict.fromkeys(part.path for part in parts))
    kinds = {_role(part) for part in parts}
    return Taken(taken, kinds, tuple(missing), _left(content, found, fitted), notes)


def _nothing_for(missing: list[str], content: Content) -> StateMismatchError:
    has = ", ".join(str(key) for key in list(content.values)[:20])
    return StateMismatchError(
        f"{content.path} does not hold all that was asked for",
        differences=[f"{name} is not in it; it has: {has}" for name in missing],
        hint="leave it out of the call to take over the rest; it then begins as it is",
    )


def _refuse(content: Content, differences: list[str]) -> None:
    if not differences:
        return
    hint = "build the objects as they were built for the file"
    if any(" and torch." in line for line in differences):
        hint = "turn the live model into the type of the file first, for example model.to(torch.bfloat16)"
    elif all("not here" in line or "not in the checkpoint" in line for line in differences):
        hint = "to take over a part, give that part: restore(path, model=model.backbone)"
    raise StateMismatchError(f"the live objects do not fit {content.path}", differences=differences, hint=hint)


def _put(parts: list[Part], states: Mapping[str, Any], fitted: Mapping[str, Match], names: ParameterNames) -> None:
    refill = Refill()
    for part in parts:
        state = states[part.path]
        if isinstance(part, ModulePart):
            part.restore_values(fitted[part.path].saved, refill)
        elif isinstance(part, OptimizerPart):
            part.load_by_order(state, refill)
        elif isinstance(part, StatefulPart):
            load_own_state(part.path, part.value, state, refill)
        else:
            part.restore({"value": state}, names, refill)


def _left(content: Content, found: Mapping[str, Place], fitted: Mapping[str, Match]) -> dict[str, Any]:
    """What nobody took: sections, and of those that modules took in part, the rest."""
    rest: dict[str, dict[str, Any]] = {}
    for path, one in fitted.items():
        key = found[path].key
        rest[key] = {name: value for name, value in one.left.items() if name in rest.get(key, one.left)}
    if "" in rest:
        return rest[""]
    used = {place.key for place in found.values()} - {key for key, left in rest.items() if left}
    return {key: rest.get(key) or value for key, value in content.values.items() if key not in used}


# ---------------------------------------------------------------- where a part is in the file


def _place(part: Part, parts: list[Part], content: Content) -> Place | None:
    """Where the state of a part is in the file; None if it is not there."""
    for key in _keys(part, parts):
        value = content.values.get(key)
        if value is not None and not (isinstance(value, list) and isinstance(part, OptimizerPart)):
            return Place(key)
    same = [other for other in parts if _role(other) == _role(part)]
    for key in _LISTS.get(_role(part), ()):
        listed = content.values.get(key)
        if isinstance(listed, list) and len(listed) == len(same):
            return Place(key, same.index(part))
    return _shared_place(part, content, is_only=len(same) == 1) if isinstance(part, ModulePart) else None


def _shared_place(part: Part, content: Content, *, is_only: bool) -> Place | None:
    """Where one state holds several modules, each behind its name; or the whole file is that of the only one."""
    for key in ("", *_USUAL["module"]) if content.bare else _USUAL["module"]:
        section = content.values if key == "" else content.values.get(key)
        if isinstance(section, Mapping) and any(str(name).startswith(f"{part.path}.") for name in section):
            return Place(key)
    return Place("") if content.bare and is_only else None


def _keys(part: Part, parts: list[Part]) -> Iterator[str]:
    is_only = sum(_role(other) == _role(part) for other in parts) == 1
    for name in (part.path, *(_USUAL.get(_role(part), ()) if is_only else ())):
        for ending in _ENDINGS:
            yield name + ending


def _role(part: Part) -> str:
    if isinstance(part, StatefulPart):
        if hasattr(part.value, "get_scale"):
            return "scaler"
        return "scheduler" if hasattr(part.value, "last_epoch") else part.kind
    return part.kind


def _differences(part: Part, state: Any, fitted: Mapping[str, Match], names: ParameterNames) -> list[str]:
    if isinstance(part, ModulePart):
        found = fitted[part.path]
        return [*found.differences, *part.differences(found.saved, names)]
    if isinstance(part, OptimizerPart):
        return optimizer_differences(part, state)
    if isinstance(part, StatefulPart):
        return scheduler_differences(part, state)
    return part.differences({"value": state}, names)
