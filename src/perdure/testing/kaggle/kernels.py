"""The kernels of the account as the API shows them: status, output, files, listing, source, quota, end."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perdure.testing.kaggle.answers import File, Json, Redirect, Stream, Text, iso, page, seconds, tidy
from perdure.testing.kaggle.errors import ApiError, denied
from perdure.testing.kaggle.hours import hours
from perdure.testing.kaggle.links import Links
from perdure.testing.kaggle.sessions import Sessions
from perdure.testing.kaggle.world import ENDED, EmulatedSession, Kernel, Store


class Kernels:
    """Answers about kernels.

    Args:
        store: The world.
        sessions: What runs.
        links: Makes addresses of files.
    """

    def __init__(self, store: Store, sessions: Sessions, links: Links) -> None:
        self._store = store
        self._sessions = sessions
        self._links = links

    def status(self, request: dict[str, Any]) -> Json:
        """``GetKernelSessionStatus``."""
        session = self._session(request)
        if self._store.switches.status_word:
            return Json({"status": self._store.switches.status_word})
        word, message = session.word(time.time() - self._store.switches.status_lag_s)
        return Json(tidy({"status": word, "failureMessage": message or None}))

    def output(self, request: dict[str, Any]) -> Json:
        """``ListKernelSessionOutput``: files with their addresses, and the log."""
        session = self._session(request)
        files, token = page(self._files(session), request, self._store.switches.page_most)
        listed = [
            {"fileName": name, "url": self._links.make("output", f"{session.id}/{quote(name)}")}
            for name, _ in files
        ]
        return Json({"files": listed, "log": self._log(session), "nextPageToken": token})

    def files(self, request: dict[str, Any]) -> Json:
        """``ListKernelFiles``: files with their sizes."""
        session = self._session(request)
        files, token = page(self._files(session), request, self._store.switches.page_most)
        listed = [
            {"name": name, "size": path.stat().st_size, "creationDate": iso(path.stat().st_mtime)}
            for name, path in files
        ]
        return Json({"files": listed, "nextPageToken": token})

    def listing(self, request: dict[str, Any]) -> Json:
        """``ListKernels``: those of the account, newest first."""
        user = str(request.get("user") or self._store.rules.owner)
        mine = user.lower() == self._store.rules.owner.lower()
        search = str(request.get("search") or "").lower()
        found = [
            each
            for each in (self._visible_kernels() if mine else [])
            if search in each.title.lower() or search in each.slug
        ]
        found.sort(key=lambda each: (self._last_run_s(each), each.id), reverse=True)
        number = max(1, int(request.get("page") or 1))
        if not request.get("pageToken") and number > 1:
            size = int(request.get("pageSize") or 20)
            request = {**request, "pageToken": f"page-{(number - 1) * size}"}
        shown, token = page(found, request, self._store.switches.page_most)
        return Json({"kernels": [self._metadata(each) for each in shown], "nextPageToken": token})

    def get(self, request: dict[str, Any]) -> Json:
        """``GetKernel``: source and settings."""
        kernel, version = self._kernel(request)
        settings = kernel.versions[str(version)]
        blob: dict[str, Any] = {"source": self._source(kernel, version), "slug": kernel.slug}
        blob |= {name: settings.get(name) for name in ("language", "kernelType")}
        return Json({"metadata": self._metadata(kernel, version), "blob": tidy(blob)})

    def delete(self, request: dict[str, Any]) -> Json:
        """``DeleteKernel``: stops what runs; history and output are gone."""
        kernel, _ = self._kernel(request)
        with self._store.lock:
            for number in kernel.sessions.values():
                self._sessions.end(self._store.world.sessions[number])
            self._store.world.kernels.pop(kernel.slug, None)
            self._store.save()
        return Json({})

    def cancel(self, request: dict[str, Any]) -> Json:
        """``CancelKernelSession``, by the session's number."""
        with self._store.lock:
            session = self._store.world.sessions.get(int(request.get("kernelSessionId") or 0))
            kind = self._store.switches.cancel
            if kind == "forbidden":
                raise denied("kernelSessions.cancel")
            if session is None or kind == "missing":
                raise ApiError(404, "Kernel session not found")
            if session.stage != ENDED:
                self._sessions.end(session)
                self._store.save()
        return Json({})

    def quota(self, _: dict[str, Any]) -> Json:
        """``GetAcceleratorQuotaStatistics``."""
        store, now_s = self._store, time.time()
        document: dict[str, Any] = {}
        with store.lock:
            for resource in ("gpu", "tpu"):
                sessions = list(store.world.sessions.values())
                stand = hours(resource, sessions, store.rules, store.switches, store.world.born_s, now_s)
                document["quotaRefreshTime"] = iso(stand.refresh_at_s + store.switches.clock_offset_s)
                document[f"{resource}Quota"] = {
                    "timeUsed": seconds(stand.used_s),
                    "timeReserved": seconds(stand.reserved_s),
                    "totalTimeAllowed": seconds(stand.allowed_s),
                    "minimumTimeAllowed": seconds(0.0),
                    "isPayToScaleEnabled": False,
                    "hasEverRun": any(each.resource == resource for each in sessions),
                }
        return Json(document)

    def download(self, request: dict[str, Any]) -> Redirect:
        """``DownloadKernelOutput``: one file, or an archive of all."""
        names = {"userName": request.get("ownerSlug"), "kernelSlug": request.get("kernelSlug")}
        version = request.get("versionNumber")
        session = self._session({**names, "versionLabel": f"v{version}" if version else None})
        wanted = request.get("filePath")
        files = dict(self._files(session))
        if wanted and wanted not in files:
            raise ApiError(404, f"{wanted} was not found")
        if wanted:
            return Redirect(self._links.make("output", f"{session.id}/{quote(str(wanted))}"))
        archive = self._store.session_folder(session) / "output.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for name, path in files.items():
                file.write(path, name)
        return Redirect(self._links.make("archive", str(session.id)))

    def stream(self, owner: str, slug: str, label: str) -> Stream | Text:
        """The log: live while the session runs, as one array afterwards."""
        session = self._session({"userName": owner, "kernelSlug": slug, "versionLabel": label or None})
        if session.stage == ENDED:
            return Text(self._log(session) or "[]", "application/octet-stream")
        return Stream(self._sessions.logs.live(session))

    def output_file(self, number: str, name: str) -> File:
        """A file of an output, by its address."""
        session = self._store.world.sessions.get(int(number))
        path = dict(self._files(session)).get(name) if session else None
        if path is None:
            raise ApiError(404, "No such object")
        return File(path)

    def archive_file(self, number: str) -> File:
        """An archive that was made by ``download``."""
        return File(self._store.folder / "sessions" / str(int(number)) / "output.zip")

    def _kernel(self, request: dict[str, Any]) -> tuple[Kernel, int]:
        """The kernel and the version that a request is about."""
        store = self._store
        owner, slug = str(request.get("userName") or ""), str(request.get("kernelSlug") or "").lower()
        kernel = store.world.kernels.get(slug)
        if kernel is None or owner.lower() != store.rules.owner.lower() or not self._is_visible(kernel):
            if store.switches.missing_status == 403:
                raise denied()
            raise ApiError(store.switches.missing_status, "Not found")
        label = str(request.get("versionLabel") or "")
        version = label.removeprefix("v") or str(kernel.newest)
        if version not in kernel.versions:
            raise denied()
        return kernel, int(version)

    def _session(self, request: dict[str, Any]) -> EmulatedSession:
        with self._store.lock:
            kernel, version = self._kernel(request)
            number = kernel.sessions.get(str(version))
            if number is None:  # saved without a run
                never = EmulatedSession(0, kernel.slug, version, "", "cpu", kernel.created_s, ENDED)
                never.say(kernel.created_s, "NEW_SCRIPT")
                return never
            return self._store.world.sessions[number]

    def _is_visible(self, kernel: Kernel) -> bool:
        return self._store.platform_s() - kernel.created_s >= self._store.switches.visible_after_s

    def _visible_kernels(self) -> list[Kernel]:
        with self._store.lock:
            return [each for each in self._store.world.kernels.values() if self._is_visible(each)]

    def _files(self, session: EmulatedSession) -> list[tuple[str, Path]]:
        """The output as it can be seen now."""
        lag_s = self._store.switches.output_lag_s
        if session.stage != ENDED or session.lost or time.time() - (session.ended_s or 0.0) < lag_s:
            return []
        root = self._sessions.host(session).output
        paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
        return [(path.relative_to(root).as_posix(), path) for path in paths]

    def _log(self, session: EmulatedSession) -> str:
        lag_s = self._store.switches.log_lag_s
        is_hidden = session.how == "killed" and session.lost
        if session.stage != ENDED or is_hidden or time.time() - (session.ended_s or 0.0) < lag_s:
            return ""
        return self._sessions.logs.document(session)

    def _source(self, kernel: Kernel, version: int) -> str:
        number = kernel.sessions.get(str(version))
        if number is None:
            return ""
        folder = self._store.session_folder(self._store.world.sessions[number])
        script = folder / "script.py"
        return (script if script.exists() else folder / "notebook.ipynb").read_text(encoding="utf-8")

    def _last_run_s(self, kernel: Kernel) -> float:
        sessions = [self._store.world.sessions[number] for number in kernel.sessions.values()]
        return max((each.started_s or each.pushed_s for each in sessions), default=kernel.created_s)

    def _metadata(self, kernel: Kernel, version: int | None = None) -> dict[str, Any]:
        number = version or kernel.newest
        settings = kernel.versions[str(number)]
        session = self._store.world.sessions.get(kernel.sessions.get(str(number), 0))
        owner = self._store.rules.owner
        copied = (
            "language", "kernelType", "isPrivate", "enableGpu", "enableTpu", "enableInternet", "datasetDataSources",
            "kernelDataSources", "competitionDataSources", "modelDataSources", "categoryIds", "dockerImage",
        )  # fmt: skip
        known = {
            "id": kernel.id,
            "ref": f"{owner}/{kernel.slug}",
            "title": kernel.title,
            "author": owner,
            "slug": kernel.slug,
            "lastRunTime": iso(self._last_run_s(kernel) + self._store.switches.clock_offset_s),
            "totalVotes": 0,
            "currentVersionNumber": kernel.newest,
            "machineShape": session.machine if session else settings.get("machineShape"),
        }
        return tidy(known | {name: settings[name] for name in copied if name in settings})
