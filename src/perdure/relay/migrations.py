"""The tables of the relay's database, and how an older database becomes a newer one.

The version is ``PRAGMA user_version``. Each step is one transaction: a process that dies in it leaves the older
version. ``docs/reference/relay-database.md`` describes the tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from perdure.core.errors import RelayError

_FIRST = (
    """
    CREATE TABLE relays (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        state TEXT NOT NULL
            CHECK (state IN ('active', 'waiting', 'stopping', 'stopped', 'done', 'needs-you')),
        reason TEXT NOT NULL,
        revision INTEGER NOT NULL,
        created_s REAL NOT NULL,
        changed_s REAL NOT NULL,
        wake_s REAL,
        tries INTEGER NOT NULL,
        stop TEXT NOT NULL CHECK (stop IN ('', 'kindly', 'now')),
        told TEXT NOT NULL CHECK (told IN ('', 'kindly', 'now')),
        order_json TEXT NOT NULL,
        standing_json TEXT NOT NULL
    )
    """,
    """
    CREATE TABLE sessions (
        relay TEXT NOT NULL REFERENCES relays (id),
        number INTEGER NOT NULL CHECK (number >= 1),
        slug TEXT NOT NULL UNIQUE,
        stage TEXT NOT NULL CHECK (stage IN ('intended', 'submitted', 'ended', 'collected', 'abandoned')),
        accelerator TEXT NOT NULL,
        window_s REAL NOT NULL,
        handle_json TEXT,
        intended_s REAL NOT NULL,
        submitted_s REAL,
        started_s REAL,
        ended_s REAL,
        doubted_s REAL,
        missing_s REAL,
        looked_s REAL NOT NULL DEFAULT 0,
        outcome TEXT NOT NULL,
        reason TEXT NOT NULL,
        runs_json TEXT NOT NULL,
        accelerator_s REAL NOT NULL,
        tail_json TEXT NOT NULL,
        PRIMARY KEY (relay, number)
    )
    """,
    # the promise "never two sessions at once", held by the database itself
    "CREATE UNIQUE INDEX one_open ON sessions (relay) WHERE stage IN ('intended', 'submitted')",
    "CREATE INDEX unsettled ON sessions (relay, stage, looked_s) WHERE stage <> 'collected'",
    """
    CREATE TABLE leases (
        relay TEXT PRIMARY KEY REFERENCES relays (id),
        holder TEXT NOT NULL,
        pid INTEGER NOT NULL,
        process_s REAL NOT NULL,
        machine TEXT NOT NULL,
        host TEXT NOT NULL,
        until_s REAL NOT NULL
    )
    """,
    """
    CREATE TABLE notices (
        id INTEGER PRIMARY KEY,
        relay TEXT NOT NULL REFERENCES relays (id),
        made_s REAL NOT NULL,
        title TEXT NOT NULL,
        body TEXT NOT NULL,
        sent_s REAL,
        problem TEXT NOT NULL
    )
    """,
    "CREATE INDEX unsent ON notices (relay) WHERE sent_s IS NULL",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST,)
"""The statements that lead from each version to the next; only ever added to."""


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Bring a database to the newest version.

    Args:
        connection: To the database, in autocommit mode.
        path: Of its file, for errors.
        migrations: As ``MIGRATIONS``.

    Raises:
        RelayError: It is of a newer version than this Perdure knows.
    """
    while (version := _version(connection)) != len(migrations):
        if version > len(migrations):
            raise RelayError(
                f"{path} was written by a newer Perdure (version {version}, known here: {len(migrations)})",
                hint="update Perdure here, or name another folder in PERDURE_HOME",
            )
        _step(connection, migrations)


def _step(connection: sqlite3.Connection, migrations: Sequence[Sequence[str]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)  # another process may have been faster
        if version < len(migrations):
            for statement in migrations[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
