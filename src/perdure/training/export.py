"""The tracked models as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perdure.core.errors import ConfigError
from perdure.models.export import export_tensors
from perdure.training.world.world import World


def export_models(world: World, folder: Path, name: str, formats: Sequence[str]) -> dict[str, Path]:
    """Write the tracked modules: a single one as ``name``, several as ``name-<their name>``.

    Returns:
        Format to path; with several modules, ``<their name>.<format>`` to path.

    Raises:
        ConfigError: No module is tracked.
    """
    modules = world.state_dicts()
    if not modules:
        raise ConfigError("there is no model to export", hint="run.track(model=model) above the loop")
    if len(modules) == 1:
        return export_tensors(next(iter(modules.values())), folder, name, formats)
    return {
        f"{key}.{format}": path
        for key, tensors in modules.items()
        for format, path in export_tensors(tensors, folder, f"{name}-{key}", formats).items()
    }
