"""Training that outlives its sessions.

Everything public is here; nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Keep": "perdure.checkpoint.retention",
    "Limits": "perdure.core.limits",
    "PerdureError": "perdure.core.errors",
    "Pickled": "perdure.training.verbs",
    "Run": "perdure.training.run",
    "SessionPaused": "perdure.core.errors",
    "check_model": "perdure.models.check",
    "current": "perdure.training.run",
    "doctor": "perdure.checkup.doctor",
    "export": "perdure.training.export",
    "restore": "perdure.training.verbs",
    "save": "perdure.training.verbs",
}

if TYPE_CHECKING:
    from perdure.checkpoint.retention import Keep
    from perdure.checkup.doctor import doctor
    from perdure.core.errors import PerdureError, SessionPaused
    from perdure.core.limits import Limits
    from perdure.models.check import check_model
    from perdure.training.export import export
    from perdure.training.run import Run, current
    from perdure.training.verbs import Pickled, restore, save

__all__ = [
    "Keep",
    "Limits",
    "PerdureError",
    "Pickled",
    "Run",
    "SessionPaused",
    "__version__",
    "check_model",
    "current",
    "doctor",
    "export",
    "restore",
    "save",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(_import_home(name), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def _import_home(name: str) -> ModuleType:
    try:
        return importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        from perdure.core.errors import MissingExtraError

        raise MissingExtraError(
            f"perdure.{name} needs {error.name}, which is not installed",
            hint="install PyTorch the way pytorch.org says for your machine; Perdure uses the one that is there",
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
