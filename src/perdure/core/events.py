"""Metrics and events of a run: ``events.jsonl``, a JSON document a line.

Every line has an id, so that files of several sessions can be joined and a line read twice is one line. A
``resumed`` event names the checkpoint: what was written after that save was begun is superseded. A save beside the
training is begun with a ``saving`` event; the ``saved`` event of the same number follows when it is committed.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


class EventFile:
    """Appends lines; a line is whole or, after a kill, cut at its end and then ignored by readers.

    Args:
        path: The file; made when the first line is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._prefix = uuid.uuid4().hex[:12]
        self._count = 0

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write lines, an id added to each, in one call of ``write``.

        Raises:
            OSError: They could not be written.
        """
        if not lines:
            return
        text = ""
        for line in lines:
            self._count += 1
            text += json.dumps({"id": f"{self._prefix}-{self._count}", **line}, ensure_ascii=False) + "\n"
        fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, _newline_if_cut(fd) + text.encode())
        finally:
            os.close(fd)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of an ``events.jsonl`` that still hold, in order.

    Lines that a kill cut short, and lines that a later resume superseded, are left out.
    """
    lines: list[dict[str, Any]] = []
    seen: set[str] = set()
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for raw in text.splitlines():
        try:
            line = json.loads(raw)
        except ValueError:  # cut short by a kill
            continue
        if not isinstance(line, dict) or line.get("id") in seen:
            continue
        seen.add(str(line.get("id")))
        if line.get("event") == "resumed":
            lines = _up_to(lines, line)
        lines.append(line)
    yield from lines


def _up_to(lines: list[dict[str, Any]], resumed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines that a resume leaves: up to the save that it began with."""
    for place in range(len(lines) - 1, -1, -1):
        line = lines[place]
        if line.get("event") == "saved" and line.get("checkpoint") == resumed.get("checkpoint"):
            return [*lines[: _begin_of(line, lines, place)], line]
    # the process was killed between the save and the line that tells of it: all that is there came before
    return [line for line in lines if line.get("step", 0) <= resumed["from_step"]]


def _begin_of(saved: Mapping[str, Any], lines: list[dict[str, Any]], place: int) -> int:
    """Where the save was begun; one that was made beside the training is told of later."""
    key = (saved.get("session"), saved.get("save"))
    if key[1] is not None:
        for earlier in range(place - 1, -1, -1):
            line = lines[earlier]
            if line.get("event") == "saving" and (line.get("session"), line.get("save")) == key:
                return earlier + 1
    return place


def _newline_if_cut(fd: int) -> bytes:
    end = os.lseek(fd, 0, os.SEEK_END)
    return b"\n" if end and os.pread(fd, 1, end - 1) != b"\n" else b""
