"""Logs of emulated sessions: records of what they printed and when, followed live and kept.

A record is what the session wrote at once, which need not be a line: ``{"stream_name", "time", "data"}``. Beside
those it has how many bytes of the raw log it stands for, so that an emulator that is started again goes on.
"""

from __future__ import annotations

import codecs
import json
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

    def records(self, session: EmulatedSession, skip: int = 0) -> list[dict[str, Any]]:
        """All records but the first ones."""
        try:
            lines = self._path(session).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[skip:] if line.endswith("}")]

    def document(self, session: EmulatedSession) -> str:
        """The log as a client gets it: a JSON array as text."""
        return json.dumps([_told(each) for each in self.records(session)])

    def live(self, session: EmulatedSession) -> Iterator[dict[str, Any]]:
        """Records from the first on, as they come, until the session has ended."""
        seen = 0
        while True:
            has_ended = session.stage == ENDED
            for each in self.records(session, seen):
                seen += 1
                yield _told(each)
            if has_ended:
                return
            time.sleep(_WAIT_S)

    def _append(self, session: EmulatedSession, stream: str, text: str, taken: int) -> None:
        began_s = session.started_s or time.time()
        size = self._store.switches.log_chunk_bytes or len(text)
        records = []
        for start in range(0, len(text), size):
            record = {"stream_name": stream, "time": round(max(0.0, time.time() - began_s), 6)}
            last = start + size >= len(text)
            records.append({**record, "data": text[start : start + size], "bytes": taken if last else 0})
        with open(self._path(session), "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))
        self._offsets[session.id] = self._offset(session) + taken

    def _offset(self, session: EmulatedSession) -> int:
        if session.id not in self._offsets:
            self._offsets[session.id] = sum(each.get("bytes", 0) for each in self.records(session))
        return self._offsets[session.id]

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
