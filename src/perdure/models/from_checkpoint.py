"""The weights of models out of a checkpoint: by canonical name, live or averaged, without the script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from perdure.checkpoint.manifest import MANIFEST, Manifest
from perdure.checkpoint.opened import Checkpoint
from perdure.checkpoint.reader import check_sizes, corrupt, read_manifest
from perdure.checkpoint.search import find_checkpoints
from perdure.core.errors import CheckpointError, ConfigError, CorruptError, FormatVersionError, NoCheckpointError
from perdure.core.runs import did_you_mean
from perdure.models.averages import Average, averages_of
from perdure.models.remarks import remarks
from perdure.models.saved import Forms, Outline, SavedModule, outline_of, read_forms
from perdure.tensors.decoding import unflatten

LIVE = "live"
"""What the weights that are trained are called, beside the averages of them."""


@dataclass(frozen=True)
class Weights:
    """One model of a checkpoint, all on the CPU.

    Attributes:
        module: What the module was tracked under.
        which: ``"live"``, or the name of the average.
        tensors: Parameters and buffers of its ``state_dict``, by canonical name; ties share memory.
        hidden: Buffers that are in no ``state_dict``.
        attributes: Plain attributes that training changed, by the name of the module that has them.
        extra: What ``get_extra_state`` gave, likewise.
        notes: What a reader should know, a sentence each.
    """

    module: str
    which: str
    tensors: Mapping[str, torch.Tensor]
    hidden: Mapping[str, torch.Tensor] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What they are called in file names."""
        return self.module if self.which == LIVE else self.which


@dataclass(frozen=True)
class Read:
    """What was read from a checkpoint.

    Attributes:
        folder: The checkpoint.
        manifest: What it is.
        weights: The models that were asked for.
        alone: It holds one model, or one average, and nothing else that could be meant.
        notes: What the user should know: damaged checkpoints that were passed over, averages that were left out.
    """

    folder: Path
    manifest: Manifest
    weights: tuple[Weights, ...]
    alone: bool
    notes: tuple[str, ...]


def read_weights(source: Path, only: Sequence[str] = (), average: str = "") -> Read:
    """Read models from a checkpoint. Every byte that is used is proved by its digest; the rest is not looked at.

    Args:
        source: One checkpoint, or a folder that holds checkpoints of one run, such as a run folder: the newest then
            whose models are whole.
        only: What the modules were tracked under; all of them by default, but for averages.
        average: Name of an average of weights, in place of the live ones.

    Raises:
        NoCheckpointError: There is none.
        ConfigError: The checkpoint holds no such module or average, or none at all, or ``source`` several runs.
        CorruptError, UnreadableError, FormatVersionError: It is damaged, or cannot be read.
        CannotCarryError: It was made before a lazy module got its shapes.
    """
    if (source / MANIFEST).exists() or source.name == MANIFEST:
        return _read(source.parent if source.name == MANIFEST else source, only, average, ())
    found = find_checkpoints(source)
    _check_one_run(source, [item.manifest for item in found if item.manifest is not None])
    errors: list[CheckpointError] = []
    for item in found:
        try:
            return _read(item.folder, only, average, tuple(_passed_over(error) for error in errors))
        except (CorruptError, FormatVersionError) as error:
            errors.append(error)
        except NoCheckpointError:  # pruned while we looked
            continue
    if errors:
        raise errors[0]
    hint = "check the path; perdure checkpoints lists what is in a folder of runs"
    raise NoCheckpointError(f"there is no checkpoint at {source}", path=source, hint=hint)


def _check_one_run(source: Path, manifests: Sequence[Manifest]) -> None:
    if len({manifest.run_id for manifest in manifests}) > 1:
        runs = ", ".join(sorted({manifest.run for manifest in manifests}))
        raise ConfigError(
            f"{source} holds checkpoints of several runs: {runs}", hint="give the folder of one of them"
        )


def _passed_over(error: CheckpointError) -> str:
    return f"{error.path.name} was passed over: {error.what.splitlines()[0]}"


def _read(folder: Path, only: Sequence[str], average: str, notes: tuple[str, ...]) -> Read:
    manifest = read_manifest(folder)
    try:
        check_sizes(folder, manifest)
        checkpoint = Checkpoint(folder, manifest)
        _check_headers(checkpoint)
        return _chosen(checkpoint, only, average, notes)
    except CorruptError:
        read_manifest(folder)  # pruned by its writer while we were reading: gone, not damaged
        raise


def _check_headers(checkpoint: Checkpoint) -> None:
    for file in checkpoint.manifest.files:
        try:
            checkpoint.regions(file)
        except ValueError as error:
            raise corrupt(checkpoint.folder, [f"{file}: {error}"]) from None


def _chosen(checkpoint: Checkpoint, only: Sequence[str], average: str, notes: tuple[str, ...]) -> Read:
    outline = outline_of(checkpoint)
    averages = averages_of(outline)
    kept = {each.name for each in averages if each.is_module}
    modules = {path: module for path, module in outline.modules.items() if path not in kept}
    if not modules and not averages:
        raise ConfigError(
            f"there is no model in {checkpoint.folder}, which holds {', '.join(outline.others) or 'no objects'}",
            hint="track it in the script: run.track(model=model)",
        )
    if average:
        weights = [_averaged(checkpoint, _pick(average, averages, outline, only))]
    elif modules:
        weights = [_live(checkpoint, module) for module in _only(only, modules, averages)]
    else:
        weights = [_averaged(checkpoint, each) for each in averages]
    left_out = () if average else _left_out(averages, {each.name for each in weights})
    alone = len(modules) == 1 or not (modules or len(averages) > 1)
    return Read(checkpoint.folder, checkpoint.manifest, tuple(weights), alone, (*notes, *left_out))


def _only(
    only: Sequence[str], modules: Mapping[str, SavedModule], averages: Sequence[Average]
) -> list[SavedModule]:
    for path in only:
        if path not in modules:
            hint = did_you_mean(path, modules)
            if any(each.name == path for each in averages):
                hint = f"it is an average: use --average {path}"
            raise ConfigError(f"there is no module {path!r} in the checkpoint", hint=hint)
    return [module for path, module in modules.items() if not only or path in only]


def _pick(name: str, averages: Sequence[Average], outline: Outline, only: Sequence[str]) -> Average | SavedModule:
    """The average of that name; a tracked copy of a model counts as one if it is asked for as one."""
    if len(only) > 1:
        raise ConfigError("an average is of one module", hint="give one --only, or none")
    of_it = [each for each in averages if not only or (each.of is not None and each.of.path in only)]
    for each in of_it:
        if each.name == name:
            return each
    if name in outline.modules and not only:
        return outline.modules[name]
    known = [each.name for each in of_it]
    hint = did_you_mean(name, known) or "it holds none; track it in the script: run.track(ema=ema)"
    raise ConfigError(f"there is no average {name!r} in the checkpoint", hint=hint)


def _left_out(averages: Sequence[Average], written: set[str]) -> tuple[str, ...]:
    return tuple(
        f"the checkpoint also holds an average of {each.of.path}, left out: --average {each.name}"
        for each in averages
        if each.of is not None and each.name not in written
    )


def _live(checkpoint: Checkpoint, module: SavedModule, which: str = LIVE) -> Weights:
    return _weights(checkpoint, module, which, module.tensors)


def _averaged(checkpoint: Checkpoint, chosen: Average | SavedModule) -> Weights:
    if isinstance(chosen, SavedModule):
        return _live(checkpoint, chosen, which=chosen.path)
    notes = tuple(remarks(checkpoint, chosen))
    if chosen.of is None:
        return Weights(chosen.name, chosen.name, read_forms(checkpoint, chosen.complete), notes=notes)
    return _weights(checkpoint, chosen.of, chosen.name, chosen.complete, notes)


def _weights(
    checkpoint: Checkpoint, module: SavedModule, which: str, tensors: Forms, notes: tuple[str, ...] = ()
) -> Weights:
    module.check_shaped()
    read = read_forms(checkpoint, {"tensors": tensors, "hidden": module.hidden})
    beside = unflatten(module.beside, checkpoint.buffer)
    return Weights(module.path, which, **read, **beside, notes=notes)
