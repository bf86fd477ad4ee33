"""The inputs of a session: which sources of a push are valid, and where they are mounted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from perdure.testing.kaggle.world import ENDED, EmulatedSession, Store

_KINDS = {
    "kernelDataSources": ("invalidKernelSources", "notebooks"),
    "datasetDataSources": ("invalidDatasetSources", "datasets"),
    "competitionDataSources": ("invalidCompetitionSources", "competitions"),
    "modelDataSources": ("invalidModelSources", "models"),
}


class Sources:
    """Looks sources up.

    Competitions and models are folders that a test, or the user, has put into ``competitions/`` and ``models/`` of
    the emulator's folder.

    Args:
        store: The world.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def resolve(self, request: dict[str, Any]) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Mounts of a push, and its sources that are not valid, by field of the answer."""
        mounts: dict[str, str] = {}
        invalid: dict[str, list[str]] = {field: [] for field, _ in _KINDS.values()}
        for kind, (field, room) in _KINDS.items():
            for ref in request.get(kind) or []:
                folder = None if ref in self._store.switches.invalid_sources else self.folder(room, str(ref))
                if folder is None:
                    invalid[field].append(ref)
                else:
                    mounts[self.place(room, str(ref))] = str(folder)
        return mounts, invalid

    def place(self, room: str, ref: str) -> str:
        """Where a source is mounted, below the input root (layouts as third parties report them)."""
        parts = ref.split("/")
        if self._store.switches.old_layout:
            return parts[1] if len(parts) > 1 else parts[0]
        return "/".join([room, *parts[:2]] if room in ("notebooks", "datasets") else [room, *parts])

    def folder(self, room: str, ref: str) -> Path | None:
        """The folder that a source is; None if it is not valid now."""
        owner, _, rest = ref.partition("/")
        slug, _, version = rest.partition("/")
        if room in ("competitions", "models"):
            folder = self._store.folder / room / ref
            return folder if folder.is_dir() else None
        if owner.lower() != self._store.rules.owner.lower():
            return None
        wanted = int(version) if version.isdigit() else None
        return self._output(slug, wanted) if room == "notebooks" else self._dataset(slug, wanted)

    def _output(self, slug: str, version: int | None) -> Path | None:
        kernel = self._store.world.kernels.get(slug)
        if kernel is None:
            return None
        numbers = [version] if version else sorted(map(int, kernel.sessions), reverse=True)
        sessions = [
            self._store.world.sessions[kernel.sessions[str(n)]] for n in numbers if str(n) in kernel.sessions
        ]
        ended = [each for each in sessions if each.stage == ENDED and self._is_good(each)]
        if not ended:
            return None
        folder = self._store.session_folder(ended[0]) / "host" / "output"
        folder.mkdir(parents=True, exist_ok=True)  # a lost output is an empty one
        return folder

    def _is_good(self, session: EmulatedSession) -> bool:
        return session.completed or self._store.switches.mount_failed

    def _dataset(self, slug: str, version: int | None) -> Path | None:
        dataset = self._store.world.datasets.get(slug)
        if dataset is None or self._store.switches.dataset_stuck:
            return None
        ready = [each.number for each in dataset.versions if each.ready_s <= time.time()]
        if not ready or (version and version not in ready):
            return None
        return self._store.dataset_folder(dataset, version or max(ready))
