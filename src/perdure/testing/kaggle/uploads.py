"""Files on their way up: announced, put in parts, gone on with after a break (``308``, as cloud stores do)."""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure.testing.kaggle.answers import Answer, Empty, Json
from perdure.testing.kaggle.errors import ApiError
from perdure.testing.kaggle.links import ORIGIN
from perdure.testing.kaggle.world import Store

_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


class Uploads:
    """Takes files.

    Args:
        store: The world.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.folder / "uploads"
        self._folder.mkdir(exist_ok=True)

    def start(self, request: dict[str, Any]) -> Json:
        """``StartBlobUpload``."""
        token = secrets.token_hex(12)
        with self._store.lock:
            self._store.world.uploads[token] = {
                "name": Path(str(request.get("name") or "file")).name,
                "size": int(request.get("contentLength") or 0),
                "announced_s": time.time(),
            }
            self._store.save()
        (self._folder / token).touch()
        return Json({"token": token, "createUrl": f"{ORIGIN}/upload/{token}"})

    def put(self, token: str, headers: dict[str, str], body: Iterator[bytes]) -> Answer:
        """A ``PUT`` to such an address: all of the file, a part of it, or the question how far it has come."""
        announced = self._store.world.uploads.get(token)
        if announced is None:
            _drain(body)
            raise ApiError(404, "The upload has expired")
        path, size = self._folder / token, int(announced["size"])
        match = _RANGE.fullmatch(headers.get("content-range", ""))
        start = int(match.group(1)) if match and match.group(1) else 0
        if match and not match.group(1):
            _drain(body)
        elif start > path.stat().st_size:
            _drain(body)
            raise ApiError(400, "The part does not follow what is there")
        else:
            with open(path, "r+b") as file:
                file.seek(start)
                for block in body:
                    file.write(block)
                    file.flush()
                file.truncate()
        return _how_far(path.stat().st_size, size)

    def take(self, token: str, folder: Path) -> Path:
        """Move a finished file to its place, and forget the upload; to be called with the store's lock."""
        announced = self._store.world.uploads.get(token)
        path = self._folder / token
        if announced is None or not path.exists() or path.stat().st_size != int(announced["size"]):
            raise ApiError(400, f"The upload {token} is not finished")
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / str(announced["name"])
        shutil.move(path, target)
        del self._store.world.uploads[token]
        return target


def _how_far(there: int, size: int) -> Empty:
    if there == size:
        return Empty(200)
    return Empty(308, {"Range": f"bytes=0-{there - 1}"} if there else {})


def _drain(body: Iterator[bytes]) -> None:
    for _ in body:
        pass
