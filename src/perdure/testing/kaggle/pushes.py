"""``SaveKernel``: what is refused, what is accepted, and the sessions that come of it."""

from __future__ import annotations

import re
import secrets
import shutil
import time
import unicodedata
from typing import Any

from perdure.testing.kaggle import hours
from perdure.testing.kaggle.errors import ApiError
from perdure.testing.kaggle.machines import MACHINES, Machine, Scenery, given
from perdure.testing.kaggle.sources import Sources
from perdure.testing.kaggle.world import EmulatedSession, Kernel, Store

TOO_LARGE = "The kernel source must be less than 1 megabytes in size."
NOT_FOUND = "Notebook not found"
_SETTINGS = (
    "newTitle", "language", "kernelType", "isPrivate", "enableGpu", "enableTpu", "enableInternet", "machineShape",
    "datasetDataSources", "kernelDataSources", "competitionDataSources", "modelDataSources", "categoryIds",
    "dockerImage", "dockerImagePinningType", "sessionTimeoutSeconds", "kernelExecutionType",
)  # fmt: skip


class Pushes:
    """Takes pushes.

    Args:
        store: The world.
        scenery: The cards.
    """

    def __init__(self, store: Store, scenery: Scenery) -> None:
        self._store = store
        self._scenery = scenery
        self._sources = Sources(store)

    def save_kernel(self, request: dict[str, Any]) -> dict[str, Any]:
        """``SaveKernel``: the answer, which is a refusal if its ``error`` is not empty."""
        text = str(request.get("text") or "")
        if len(text.encode()) >= self._store.rules.source_bytes:
            raise ApiError(400, TOO_LARGE)
        with self._store.lock:
            return self._save(request, text)

    def _save(self, request: dict[str, Any], text: str) -> dict[str, Any]:
        store = self._store
        slug = self._slug(request)
        runs = request.get("kernelExecutionType") != "QUICK_SAVE"
        machine = self._machine(request)
        refusal = self._refusal(slug, machine) if slug and runs else "" if slug else NOT_FOUND
        if refusal:
            return {"error": refusal}
        kernel = store.world.kernels.get(slug) or Kernel(
            store.world.number(), slug, str(request.get("newTitle") or slug), store.platform_s()
        )
        store.world.kernels[slug] = kernel
        mounts, invalid = self._sources.resolve(request)
        twice = store.switches.start_twice
        is_double = runs and twice > 0 and store.board.take("twice") < twice
        for _ in range(2 if is_double else 1):
            number = self._add_version(kernel, request)
            if runs:
                self._add_session(kernel, number, request, text, machine, mounts)
        store.save()
        ref = f"{store.rules.owner}/{slug}"
        return {
            "ref": f"/{ref}",
            "url": f"https://www.kaggle.com/code/{ref}",
            "versionNumber": number - 1 if is_double else number,
            "kernelId": kernel.id,
            "error": "",
            "invalidTags": [],
            **invalid,
        }

    def _slug(self, request: dict[str, Any]) -> str:
        """The kernel that a push is for; empty if it may not be: the real slug of a new one follows its title."""
        owner, _, slug = str(request.get("slug") or "").partition("/")
        by_number = [each for each in self._store.world.kernels.values() if each.id == request.get("id")]
        if by_number:
            return by_number[0].slug
        if owner.lower() != self._store.rules.owner.lower():
            return ""
        if slug in self._store.world.kernels:
            return slug
        title = str(request.get("newTitle") or "")
        if len(title) < 5:
            raise ApiError(400, "Title must be at least five characters")
        return slugify(title)

    def _machine(self, request: dict[str, Any]) -> Machine:
        forced = self._store.switches.give_machine
        if forced:
            return MACHINES[forced if forced != "none" else ""]
        shape = str(request.get("machineShape") or "")
        return given(shape, gpu=bool(request.get("enableGpu")), tpu=bool(request.get("enableTpu")))

    def _refusal(self, slug: str, machine: Machine) -> str:
        store, now_s = self._store, time.time()
        rules, resource = store.rules, machine.resource
        forced = {
            "gpu-slots": hours.slots_text("gpu", rules.gpu_slots),
            "cpu-slots": hours.slots_text("cpu", rules.cpu_slots),
            "quota": hours.quota_text("gpu", rules.gpu_quota_s),
            "projected": hours.projected_text("gpu", rules.gpu_quota_s),
            "not-found": NOT_FOUND,
        }
        asked = store.board.refusal()
        if asked:
            return forced.get(asked, asked)
        if machine.cards and self._scenery.trouble:
            return self._scenery.trouble
        sessions = list(store.world.sessions.values())
        full = hours.no_room(resource, sessions, rules, store.switches, now_s)
        stand = hours.hours(resource, sessions, rules, store.switches, store.world.born_s, now_s)
        return full or hours.no_hours(resource, stand)

    def _add_version(self, kernel: Kernel, request: dict[str, Any]) -> int:
        number = len(kernel.versions) + 1
        kernel.versions[str(number)] = {name: request[name] for name in _SETTINGS if name in request}
        return number

    def _add_session(
        self,
        kernel: Kernel,
        version: int,
        request: dict[str, Any],
        text: str,
        machine: Machine,
        mounts: dict[str, str],
    ) -> None:
        store = self._store
        asked = request.get("sessionTimeoutSeconds")
        session = EmulatedSession(
            store.world.number(),
            kernel.slug,
            version,
            machine.word,
            machine.resource,
            time.time(),
            timeout_s=float(asked) if asked else None,
            mounts=mounts,
            internet=bool(request.get("enableInternet")),
        )
        folder = store.session_folder(session)
        shutil.rmtree(folder, ignore_errors=True)  # of a push that died with the emulator, and was never accepted
        folder.mkdir(parents=True)
        name = "notebook.ipynb" if request.get("kernelType") == "notebook" else "script.py"
        (folder / name).write_text(text, encoding="utf-8")
        (folder / "token").write_text(f"session-{session.id}-{secrets.token_hex(16)}", encoding="utf-8")
        kernel.sessions[str(version)] = session.id
        store.world.sessions[session.id] = session


def slugify(title: str) -> str:
    """A title as it stands in addresses."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:50].rstrip("-")
