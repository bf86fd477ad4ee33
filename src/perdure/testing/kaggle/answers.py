"""What the emulator answers with: JSON, files in parts, redirections, streams."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Json:
    """A JSON document.

    Attributes:
        document: It.
        status: HTTP status.
    """

    document: Any
    status: int = 200


@dataclass(frozen=True)
class Text:
    """A text that is no JSON answer of the API.

    Attributes:
        text: It.
        kind: Its content type.
    """

    text: str
    kind: str = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Redirect:
    """Go there instead.

    Attributes:
        url: Where.
    """

    url: str


@dataclass(frozen=True)
class Empty:
    """No body.

    Attributes:
        status: HTTP status.
        headers: More headers.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A file, or a part of it.

    Attributes:
        path: It.
    """

    path: Path


@dataclass(frozen=True)
class Stream:
    """Events, sent as they come (``text/event-stream``).

    Attributes:
        events: The events; None while there is nothing new.
    """

    events: Iterator[dict[str, Any] | None]


Answer = Json | Text | Redirect | Empty | File | Stream


@dataclass(frozen=True)
class Part:
    """Which part of a file was asked for.

    Attributes:
        status: 200, 206 or 416.
        start: First byte.
        stop: Byte after the last.
        headers: Headers of the answer.
    """

    status: int
    start: int
    stop: int
    headers: dict[str, str]


def part_of(path: Path, wanted: str, only_if: str) -> Part:
    """The part of a file that ``Range`` and ``If-Range`` ask for (RFC 9110, one range)."""
    stat = path.stat()
    size = stat.st_size
    tag = '"' + hashlib.sha256(f"{stat.st_mtime_ns} {size} {stat.st_ino}".encode()).hexdigest()[:32] + '"'
    changed = formatdate(stat.st_mtime, usegmt=True)
    headers = {"ETag": tag, "Last-Modified": changed, "Accept-Ranges": "bytes"}
    match = _RANGE.fullmatch(wanted)
    if not match or (only_if and only_if not in (tag, changed)):
        return Part(200, 0, size, headers)
    start = int(match.group(1))
    if start >= size:
        return Part(416, 0, 0, {**headers, "Content-Range": f"bytes */{size}"})
    stop = min(size, int(match.group(2)) + 1) if match.group(2) else size
    return Part(206, start, stop, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"})


def iso(at_s: float | None) -> str | None:
    """A time as the API writes it."""
    if at_s is None:
        return None
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def seconds(value_s: float) -> str:
    """A duration as the API writes it: JSON of a protobuf ``Duration``."""
    return f"{value_s:.3f}".rstrip("0").rstrip(".") + "s"


def page(entries: Sequence[Any], request: dict[str, Any], most: int) -> tuple[list[Any], str]:
    """One page of a list, and the token of the next; empty for none."""
    size = max(1, min(int(request.get("pageSize") or 20), most))
    token = str(request.get("pageToken") or "")
    start = int(token.removeprefix("page-")) if token.startswith("page-") else 0
    stop = start + size
    return list(entries[start:stop]), f"page-{stop}" if stop < len(entries) else ""


def tidy(document: dict[str, Any]) -> dict[str, Any]:
    """Without what is None: a null where the client expects a list breaks it."""
    return {name: value for name, value in document.items() if value is not None}


def encode(document: Any) -> bytes:
    """JSON as bytes."""
    return json.dumps(document).encode()
