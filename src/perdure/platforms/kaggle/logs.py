"""The log of a session, as lines.

Kaggle keeps a log as records ``{"stream_name", "time", "data"}``; a record may be a part of a line or many lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

LIVE = "@perdure "
"""Begins a line in which a session of the relay says how it stands, as JSON."""

SESSION_KEY = "platform_session"
"""Where it says what Kaggle calls it: a number in ``KAGGLE_CONTAINER_NAME`` (public projects; not tried here)."""


def events_of(text: str) -> list[Any]:
    """The records of a kept log; one for each line where it is plain text."""
    try:
        events = json.loads(text)
    except ValueError:
        return [{"data": line + "\n"} for line in text.splitlines()]
    return events if isinstance(events, list) else [events]


def lines_of(events: Iterable[Any]) -> tuple[str, ...]:
    """Lines in the order in which they were finished; of a line that was drawn over, what was last to be seen."""
    lines: list[str] = []
    begun: dict[str, str] = {}
    for event in events:
        values = event if isinstance(event, dict) else {"data": str(event)}
        stream = str(values.get("stream_name") or "")
        *whole, begun[stream] = (begun.get(stream, "") + str(values.get("data") or "")).split("\n")
        lines += whole
    lines += [rest for rest in begun.values() if rest]
    return tuple(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def session_number(lines: Iterable[str]) -> int | None:
    """Kaggle's number of the session, if it said it."""
    number = None
    for line in lines:
        if not line.startswith(LIVE):
            continue
        try:
            said = json.loads(line[len(LIVE) :])
            number = int(said[SESSION_KEY]) or number
        except (ValueError, KeyError, TypeError):
            continue
    return number
