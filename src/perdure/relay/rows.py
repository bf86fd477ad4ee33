"""Records of the relay as rows of its database, and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from perdure.platforms.protocol import Handle
from perdure.relay.records import Relay, RelayOrder, RunSource, RunStand, SessionRecord, Standing

_PATHS = ("project", "out", "bundle")
_TUPLES = ("arguments", "datasets", "competitions", "models", "notify")


def relay_values(relay: Relay) -> dict[str, Any]:
    """The columns of a relay."""
    return {
        "id": relay.id,
        "name": relay.order.name,
        "state": relay.state,
        "reason": relay.reason,
        "revision": relay.revision,
        "created_s": relay.created_s,
        "wake_s": relay.wake_s,
        "tries": relay.tries,
        "stop": relay.stop,
        "told": relay.told,
        "standing_json": _dump(asdict(relay.standing)),
    }


def order_text(order: RelayOrder) -> str:
    """An order as text; it never changes."""
    return _dump({**asdict(order), **{name: str(getattr(order, name)) for name in _PATHS}})


def relay_of(row: sqlite3.Row, sessions: tuple[SessionRecord, ...]) -> Relay:
    """The relay of a row."""
    return Relay(
        id=row["id"],
        order=_order(row["order_json"]),
        state=row["state"],
        reason=row["reason"],
        revision=row["revision"],
        created_s=row["created_s"],
        wake_s=row["wake_s"],
        sessions=sessions,
        standing=_standing(json.loads(row["standing_json"])),
        stop=row["stop"],
        told=row["told"],
        tries=row["tries"],
    )


def session_values(relay_id: str, session: SessionRecord) -> dict[str, Any]:
    """The columns of a session."""
    return {
        "relay": relay_id,
        "number": session.number,
        "slug": session.slug,
        "stage": session.stage,
        "accelerator": session.accelerator,
        "window_s": session.window_s,
        "handle_json": None if session.handle is None else _dump(session.handle.as_dict()),
        "intended_s": session.intended_s,
        "submitted_s": session.submitted_s,
        "started_s": session.started_s,
        "ended_s": session.ended_s,
        "doubted_s": session.doubted_s,
        "missing_s": session.missing_s,
        "outcome": session.outcome,
        "reason": session.reason,
        "runs_json": _dump([asdict(run) for run in session.runs]),
        "accelerator_s": session.accelerator_s,
        "tail_json": _dump(session.tail),
    }


def session_of(row: sqlite3.Row) -> SessionRecord:
    """The session of a row."""
    handle = row["handle_json"]
    return SessionRecord(
        number=row["number"],
        slug=row["slug"],
        stage=row["stage"],
        accelerator=row["accelerator"],
        window_s=row["window_s"],
        intended_s=row["intended_s"],
        handle=None if handle is None else Handle.from_dict(json.loads(handle)),
        submitted_s=row["submitted_s"],
        started_s=row["started_s"],
        ended_s=row["ended_s"],
        outcome=row["outcome"],
        reason=row["reason"],
        runs=tuple(RunStand(**run) for run in json.loads(row["runs_json"])),
        accelerator_s=row["accelerator_s"],
        tail=tuple(json.loads(row["tail_json"])),
        doubted_s=row["doubted_s"],
        missing_s=row["missing_s"],
    )


@lru_cache(maxsize=16)  # a driver reads the same one again and again
def _order(text: str) -> RelayOrder:
    values = json.loads(text)
    paths = {name: Path(values[name]) for name in _PATHS}
    return RelayOrder(**{**values, **paths, **{name: tuple(values[name]) for name in _TUPLES}})


def _standing(values: Mapping[str, Any]) -> Standing:
    runs = tuple(RunSource(RunStand(**each["stand"]), each["session"]) for each in values["runs"])
    return Standing(**{**values, "runs": runs})


def _dump(value: Any) -> str:
    """JSON; escaped where it holds an argument or a path that is not UTF-8, which SQLite does not take."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text
