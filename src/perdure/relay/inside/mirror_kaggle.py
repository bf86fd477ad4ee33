"""A mirror in a private Kaggle data set, written with the session's own token.

Whether the token of a batch session may write data sets is not known (Kaggle/kagglehub, pull request 182, shows an
interactive one that does); so it is tried at once, and said.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.core.errors import CredentialsError, MissingExtraError, PlatformError, TransientPlatformError
from perdure.relay.inside.mirror import Kept
from perdure.relay.inside.order import Expected, mirror_slug

READY_MOST_S = 1800.0
"""How long Kaggle may take to process a version."""

DESCRIPTION = "perdure-mirror.json"

_FIRST_POLL_S, _POLL_MOST_S = 1.0, 30.0


class KaggleTarget:
    """The data set of a relay; each version holds the newest checkpoint of every run, older versions are deleted.

    Args:
        relay: Id of the relay.
        ready_most_s: How long the processing of a version may take.

    Raises:
        MissingExtraError: kagglehub is not installed, or too old.
    """

    def __init__(self, relay: str, ready_most_s: float = READY_MOST_S) -> None:
        os.environ.setdefault("KAGGLEHUB_VERBOSITY", "error")
        os.environ.setdefault("TQDM_DISABLE", "1")
        self._hub = _client()
        self._relay = relay
        self._slug = mirror_slug(relay)
        self._owner = ""
        self._ready_most_s = ready_most_s

    def probe(self) -> str:
        """Whose token it is, and whether it can write: the first session makes the data set.

        Raises:
            CredentialsError: There is no token in this session.
        """
        if self._hub.config.get_kaggle_credentials() is None:
            raise CredentialsError(
                "this session has no token for Kaggle", hint="start the relay with --internet, or mirror elsewhere"
            )
        self._owner = str(self._hub.whoami(verbose=False)["username"])
        if self._status() is None:
            with tempfile.TemporaryDirectory(prefix="perdure-mirror-") as folder:
                self._describe(Path(folder), [])
                self._send(Path(folder), new=True)
        return f"the private data set {self._owner}/{self._slug}"

    def put(self, kept: Sequence[Kept]) -> None:
        """Make a version of these checkpoints, and prove that it lists all of them.

        Raises:
            TransientPlatformError: It does not, in time.
        """
        self._await_ready()  # a version is refused while an earlier one is processed
        with tempfile.TemporaryDirectory(prefix="perdure-mirror-") as name:
            folder = Path(name)
            self._describe(folder, kept)
            for item in kept:
                _stage(item, folder)
            wanted = Counter((path.name, path.stat().st_size) for path in folder.rglob("*") if path.is_file())
            self._send(folder, new=False)
        self._await_listed(wanted)

    def bring(self, expects: Sequence[Expected], folder: Path) -> None:
        """Nothing: a data set is mounted as an input."""

    def _describe(self, folder: Path, kept: Sequence[Kept]) -> None:
        runs = [item.as_dict() for item in kept]
        text = json.dumps({"format": 1, "relay": self._relay, "runs": runs}, indent=1)
        (folder / DESCRIPTION).write_text(text, encoding="utf-8")

    def _send(self, folder: Path, *, new: bool) -> None:
        from kagglehub.gcs_upload import upload_files_and_directories
        from kagglesdk.blobs.types.blob_api_service import ApiBlobType
        from kagglesdk.datasets.types import dataset_api_service as types

        sent = upload_files_and_directories(
            str(folder), item_type=ApiBlobType.DATASET, ignore_patterns=[], quiet=True
        ).to_proto()
        if new:
            request = types.ApiCreateDatasetRequest()
            request.owner_slug, request.slug, request.title = self._owner, self._slug, self._slug
            request.is_private, request.files, request.directories = True, sent.files, sent.directories
        else:
            request = types.ApiCreateDatasetVersionRequest()
            request.owner_slug, request.dataset_slug = self._owner, self._slug
            request.body = types.ApiCreateDatasetVersionRequestBody()
            request.body.version_notes = f"relay {self._relay}"
            request.body.files, request.body.directories = sent.files, sent.directories
            request.body.delete_old_versions = True
        with self._hub.clients.build_kaggle_client() as client:
            api = client.datasets.dataset_api_client
            answer = api.create_dataset(request) if new else api.create_dataset_version(request)
        if answer.error:  # an error in an answer that says 200
            raise PlatformError(f"Kaggle refused the mirror {self._owner}/{self._slug}: {answer.error}")

    def _status(self) -> str | None:
        """Kaggle's word for how the data set stands; None if there is none that this token may see."""
        from kagglesdk.datasets.types.dataset_api_service import ApiGetDatasetStatusRequest

        request = ApiGetDatasetStatusRequest()
        request.owner_slug, request.dataset_slug = self._owner, self._slug
        with self._hub.clients.build_kaggle_client() as client:
            try:
                status = client.datasets.dataset_api_client.get_dataset_status(request).status
            except OSError as error:  # of requests
                if getattr(getattr(error, "response", None), "status_code", None) in (403, 404):
                    return None
                raise
        return str(getattr(status, "name", status)).lower()

    def _await_ready(self) -> None:
        end_s, pause_s = time.monotonic() + self._ready_most_s, _FIRST_POLL_S
        while (status := self._status()) != "ready":
            if status == "failed":
                return  # the next version may do better
            if time.monotonic() >= end_s:
                raise TransientPlatformError(
                    f"{self._owner}/{self._slug} is not ready: {status or 'not to be seen'}"
                )
            time.sleep(pause_s)
            pause_s = min(_POLL_MOST_S, 2 * pause_s)

    def _await_listed(self, wanted: Counter[tuple[str, int]]) -> None:
        """Wait until the data set lists exactly these files. Kaggle lists sizes, no digests."""
        end_s, pause_s = time.monotonic() + self._ready_most_s, _FIRST_POLL_S
        while True:
            self._await_ready()
            listed = Counter(self._listed())
            if listed == wanted:
                return
            if time.monotonic() >= end_s:
                lacking = next(iter(wanted - listed), ("", 0))[0] or "an old version"
                raise TransientPlatformError(f"{self._owner}/{self._slug} does not list what was sent: {lacking}")
            time.sleep(pause_s)
            pause_s = min(_POLL_MOST_S, 2 * pause_s)

    def _listed(self) -> list[tuple[str, int]]:
        """Names, without folders, and sizes: how Kaggle writes folders in a listing is not known."""
        from kagglesdk.datasets.types.dataset_api_service import ApiListDatasetFilesRequest

        found: list[tuple[str, int]] = []
        token = ""
        with self._hub.clients.build_kaggle_client() as client:
            while True:
                request = ApiListDatasetFilesRequest()
                request.owner_slug, request.dataset_slug = self._owner, self._slug
                request.page_size, request.page_token = 200, token
                page = client.datasets.dataset_api_client.list_dataset_files(request)
                found += [(Path(file.name).name, int(file.total_bytes)) for file in page.dataset_files or []]
                token = page.next_page_token
                if not token:
                    return found


def _client() -> Any:
    try:
        import kagglehub
        import kagglehub.clients
        import kagglehub.config
        import kagglehub.gcs_upload
        from kagglesdk.datasets.types import dataset_api_service

        _ = kagglehub.gcs_upload.upload_files_and_directories, dataset_api_service.ApiCreateDatasetVersionRequest
    except (ImportError, AttributeError) as error:
        raise MissingExtraError(
            f"a mirror in a data set needs kagglehub 1.0 or newer: {error}", hint="pip install -U kagglehub"
        ) from error
    return kagglehub


def _stage(item: Kept, folder: Path) -> None:
    """Lay a checkpoint out in a folder: links to its open files cost no room and outlive their names."""
    run = folder / item.about.run
    (run / "tensors").mkdir(parents=True)
    for name, data in (*item.small_files(), (item.manifest_name, item.manifest)):
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for name, _ in item.tensors():
        (run / name).symlink_to(f"/proc/self/fd/{item.checkpoint.descriptor(name)}")
