"""The emulator: everything together, in this process (tests) or in one of its own (``python -m ...``)."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, TextIO

from perdure.core.errors import PlatformError
from perdure.core.files import write_json
from perdure.platforms.detect import process_started_s
from perdure.testing.kaggle.accounts import Doorkeeper, open_account
from perdure.testing.kaggle.answers import Answer, Json
from perdure.testing.kaggle.attaching import Attaching
from perdure.testing.kaggle.datasets import Datasets
from perdure.testing.kaggle.errors import ApiError
from perdure.testing.kaggle.kernels import Kernels
from perdure.testing.kaggle.links import Links
from perdure.testing.kaggle.machines import Scenery
from perdure.testing.kaggle.pushes import Pushes
from perdure.testing.kaggle.rules import Rules, read_rules, write_rules
from perdure.testing.kaggle.server import Call, Routes, Server
from perdure.testing.kaggle.sessions import Sessions
from perdure.testing.kaggle.switches import Switches
from perdure.testing.kaggle.uploads import Uploads
from perdure.testing.kaggle.world import EmulatedSession, Store

_NOWHERE = "http://127.0.0.1:9"
_KERNELS = "kernels.KernelsApiService"


@dataclass(frozen=True)
class Seen:
    """One call that the emulator got.

    Attributes:
        at_s: When, seconds since 1970.
        call: Which: a method, ``"output"``, ``"log"``, ``"upload"``.
        status: Of the answer; 0 for none.
    """

    at_s: float
    call: str
    status: int


class Emulator:
    """Kaggle, as far as its official client can tell.

    Everything is kept in the folder: an emulator that is started there again goes on, under the same address, with
    the sessions that ran meanwhile.

    Args:
        folder: For everything.
        rules: What the platform is like; those that were kept if None.
        switches: What goes wrong; as it was if None.
        port: Where it listens; 0 for the last one, or any that is free.
        keep_running: Sessions go on when the emulator is closed.

    Raises:
        PlatformError: Another emulator works in that folder.
    """

    def __init__(
        self,
        folder: Path,
        rules: Rules | None = None,
        switches: Switches | None = None,
        *,
        port: int = 0,
        keep_running: bool = False,
    ) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _take_folder(self.folder)
        self.rules = rules or read_rules(self.folder / "rules.json")
        write_rules(self.folder / "rules.json", self.rules)
        self.account = open_account(self.folder / "account.json", self.rules.owner)
        self.store = Store(self.folder, self.rules)
        if switches is not None:
            self.store.board.set(switches)
        self._keep_running = keep_running
        self._calls_lock = threading.Lock()
        self._server = _listen(port or _last_port(self.folder), Routes())
        self.port = int(self._server.server_address[1])
        self._sessions = Sessions(self.store, Scenery(self.folder / "nvml"), self._network())
        self._server.routes = self._routes()

    def __enter__(self) -> Self:
        self._server.serve()
        self._sessions.start()
        write_json(self.folder / "emulator.json", self._document())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering, and end the sessions unless they are to go on."""
        self._server.close()
        self._sessions.stop(kill=not self._keep_running)
        self._lock.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self, *, token: bool = False) -> dict[str, str]:
        """What a process with the official client needs to meet the emulator, and nothing but it.

        Args:
            token: Sign in by an access token instead of name and key.
        """
        if token:
            return {**self._network(), "KAGGLE_API_TOKEN": self.account.token}
        return {**self._network(), "KAGGLE_USERNAME": self.account.owner, "KAGGLE_KEY": self.account.key}

    @property
    def switches(self) -> Switches:
        """The switches in force."""
        return self.store.switches

    def switch(self, **changes: Any) -> None:
        """Change switches by their names."""
        self.store.board.set(replace(self.store.switches, **changes))

    def sessions(self) -> tuple[EmulatedSession, ...]:
        """All sessions there ever were, those of deleted kernels too, oldest first."""
        with self.store.lock:
            return tuple(sorted(self.store.world.sessions.values(), key=lambda each: each.id))

    def calls(self) -> tuple[Seen, ...]:
        """All calls that it got, oldest first."""
        try:
            lines = (self.folder / "calls.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        return tuple(Seen(**json.loads(line)) for line in lines)

    def _note(self, call: str, status: int) -> None:
        line = json.dumps(asdict(Seen(time.time(), call, status)))
        with self._calls_lock, open(self.folder / "calls.jsonl", "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _network(self) -> dict[str, str]:
        """The emulator as a proxy for ``http://localhost``; no way anywhere else."""
        told = {"KAGGLE_API_ENVIRONMENT": "LOCALHOST", "NO_PROXY": "", "no_proxy": ""}
        told |= {"HTTP_PROXY": self.url, "http_proxy": self.url}
        return told | {"HTTPS_PROXY": _NOWHERE, "https_proxy": _NOWHERE}

    def _document(self) -> dict[str, Any]:
        pid = os.getpid()
        return {
            "format": 1,
            "pid": pid,
            "pid_started_s": process_started_s(pid),
            "port": self.port,
            "environment": self.environment(),
            "window_s": self.rules.window_s,
            "pace": dict(self.rules.pace),
            "rules": asdict(self.rules),
        }

    def _routes(self) -> Routes:
        store, routes = self.store, Routes()
        links = Links(self.folder / "links.key", self.rules.url_s)
        kernels = Kernels(store, self._sessions, links)
        pushes = Pushes(store, self._sessions.scenery)
        door = Doorkeeper(store, self.account)
        uploads = Uploads(store)
        datasets = Datasets(store, uploads, links)
        routes.calls = _kernel_calls(kernels, pushes) | _dataset_calls(datasets)
        routes.calls["blobs.BlobApiService/StartBlobUpload"] = uploads.start
        routes.calls["security.OAuthService/IntrospectToken"] = door.introspect
        routes.calls["api.v1.DiagnosticsService/Hello"] = door.hello
        routes.open_calls = frozenset({"security.OAuthService/IntrospectToken"})
        routes.check = door.check
        routes.log = kernels.stream
        routes.file = _Files(kernels, datasets, links).answer
        routes.upload = uploads.put
        routes.attach = Attaching(store, door).attach
        routes.note = self._note
        routes.trouble = store.trouble
        routes.board = store.board
        return routes


class _Files:
    """Answers addresses of files."""

    def __init__(self, kernels: Kernels, datasets: Datasets, links: Links) -> None:
        self._kernels = kernels
        self._datasets = datasets
        self._links = links

    def answer(self, kind: str, what: str, query: dict[str, str]) -> Answer:
        self._links.check(kind, what, query)
        first, _, rest = what.partition("/")
        if kind == "output":
            return self._kernels.output_file(first, rest)
        if kind == "archive":
            return self._kernels.archive_file(first)
        if kind in ("dataset", "bundle"):
            return self._datasets.file(kind, what)
        raise ApiError(404, "No such object")


def _kernel_calls(kernels: Kernels, pushes: Pushes) -> dict[str, Call]:
    calls: Mapping[str, Call] = {
        "SaveKernel": lambda request: Json(pushes.save_kernel(request)),
        "GetKernelSessionStatus": kernels.status,
        "ListKernelSessionOutput": kernels.output,
        "ListKernelFiles": kernels.files,
        "ListKernels": kernels.listing,
        "GetKernel": kernels.get,
        "DeleteKernel": kernels.delete,
        "CancelKernelSession": kernels.cancel,
        "GetAcceleratorQuotaStatistics": kernels.quota,
        "DownloadKernelOutput": kernels.download,
    }
    return {f"{_KERNELS}/{name}": call for name, call in calls.items()}


def _dataset_calls(datasets: Datasets) -> dict[str, Call]:
    calls: Mapping[str, Call] = {
        "CreateDataset": datasets.create,
        "CreateDatasetVersion": datasets.create_version,
        "CreateDatasetVersionById": datasets.create_version,
        "DeleteDataset": datasets.delete,
        "DownloadDataset": datasets.download,
        "GetDataset": datasets.get,
        "GetDatasetMetadata": datasets.metadata,
        "GetDatasetStatus": datasets.status,
        "ListDatasetFiles": datasets.files,
        "ListDatasets": datasets.listing,
    }
    return {f"datasets.DatasetApiService/{name}": call for name, call in calls.items()}


def _take_folder(folder: Path) -> TextIO:
    """The lock of the folder, held until the file is closed or the process ends."""
    file = open(folder / "lock", "w", encoding="utf-8")  # noqa: SIM115  it is held
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise PlatformError(f"another emulator works in {folder}", hint="take another folder, or end it") from None
    return file


def _last_port(folder: Path) -> int:
    try:
        return int(json.loads((folder / "emulator.json").read_text(encoding="utf-8"))["port"])
    except FileNotFoundError:
        return 0


def _listen(port: int, routes: Routes) -> Server:
    """On the port; on another one if it is taken, which sessions that run already do not know."""
    try:
        return Server(port, routes)
    except OSError:
        if not port:
            raise
        return Server(0, routes)
