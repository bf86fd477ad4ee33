"""Logs of emulated sessions: records of what they printed and when, followed live and kept.

A record is what the session wrote at once, which need not be a line: ``{"stream_name", "time", "data"}``. Beside
those it has how many bytes of the raw log it stands for, so that an emulator that is started again goes on.
"""

from __future__ import annotations

import codecs
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure.testing.kaggle.world import ENDED, EmulatedSession, Store

_LAST_WORDS = (
    "[NbConvertApp] Converting notebook __notebook__.ipynb to html\n",
    "[NbConvertApp] Writing 270000 bytes to __results__.html\n",
)
"""What Kaggle appends to the log of every session, on ``stderr`` (third-party logs)."""

_WAIT_S = 0.05


class LogKeeper:
    """Reads the raw logs and keeps the records.

    Args:
        store: The world.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._offsets: dict[int, int] = {}

    def follow(self, session: EmulatedSession, raw: Path) -> None:
        """Make records of what was printed since the last time."""
        with self._lock:
            offset = self._offset(session)
            new = _new(raw, offset)
            text, taken = _whole_characters(new)
            if text:
                self._append(session, "stdout", text, taken)

    def close(self, session: EmulatedSession, raw: Path) -> None:
        """The session has ended: keep the rest, and say what Kaggle says then."""
        self.follow(session, raw)
        with self._lock:
            for line in _LAST_WORDS:
                self._append(session, "stderr", line, 0)

    def records(self, session: EmulatedSession) -> list[dict[str, Any]]:
        """All records."""
        return self._read(session, 0)[0]

    def document(self, session: EmulatedSession) -> str:
        """The log as a client gets it: a JSON array as text."""
        return json.dumps([_told(each) for each in self.records(session)])

    def live(self, session: EmulatedSession) -> Iterator[dict[str, Any] | None]:
        """Records from the first on, as they come, until the session has ended; None while there is nothing new."""
        place = 0
        while True:
            has_ended = session.stage == ENDED
            new, place = self._read(session, place)
            yield from (_told(each) for each in new)
            if has_ended:
                return
            yield None
            time.sleep(_WAIT_S)

    def _read(self, session: EmulatedSession, place: int) -> tuple[list[dict[str, Any]], int]:
        """Whole records from a place in the file on, and the place after them."""
        try:
            with open(self._path(session), "rb") as file:
                file.seek(place)
                data = file.read()
        except FileNotFoundError:
            return [], place
        whole = data[: data.rfind(b"\n") + 1]
        return [json.loads(line) for line in whole.splitlines()], place + len(whole)

    def _append(self, session: EmulatedSession, stream: str, text: str, taken: int) -> None:
        began_s = session.started_s or time.time()
        size = self._store.switches.log_chunk_bytes or len(text)
        records = []
        for start in range(0, len(text), size):
            record = {"stream_name": stream, "time": round(max(0.0, time.time() - began_s), 6)}
            last = start + size >= len(text)
            records.append({**record, "data": text[start : start + size], "bytes": taken if last else 0})
        offset = self._offset(session)
        with open(self._path(session), "ab") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records).encode())
        self._offsets[session.id] = offset + taken

    def _offset(self, session: EmulatedSession) -> int:
        if session.id not in self._offsets:
            self._mend(self._path(session))
            self._offsets[session.id] = sum(each.get("bytes", 0) for each in self.records(session))
        return self._offsets[session.id]

    def _mend(self, path: Path) -> None:
        """Drop a record that was cut when the emulator died."""
        if path.exists():
            data = path.read_bytes()
            os.truncate(path, data.rfind(b"\n") + 1)

    def _path(self, session: EmulatedSession) -> Path:
        return self._store.session_folder(session) / "log.jsonl"


def _told(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "bytes"}


def _new(raw: Path, offset: int) -> bytes:
    try:
        with open(raw, "rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


def _whole_characters(data: bytes) -> tuple[str, int]:
    """The text without a character that is cut at the end, and how many bytes it took."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])
