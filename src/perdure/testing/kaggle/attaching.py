"""Inputs that a running session asks for itself: what kagglehub does inside a Kaggle notebook."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from perdure.testing.kaggle.accounts import Doorkeeper
from perdure.testing.kaggle.answers import Json
from perdure.testing.kaggle.errors import ApiError
from perdure.testing.kaggle.sources import Sources
from perdure.testing.kaggle.world import Store

_KINDS = {
    "datasetRef": ("datasets", ("OwnerSlug", "DatasetSlug", "VersionNumber")),
    "kernelRef": ("notebooks", ("OwnerSlug", "KernelSlug", "VersionNumber")),
    "competitionRef": ("competitions", ("CompetitionSlug",)),
    "modelRef": ("models", ("OwnerSlug", "ModelSlug", "Framework", "InstanceSlug", "VersionNumber")),
}


class Attaching:
    """Mounts into running sessions.

    Args:
        store: The world.
        door: Knows the sessions by their tokens.
    """

    def __init__(self, store: Store, door: Doorkeeper) -> None:
        self._store = store
        self._door = door
        self._sources = Sources(store)

    def attach(self, token: str, request: dict[str, Any]) -> Json:
        """``AttachDatasourceUsingJwtRequest``: mount it, and say where below the input root."""
        number = self._door.session_of(token)
        if number is None:
            raise ApiError(401, "Unauthenticated")
        session = self._store.world.sessions[number]
        for kind, (room, names) in _KINDS.items():
            if kind in request:
                ref = "/".join(str(request[kind][name]) for name in names if request[kind].get(name))
                with self._store.lock:
                    folder, place = self._sources.folder(room, ref), self._sources.place(room, ref)
                if folder is None:
                    raise ApiError(404, f"{ref} was not found")
                target = self._store.session_folder(session) / "host" / "sources" / place
                _mount(folder, target)
                return Json({"wasSuccessful": True, "result": {"mountSlug": place}})
        raise ApiError(400, "Nothing to attach")


def _mount(folder: Path, target: Path) -> None:
    """Whole or not at all: the session waits until it is there."""
    if target.exists():
        return
    coming = target.with_name(f".{target.name}.coming")
    shutil.rmtree(coming, ignore_errors=True)
    shutil.copytree(folder, coming, symlinks=True)
    coming.rename(target)
