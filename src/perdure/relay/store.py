"""The database of all relays of this machine.

What was written is on disk before a call returns. Whoever writes names the revision that he has read: a relay that
another process has changed since is not overwritten. Every call may raise ``StoreError``. A ``Store`` belongs to
the thread that opened it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from perdure.core.errors import RelayError, StaleError, StoreError
from perdure.relay.home import Home
from perdure.relay.migrations import migrate
from perdure.relay.notices import Notice
from perdure.relay.plan import LOOKS_MOST
from perdure.relay.records import Relay, RelayOrder, SessionRecord
from perdure.relay.rows import order_text, relay_of, relay_values, session_of, session_values

_BUSY_S = 30.0

_FULL = "free some space, and let no other program hold the file"
_DAMAGED = (
    "it is damaged: put a copy of it back, or move it away and start anew; what sessions have left is still where "
    "they ran"
)


@dataclass(frozen=True)
class Pending:
    """A notice that was not sent yet.

    Attributes:
        id: Its number in the database.
        notice: What is to be told.
    """

    id: int
    notice: Notice


class Store:
    """All relays of this machine.

    Args:
        home: Where they are kept; made if it is not there.

    Raises:
        StoreError: The database cannot be opened.
        RelayError: A newer Perdure wrote it.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        try:
            home.folder.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(home.database, timeout=_BUSY_S, isolation_level=None)
            self._prepare()
        except StoreError:
            raise
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"cannot open {home.database}: {error}", hint="name another folder in PERDURE_HOME"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self.connection.close()

    def create(self, relay_id: str, order: RelayOrder, now_s: float) -> Relay:
        """Put down a new relay; its first session is submitted at its first tick.

        Args:
            relay_id: Of ``new_relay_id``.
            order: What is asked for.
            now_s: Seconds since 1970.

        Raises:
            RelayError: There is a relay of this name already.
        """
        relay = Relay(relay_id, order, "active", "about to begin", revision=1, created_s=now_s, wake_s=now_s)
        try:
            with self.transaction():
                self._insert("relays", {**relay_values(relay), "order_json": order_text(order), "changed_s": now_s})
        except sqlite3.IntegrityError:
            raise RelayError(
                f"there is a relay {order.name!r} already",
                hint=f"give this one another --name, or go on with `perdure relay watch {order.name}`",
            ) from None
        return relay

    def names(self) -> tuple[str, ...]:
        """Names of all relays, the oldest first."""
        return tuple(row["name"] for row in self._rows("SELECT name FROM relays ORDER BY created_s, id"))

    def relays(self) -> tuple[Relay, ...]:
        """All relays with their sessions, the oldest first."""
        return tuple(self.load(row["id"]) for row in self._rows("SELECT id FROM relays ORDER BY created_s, id"))

    def find(self, name: str) -> Relay:
        """A relay by its name or id, with all its sessions.

        Raises:
            RelayError: There is none.
        """
        row = self._one("SELECT id FROM relays WHERE name = ? OR id = ? ORDER BY name = ? DESC", name, name, name)
        if row is None:
            known = ", ".join(self.names()[-5:])
            raise RelayError(
                f"there is no relay {name!r}", hint=f"known: {known}" if known else "none was started yet"
            )
        return self.load(row["id"])

    def load(self, relay_id: str) -> Relay:
        """A relay with all its sessions.

        Raises:
            RelayError: There is none.
        """
        with self.transaction("DEFERRED"):  # both reads see the same moment
            row = self._relay_row(relay_id)
            sessions = self._rows("SELECT * FROM sessions WHERE relay = ? ORDER BY number", relay_id)
        return relay_of(row, tuple(session_of(session) for session in sessions))

    def working(self, relay_id: str) -> Relay:
        """A relay with those of its sessions that matter now: what a tick needs, however long the relay is.

        Raises:
            RelayError: There is none.
        """
        with self.transaction("DEFERRED"):
            relay = relay_of(self._relay_row(relay_id), ())
            numbers = sorted({source.session for source in relay.standing.runs} | {relay.standing.newest})
            rows = [
                *self._rows(_UNSETTLED, relay_id),
                *self._rows(_ABANDONED, relay_id, LOOKS_MOST),
                *self._rows(_NUMBERED.format(", ".join("?" * len(numbers))), relay_id, *numbers),
            ]
        sessions = {row["number"]: session_of(row) for row in rows}
        return replace(relay, sessions=tuple(sessions[number] for number in sorted(sessions)))

    def write(self, before: Relay, after: Relay, now_s: float, notices: Sequence[Notice] = ()) -> Relay:
        """Replace what was read by what it has become; all of it, or nothing.

        Sessions of ``before`` that are not in ``after`` are deleted, those that differ are written.

        Args:
            before: As it was read.
            after: What it is to be.
            now_s: Seconds since 1970.
            notices: What the user is to be told about it.

        Returns:
            ``after``, at its new revision.

        Raises:
            StaleError: It was changed by another process since it was read.
        """
        written = replace(after, revision=before.revision + 1)
        with self.transaction():
            self._write_relay(before, written, now_s)
            kept = {session.number for session in after.sessions}
            for session in before.sessions:
                if session.number not in kept:
                    self.run("DELETE FROM sessions WHERE relay = ? AND number = ?", before.id, session.number)
            for session in after.sessions:
                if session not in before.sessions:
                    self._put(before.id, session)
            for notice in notices:
                values = {"relay": before.id, "made_s": now_s, "title": notice.title, "body": notice.body}
                self._insert("notices", {**values, "problem": ""})
        return written

    def looked(self, relay_id: str, number: int, now_s: float) -> None:
        """Note that an abandoned session was looked for once more."""
        self.run("UPDATE sessions SET looked_s = ? WHERE relay = ? AND number = ?", now_s, relay_id, number)

    def unsent(self, relay_id: str) -> tuple[Pending, ...]:
        """Notices that were not sent yet, the oldest first."""
        rows = self._rows("SELECT * FROM notices WHERE relay = ? AND sent_s IS NULL ORDER BY id", relay_id)
        return tuple(Pending(row["id"], Notice(row["title"], row["body"])) for row in rows)

    def sent(self, pending: Pending, now_s: float, problem: str = "") -> None:
        """Note that a notice was sent, or why it could not be."""
        self.run("UPDATE notices SET sent_s = ?, problem = ? WHERE id = ?", now_s, problem, pending.id)

    def problems(self, relay_id: str) -> tuple[str, ...]:
        """Why notices of a relay could not be sent; the newest last."""
        rows = self._rows("SELECT problem FROM notices WHERE relay = ? AND problem <> '' ORDER BY id", relay_id)
        return tuple(row["problem"] for row in rows)

    @contextlib.contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """All that is done inside is done, or nothing of it."""
        self.run(f"BEGIN {kind}")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.run("ROLLBACK")
            raise

    def _prepare(self) -> None:
        self.connection.row_factory = sqlite3.Row
        self.run("PRAGMA journal_mode = WAL")
        self.run("PRAGMA synchronous = FULL")  # an intent must outlive a laptop that is switched off
        self.run("PRAGMA foreign_keys = ON")
        migrate(self.connection, self.home.database)

    def _write_relay(self, before: Relay, written: Relay, now_s: float) -> None:
        values = {**relay_values(written), "changed_s": now_s}
        for fixed in ("id", "name", "created_s"):
            del values[fixed]
        columns = ", ".join(f"{name} = ?" for name in values)
        statement = f"UPDATE relays SET {columns} WHERE id = ? AND revision = ?"
        if self.run(statement, *values.values(), before.id, before.revision).rowcount != 1:
            raise StaleError(f"the relay {before.order.name!r} was changed by another process")

    def _put(self, relay_id: str, session: SessionRecord) -> None:
        values = session_values(relay_id, session)
        columns = ", ".join(f"{name} = excluded.{name}" for name in values)
        self._insert("sessions", values, f"ON CONFLICT (relay, number) DO UPDATE SET {columns}")

    def _insert(self, table: str, values: dict[str, Any], end: str = "") -> None:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.run(f"INSERT INTO {table} ({names}) VALUES ({marks}) {end}", *values.values())

    def _relay_row(self, relay_id: str) -> sqlite3.Row:
        row = self._one("SELECT * FROM relays WHERE id = ?", relay_id)
        if row is None:
            raise RelayError(f"there is no relay {relay_id!r}")
        return row

    def _one(self, statement: str, *values: Any) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self.run(statement, *values).fetchone()
        return row

    def _rows(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        return self.run(statement, *values).fetchall()

    def run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Execute one statement."""
        try:
            return self.connection.execute(statement, values)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.Error as error:  # the disk is full, say
            hint = _FULL if isinstance(error, sqlite3.OperationalError) else _DAMAGED
            raise StoreError(f"{self.home.database}: {error}", hint=hint) from error


# `stage <> 'collected'` is the condition of the index that keeps these two from reading every session of a relay
_UNSETTLED = """
SELECT * FROM sessions
WHERE relay = ? AND stage <> 'collected' AND stage IN ('intended', 'submitted', 'ended')
"""
_ABANDONED = """
SELECT * FROM sessions
WHERE relay = ? AND stage <> 'collected' AND stage = 'abandoned'
ORDER BY looked_s, number LIMIT ?
"""
_NUMBERED = "SELECT * FROM sessions WHERE relay = ? AND number IN ({})"
