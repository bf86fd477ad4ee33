"""A mirror below any address that fsspec knows: a bucket, a server, a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from perdure.checkpoint.manifest import load_manifest
from perdure.core.errors import MissingExtraError, PlatformError, TransientPlatformError
from perdure.relay.inside.mirror import Kept, without_password
from perdure.relay.inside.order import Expected

PROBE = "perdure-mirror.json"


class FilesTarget:
    """A folder of a relay, laid out as a folder of runs.

    A manifest is written last, so that a checkpoint is there whole or not at all; older ones go only then.

    Args:
        url: Where the folder of the relay is.
        relay: Its id.

    Raises:
        MissingExtraError: fsspec, or what it needs for this address, is not installed.
    """

    def __init__(self, url: str, relay: str) -> None:
        try:
            import fsspec

            self._files: Any
            self._files, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise MissingExtraError(
                f"a mirror in {without_password(url)} needs a package that is not there: {error}",
                hint="pip install 'perdure[mirror]' and what fsspec needs for this address",
            ) from error
        self._root = f"{str(root).rstrip('/')}/{relay}"
        self._relay = relay
        self._shown = f"{without_password(url).rstrip('/')}/{relay}"

    def probe(self) -> str:
        """Write a small file and read it back."""
        data = json.dumps({"format": 1, "relay": self._relay}).encode()
        self._write(PROBE, [data])
        self._files.invalidate_cache()
        if self._files.cat_file(f"{self._root}/{PROBE}") != data:
            raise PlatformError(f"{self._shown} does not give back what was written")
        return self._shown

    def put(self, kept: Sequence[Kept]) -> None:
        """Send checkpoints, prove them, and take older ones away.

        Raises:
            TransientPlatformError: Not all of it is there.
        """
        for item in kept:
            run = item.about.run
            for name, size in item.tensors():
                if self._size(f"{run}/{name}") != size:
                    self._write(f"{run}/{name}", item.checkpoint.file_parts(name))
            for name, data in item.small_files():
                self._write(f"{run}/{name}", [data])
            self._write(f"{run}/{item.manifest_name}", [item.manifest])
            self._prove(item)
            self._prune(item)

    def bring(self, expects: Sequence[Expected], folder: Path) -> None:
        """Bring checkpoints, as far as they are there; their digests are the caller's to prove."""
        for item in expects:
            name = f"{item.run}/checkpoints/{item.checkpoint}/manifest.json"
            if self._size(name) is None:
                continue
            data = self._files.cat_file(f"{self._root}/{name}")
            for file in load_manifest(data, Path(name)).files:
                self._fetch(f"{item.run}/{file}", folder)
            for file in ("run.json", "events.jsonl"):
                if self._size(f"{item.run}/{file}") is not None:
                    self._fetch(f"{item.run}/{file}", folder)
            goal = folder / name
            goal.parent.mkdir(parents=True, exist_ok=True)
            goal.write_bytes(data)

    def _prove(self, item: Kept) -> None:
        self._files.invalidate_cache()
        run = item.about.run
        wanted = {f"{run}/{name}": size for name, size in item.tensors()}
        wrong = [name for name, size in wanted.items() if self._size(name) != size]
        manifest = f"{run}/{item.manifest_name}"
        if not wrong and self._files.cat_file(f"{self._root}/{manifest}") != item.manifest:
            wrong = [manifest]
        if wrong:
            raise TransientPlatformError(f"{self._shown} does not show {wrong[0]} as it was sent")

    def _prune(self, item: Kept) -> None:
        """Take away what the newest checkpoint of a run does not need."""
        run = f"{self._root}/{item.about.run}"
        for path in self._files.ls(f"{run}/checkpoints", detail=False):
            if path.rstrip("/").rpartition("/")[2] != item.name:
                self._files.rm(path, recursive=True)
        if not self._size(f"{item.about.run}/{item.manifest_name}"):  # a file system that removed too much
            raise TransientPlatformError(f"{self._shown} lost {item.name} while older ones were taken away")
        needed = {name.rpartition("/")[2] for name, _ in item.tensors()}
        if not needed:
            return
        for path in self._files.ls(f"{run}/tensors", detail=False):
            if path.rstrip("/").rpartition("/")[2] not in needed:
                self._files.rm(path)

    def _size(self, name: str) -> int | None:
        try:
            return int(self._files.info(f"{self._root}/{name}")["size"])
        except FileNotFoundError:
            return None

    def _write(self, name: str, parts: Iterable[bytes]) -> None:
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._files.open(path, "wb") as file:
            for part in parts:
                file.write(part)

    def _fetch(self, name: str, folder: Path) -> None:
        goal = folder / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        self._files.get_file(f"{self._root}/{name}", str(goal))
