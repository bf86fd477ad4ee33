"""Everything that a training depends on, under the names that the user gave."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from perdure.core.errors import CannotCarryError, StateMismatchError
from perdure.training.world.audit import parts_of_graphs, unhealthy, untracked_schedulers
from perdure.training.world.modules import ModulePart
from perdure.training.world.names import ModuleNames, ParameterNames
from perdure.training.world.optimizers import OptimizerPart, is_optimizer, layers
from perdure.training.world.part import Part
from perdure.training.world.plain import GeneratorPart, PlainPart
from perdure.training.world.refill import Refill, copied
from perdure.training.world.stateful import StatefulPart

HEAD_BYTES = 1_000_000
"""What plain and small stateful objects may take, all together, in the structure kept from the head of an epoch."""

_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[str, Any], Part]], ...] = (
    (lambda value: isinstance(value, nn.Module), ModulePart),
    (is_optimizer, OptimizerPart),
    (GeneratorPart.takes, GeneratorPart),
    (PlainPart.takes, PlainPart),
    (StatefulPart.takes, StatefulPart),
)


class World:
    """The tracked objects of a run."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._parts: dict[str, Part] = {}
        self._said: set[str] = set()

    # ---------------------------------------------------------------- what is there

    def track(self, objects: Mapping[str, Any]) -> None:
        """Add objects; one under a name that is taken replaces the one before.

        Args:
            objects: Modules, optimizers, anything with ``state_dict`` and ``load_state_dict``, plain containers,
                tensors, arrays, random generators, ``Pickled`` objects, and dicts or lists of such objects.

        Raises:
            CannotCarryError: Something else.
        """
        for name, value in objects.items():
            for path, member in _members(name, value):
                _check_kind(path, member)
        for name, value in objects.items():
            self._objects[name] = value
            self._refresh(name)

    @property
    def names(self) -> set[str]:
        """The names that objects are tracked under."""
        return set(self._objects)

    @property
    def objects(self) -> dict[str, Any]:
        """The tracked objects, by name."""
        return dict(self._objects)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The tracked modules, by path: ``model``, ``nets.g``."""
        return {part.path: part.value for part in self.parts() if isinstance(part, ModulePart)}

    @property
    def optimizers(self) -> dict[str, Any]:
        """The tracked optimizers, by path."""
        return {part.path: part.value for part in self.parts() if isinstance(part, OptimizerPart)}

    def parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter of the tracked modules, by canonical name; a tied one under each of its names."""
        return dict(self.parameter_names().items())

    def state_dicts(self) -> dict[str, dict[str, torch.Tensor]]:
        """Parameters and persistent buffers of each tracked module, by canonical name; live references."""
        return {part.path: part.state_dict() for part in self.parts() if isinstance(part, ModulePart)}

    def is_tracked(self, value: Any) -> bool:
        """Whether this very object is tracked, alone or in a tracked dict or list."""
        return any(value is known for known in (*self._objects.values(), *(part.value for part in self.parts())))

    def parts(self) -> list[Part]:
        """The parts of all tracked objects, as they are now."""
        return [part for name in self._objects for part in self._refresh(name)]

    def _refresh(self, name: str) -> list[Part]:
        """The parts of a tracked object: one, or one for each object in a dict or list, as it is now."""
        parts = []
        for path, value in _members(name, self._objects[name]):
            known = self._parts.get(path)
            if known is None or known.value is not value:
                known = self._parts[path] = _check_kind(path, value)(path, value)
            parts.append(known)
        return parts

    def parameter_names(self, dead: Collection[int] = ()) -> ParameterNames:
        """Names of the parameters of all tracked modules."""
        return ParameterNames({path: ModuleNames(module) for path, module in self.modules.items()}, dead)

    def stepping(self) -> Iterator[torch.optim.Optimizer]:
        """The optimizers of torch that really step: tracked ones, and those inside of tracked ones."""
        for optimizer in self.optimizers.values():
            for _, layer in layers(optimizer):
                if isinstance(layer, torch.optim.Optimizer):
                    yield layer

    # ---------------------------------------------------------------- capture

    def capture(self, names: ParameterNames | None = None) -> dict[str, Any]:
        """The state of everything, by name, as a tree for ``flatten``; tensors are live references, not copies.

        Args:
            names: What ``parameter_names`` gives now, where the caller has it already.
        """
        names = names or self.parameter_names()
        return {
            name: {part.path: {"kind": part.kind, **part.capture(names)} for part in self._refresh(name)}
            for name in self._objects
        }

    def capture_head(self) -> dict[str, Any]:
        """The small structure at the head of an epoch, copied.

        Groups and options of optimizers, flags and plain attributes of modules, generators; schedulers, scalers,
        plain containers and other small objects, the smallest first, up to ``HEAD_BYTES`` in all.
        """
        names = self.parameter_names()
        head: dict[str, Any] = {}
        sized = []
        for part in self.parts():
            state, size = part.head(names, HEAD_BYTES)
            if state is not None:
                sized.append((size, part, state))
        left = HEAD_BYTES
        for size, part, state in sorted(sized, key=lambda item: item[0]):
            left -= size
            if left >= 0:
                head[part.path] = {"kind": part.kind, **state}
        return head

    # ---------------------------------------------------------------- restore

    def restore(
        self,
        tree: Mapping[str, Any],
        *,
        only: set[str] | None = None,
        strict: bool = True,
        lent: Sequence[torch.Tensor] = (),
    ) -> list[str]:
        """Put a captured state back into the live objects.

        Args:
            tree: What ``capture`` gave, after a way through ``flatten`` and ``unflatten``. It is not changed and
                can be restored again.
            only: Names of the objects to restore; all by default.
            strict: Refuse, before anything is changed, if something does not fit. Otherwise restore what can be
                resolved now: modules may be made, and others tracked, before the boundary.
            lent: Tensors of the tree whose memory is that of live ones.

        Returns:
            What does not fit, one sentence each; empty if ``strict``.

        Raises:
            StateMismatchError: Something does not fit; it lists each difference.
        """
        names = self.parameter_names()
        pairs, found = self._pairs(tree, only)
        for part, saved in pairs:
            found += part.differences(saved, names)
        if found and strict:
            raise StateMismatchError(
                "the live objects do not fit the checkpoint", differences=found, hint=_hint(found)
            )
        refill = Refill(lent)
        for part, saved in pairs:
            if part.order == OptimizerPart.order:
                names = self.parameter_names()  # modules may have got parameters by now
            try:
                part.restore(saved, names, refill)
            except StateMismatchError as error:
                if strict:
                    raise
                found += error.differences
        _restore_gradients(pairs, refill)
        return found

    def _pairs(self, tree: Mapping[str, Any], only: set[str] | None) -> tuple[list[tuple[Part, Any]], list[str]]:
        """Parts with their saved states, in the order of restoring, and what has no counterpart."""
        pairs, found = [], []
        for name in self._objects:
            if only is not None and name not in only:
                continue
            saved = tree.get(name)
            if saved is None:
                found.append(f"{name} is tracked here and not in the checkpoint, which holds {', '.join(tree)}")
                continue
            parts = {part.path: part for part in self._refresh(name)}
            found += [f"{path} is in the checkpoint and not here" for path in saved if path not in parts]
            for path, part in parts.items():
                kind = saved[path]["kind"] if path in saved else "not"
                if kind == part.kind:
                    pairs.append((part, saved[path]))
                else:
                    found.append(f"{path} is {kind} in the checkpoint and {part.kind} here")
        return sorted(pairs, key=lambda pair: pair[0].order), found

    def restore_head(self, tree: Mapping[str, Any]) -> None:
        """Put the structure of ``capture_head`` back, as far as it can be resolved now."""
        names = self.parameter_names()
        refill = Refill()
        for part in sorted(self.parts(), key=lambda part: part.order):
            saved = tree.get(part.path)
            if saved is not None and saved["kind"] == part.kind:
                part.restore_head(saved, names, refill)

    def restore_plain(self, live: dict[str, Any], saved: Mapping[str, Any]) -> None:
        """Refill a dict of plain values in place, nested containers too."""
        Refill()(live, saved)

    def copy_small(self, values: dict[str, Any]) -> dict[str, Any]:
        """A copy of a dict of plain values that does not change with it."""
        copy: dict[str, Any] = copied(values)
        return copy

    # ---------------------------------------------------------------- what to tell the user

    def notes(self) -> list[str]:
        """Sentences about the state that the user has not been told yet."""
        names = self.parameter_names()
        found: list[str] = []
        for part in self.parts():
            if isinstance(part, OptimizerPart):
                found += _unnamed_note(part, names)
            elif isinstance(part, PlainPart):
                found += [
                    f"{path} belongs to an autograd graph: only its values are saved; keep {path}.detach()"
                    for path in itertools.islice(parts_of_graphs(part.path, part.value), 3)
                ]
        found += untracked_schedulers(self.optimizers, [part.value for part in self.parts()])
        return self._new(found)

    def _new(self, sentences: list[str]) -> list[str]:
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._said]
        self._said.update(new)
        return new

    def first_save_check(self) -> list[str]:
        """What the first save shows to be missing in the state; each once."""
        names = self.parameter_names()
        tracked = {id(part.value) for part in self.parts()} | {id(parameter) for _, parameter in names.items()}
        tracked |= {id(module) for root in self.modules.values() for module in root.modules()}
        found: list[str] = []
        for part in self.parts():
            if isinstance(part, StatefulPart):
                found += part.check(tracked)
            elif isinstance(part, (ModulePart, OptimizerPart)):
                found += [
                    f"{path} changed since track and is in no state: make it a buffer, or give it one and track it"
                    for path in part.left_out(tracked)
                ]
        return self._new(found)

    def unhealthy(self) -> list[str]:
        """Names of floating-point parameters that hold NaN or Inf."""
        return unhealthy(self.parameters())


def _unnamed_note(part: OptimizerPart, names: ParameterNames) -> Iterator[str]:
    unnamed = part.unnamed(names)
    if unnamed:
        count = f"{len(unnamed)} parameter{'s' if len(unnamed) > 1 else ''}"
        yield (
            f"{part.path} trains {count} that no tracked module has ({', '.join(list(unnamed)[:3])}): saved by "
            "place, without the buffers beside them; track the module too: run.track(name=module)"
        )


def _restore_gradients(pairs: list[tuple[Part, Any]], refill: Refill) -> None:
    """Give every parameter its saved gradient, in place where there is one; those that had none get None.

    A gradient that does not fit its parameter belongs to a difference that was found before.
    """
    wanted: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
    for part, saved in pairs:
        for parameter, gradient in part.gradients(saved):
            if gradient is not None or id(parameter) not in wanted:
                wanted[id(parameter)] = (parameter, gradient)
    for parameter, gradient in wanted.values():
        if gradient is not None and gradient.shape != parameter.shape:
            continue
        parameter.grad = None if gradient is None else refill(parameter.grad, gradient, device=parameter.device)


def _members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The object itself; of a dict or list that holds objects only, each of them, as ``name.key``."""
    items: list[tuple[Any, Any]] = []
    if type(value) is dict:
        items = list(value.items())
    elif type(value) in (list, tuple):
        items = list(enumerate(value))
    if items and all(_is_object(item) for _, item in items):
        for key, item in items:
            yield from _members(f"{name}.{key}", item)
    else:
        yield name, value


def _is_object(value: Any) -> bool:
    if isinstance(value, nn.Module) or is_optimizer(value) or GeneratorPart.takes(value):
        return True
    return not PlainPart.takes(value) and StatefulPart.takes(value)


def _check_kind(path: str, value: Any) -> Callable[[str, Any], Part]:
    for takes, make in _KINDS:
        if takes(value):
            if make is PlainPart:
                _check_content(path, value)
            return make
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise CannotCarryError(
        f"{path} of type {kind} has no state that can be saved",
        path=path,
        type_name=kind,
        hint="give it state_dict() and load_state_dict(), put its values into a dict and track that, or, if you "
        f"trust every checkpoint you will load, track {path.partition('.')[0]}=perdure.Pickled(...)",
    )


def _check_content(path: str, value: Any) -> None:
    """Objects beside plain values are refused where they can be named, and not at the first save."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if _is_object(item) and not GeneratorPart.takes(item):
            kind = f"{type(item).__module__}.{type(item).__qualname__}"
            raise CannotCarryError(
                f"{path}[{key!r}] of type {kind} is an object among plain values",
                path=f"{path}[{key!r}]",
                type_name=kind,
                hint=f"track it under a name of its own: run.track({key if isinstance(key, str) else 'name'}=...)",
            )


def _hint(found: list[str]) -> str:
    if any("and not here" in line for line in found):
        return "build the missing parts before the loop: run one forward pass, or make them as the saved script did"
    return "make the objects as they were made when the checkpoint was saved, or start a run with another name"
