"""The bundle as a private data set, where it is too large for the source of a session.

There is one data set for each bundle, named by its digest, and it never gets a second version: so a session sees
exactly this bundle, and making it again after a crash finds it there.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from perdure.core.errors import NotThereError, RefusedError, TransientPlatformError, UncertainError
from perdure.platforms.kaggle.client import Client
from perdure.platforms.kaggle.refusals import refusal

READY_WITHIN_S = 900.0
"""How long Kaggle may take to make it ready; some seconds for 3 MB, as public projects report."""

_POLL_S = 5.0
_UPLOAD_BYTES_PER_S = 50_000
_GONE = ("failed", "deleted")


def code_dataset(
    client: Client, owner: str, cargo: Path, digest: str, name: str, *, poll_s: float = _POLL_S
) -> str:
    """Make sure that the bundle lies in a data set that is ready.

    Args:
        client: The client.
        owner: Whose account it is.
        cargo: The bundle.
        digest: Its digest, in hexadecimal.
        name: The file name that it gets there.
        poll_s: Seconds between two looks.

    Returns:
        ``owner/slug``.

    Raises:
        RefusedError: Kaggle refuses it, or could not process it.
        TransientPlatformError: It is not ready in time; calling this again goes on. Never ``UncertainError``:
            no session was submitted.
    """
    ref = f"{owner}/perdure-code-{digest[:16]}"
    try:
        if _status(client, ref) is None:
            _create(client, ref, cargo, name)
        _wait(client, ref, poll_s)
    except UncertainError as error:
        raise TransientPlatformError(error.what, retry_after_s=error.retry_after_s, hint=error.hint) from error
    return ref


def dataset_text(client: Client, ref: str, name: str) -> str:
    """A small text file of a data set.

    Raises:
        NotThereError: There is no such data set, or no such file in it.
        TransientPlatformError: A version of it is being processed: what would be read now is not its last word.
    """
    status = _status(client, ref)
    if status is None:
        raise NotThereError(f"there is no data set {ref}, or it is not shown")
    if status not in ("ready", *_GONE):
        raise TransientPlatformError(f"the data set {ref} is still {status}", hint="wait")
    return str(client.call("dataset_text", ref, ref=ref, name=name)["text"])


def _status(client: Client, ref: str) -> str | None:
    """How far it has come; None if it is not there. Kaggle answers "forbidden" for what it does not show yet."""
    try:
        return str(client.call("dataset_status", ref, ref=ref)["status"])
    except NotThereError:
        return None


def _create(client: Client, ref: str, cargo: Path, name: str) -> None:
    # one folder for each bundle, always the same: the client goes on with an upload by its path
    folder = cargo.parent / f".{ref.rpartition('/')[2]}"
    try:
        _lay_out(folder, ref, cargo, name)
        limit_s = 120.0 + cargo.stat().st_size / _UPLOAD_BYTES_PER_S
    except OSError as error:
        raise TransientPlatformError(
            f"cannot prepare the data set {ref} in {folder}: {error.strerror}", hint="make room"
        ) from error
    try:
        said = client.call("dataset_create", ref, acts=True, limit_s=limit_s, folder=str(folder))
    except UncertainError:
        return  # the wait will tell
    shutil.rmtree(folder, ignore_errors=True)
    if said["error"] and "already in use" not in said["error"]:
        raise refusal(said["error"], ref)


def _lay_out(folder: Path, ref: str, cargo: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    link = folder / name
    link.unlink(missing_ok=True)
    try:
        os.link(cargo, link)
    except OSError:  # a file system without hard links
        shutil.copy2(cargo, link)
    metadata = {
        "id": ref,
        "title": f"Perdure code {ref[-16:]}",
        "licenses": [{"name": "other"}],
        "keywords": [],
    }
    (folder / "dataset-metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


def _wait(client: Client, ref: str, poll_s: float) -> None:
    end_s = time.monotonic() + READY_WITHIN_S
    while True:
        status = _status(client, ref)
        if status == "ready":
            return
        if status in _GONE:
            raise RefusedError(
                f"the data set {ref} is {status}", code="sources", hint=f"look at kaggle.com/datasets/{ref}"
            )
        if time.monotonic() > end_s:
            raise TransientPlatformError(f"the data set {ref} is still {status or 'not there'}", hint="wait")
        time.sleep(poll_s)
