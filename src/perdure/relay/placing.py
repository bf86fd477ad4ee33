"""A folder that is brought whole: filled beside its place, and put there when everything in it is proven."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perdure.checkpoint.lock import RunLock
from perdure.core.errors import DiskFullError, RelayError, RunLockedError, TransientPlatformError
from perdure.core.files import fsync_dir, write_json
from perdure.core.runs import read_json

RECEIPT = "perdure-relay.json"
"""In a folder that was put in its place: what it is, and every file that was brought."""

_SLACK_BYTES = 1024 * 1024


class Landing:
    """Where the files of a relay go.

    Args:
        out: The folder that is to hold them in the end.
        relay_id: Whose files.
        want: What they are; JSON-able. What an earlier try left is gone on with only if it was after the same.
    """

    def __init__(self, out: Path, relay_id: str, want: Mapping[str, Any]) -> None:
        self.out = out.absolute()
        self._relay_id = relay_id
        self._want = json.loads(json.dumps(want))
        self._beside = self.out.parent / f".{self.out.name}.{relay_id}.part"
        self.folder = self._beside / "files"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from filling the same folder.

        Raises:
            TransientPlatformError: One does already.
        """
        self._beside.mkdir(parents=True, exist_ok=True)
        lock = RunLock(self._beside / "lock")
        try:
            lock.acquire()
        except RunLockedError as error:
            raise TransientPlatformError(
                f"another process (pid {error.pid}) fetches into {self.out} at this moment", hint="wait for it"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def begin(self) -> None:
        """Make ready for files; what is left of a try for the same ones stays."""
        note = self._beside / "want.json"
        if read_json(note)[0] != self._want:
            shutil.rmtree(self.folder, ignore_errors=True)
            write_json(note, self._want)
        self.folder.mkdir(exist_ok=True)

    def receipt(self) -> Mapping[str, Any]:
        """What is known of the folder in its place; empty if it is not there, or not of this relay.

        Raises:
            RelayError: There is something that no fetch of this relay has put there.
        """
        if not self.out.exists() or (self.out.is_dir() and not any(self.out.iterdir())):
            return {}
        value, _ = read_json(self.out / RECEIPT) if self.out.is_dir() else ({}, "")
        strangers = self._strangers(value)
        if strangers:
            raise RelayError(
                f"{self.out} holds what was not fetched for this relay: {strangers[0]}",
                hint="move it away, or name another folder with --out",
            )
        return value

    def is_complete(self, receipt: Mapping[str, Any]) -> bool:
        """Whether every file is still there that was put into the folder in its place."""
        return all((self.out / name).exists() for name in receipt.get("files", ()))

    def check_room(self, size_bytes: int) -> None:
        """Check that the files fit on the disk.

        Raises:
            DiskFullError: They do not.
        """
        here = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        needed, free = max(0, size_bytes - here) + _SLACK_BYTES, shutil.disk_usage(self._beside).free
        if needed > free:
            raise DiskFullError(
                f"there is no room for the run in {self.out.parent}",
                path=self.out,
                needed_bytes=needed,
                free_bytes=free,
                hint="make room, or name a folder on another disk with --out",
            )

    def put(self, facts: Mapping[str, Any]) -> None:
        """Put the folder in its place. It is there whole, or not at all; what was there of this relay goes.

        Args:
            facts: For the receipt, JSON-able; ``files`` names every file.

        Raises:
            OSError: It could not be done.
        """
        self._clean(set(facts["files"]))
        write_json(self.folder / RECEIPT, {"format": 1, "relay": self._relay_id, "want": self._want, **facts})
        for path in self.folder.rglob("*"):
            _make_durable(path)
        old = self._beside / "old"
        shutil.rmtree(old, ignore_errors=True)
        if self.out.exists():
            os.rename(self.out, old)
        os.rename(self.folder, self.out)
        fsync_dir(self.out.parent)

    def leave(self) -> None:
        """Remove what the try has left beside the place."""
        shutil.rmtree(self._beside, ignore_errors=True)

    def _strangers(self, receipt: Mapping[str, Any]) -> list[str]:
        if receipt.get("relay") != self._relay_id:
            return [str(self.out)]
        known = {RECEIPT, *receipt.get("files", ())}
        there = (path.relative_to(self.out).as_posix() for path in self.out.rglob("*") if not path.is_dir())
        return sorted(name for name in there if name not in known and not name.endswith("/lock"))

    def _clean(self, names: set[str]) -> None:
        """Remove files that are in no list: halves of downloads, checkpoints that turned out to be damaged."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_dir():
                with contextlib.suppress(OSError):  # not empty
                    path.rmdir()
            elif path.relative_to(self.folder).as_posix() not in names:
                path.unlink()


def _make_durable(path: Path) -> None:
    if path.is_dir():
        fsync_dir(path)
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
