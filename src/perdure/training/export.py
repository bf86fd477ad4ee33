"""The tracked models as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from perdure.core.errors import ConfigError
from perdure.models.export import export_tensors
from perdure.training.world.names import ModuleNames
from perdure.training.world.world import World


def export_models(world: World, folder: Path, name: str, formats: Sequence[str]) -> dict[str, Path]:
    """Write the tracked modules: a single one as ``name``, several as ``name-<their name>``.

    Returns:
        Format to path; with several modules, ``<their name>.<format>`` to path.

    Raises:
        ConfigError: No module is tracked.
    """
    modules = {key: tensors_of(module) for key, module in world.modules.items()}
    if not modules:
        raise ConfigError("there is no model to export", hint="run.track(model=model) above the loop")
    if len(modules) == 1:
        return export_tensors(next(iter(modules.values())), folder, name, formats)
    return {
        f"{key}.{format}": path
        for key, tensors in modules.items()
        for format, path in export_tensors(tensors, folder, f"{name}-{key}", formats).items()
    }


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by canonical name: the ``state_dict`` of the model without its wrappers."""
    names = ModuleNames(module)
    parameters = {name: slot.parameter for name, slot in names.parameters.items()}
    buffers = {name: slot.buffer for name, slot in names.buffers.items() if slot.is_persistent}
    return {name: value.detach() for name, value in {**parameters, **buffers}.items() if value is not None}
