"""Only one process at a time acts for a relay: it holds the relay's lease while it does.

A lease is held for one tick. One whose holder died on this machine is taken at once; one that was taken on another
machine (a home folder on a network) is good until its time is over.
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import psutil

from perdure.platforms.detect import process_started_s
from perdure.relay.store import Store

TERM_S = 900.0
"""How long a lease is good without being renewed; longer than any single call of a platform may take."""

_SAME_S = 0.5

_left: set[str] = set()
"""Leases of this process that could not be given back, as on a full disk: it lives, and they are free all the same.
"""


@dataclass(frozen=True)
class Holder:
    """A process, told from every other one.

    Attributes:
        pid: Process id.
        process_s: When it was started, on the scale of ``SystemClock.monotonic()``.
        machine: This start of this machine, and the process's space of process ids.
        host: Name of the machine.
    """

    pid: int
    process_s: float
    machine: str
    host: str


class Lease:
    """The right to act for a relay.

    Args:
        store: Where it is written down.
        relay_id: Which relay.
    """

    def __init__(self, store: Store, relay_id: str) -> None:
        self._store = store
        self._relay_id = relay_id
        self._token = secrets.token_hex(8)
        self._renewed_s = 0.0

    def take(self, now_s: float) -> Holder | None:
        """Take it.

        Args:
            now_s: Seconds since 1970.

        Returns:
            None if it was taken, or else the process that holds it.
        """
        with self._store.transaction():
            row = self._row()
            if row is not None and row["holder"] != self._token and not _is_free(row, now_s):
                return Holder(row["pid"], row["process_s"], row["machine"], row["host"])
            me = this_process()
            self._store.run(
                "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?)",
                *(self._relay_id, self._token, me.pid, me.process_s, me.machine, me.host, now_s + TERM_S),
            )
        self._renewed_s = now_s
        return None

    def renew(self, now_s: float) -> bool:
        """Prolong it, where a good part of its time is over.

        Returns:
            Whether it is still held.
        """
        if abs(now_s - self._renewed_s) < TERM_S / 4:
            return True
        done = self._store.run(
            "UPDATE leases SET until_s = ? WHERE relay = ? AND holder = ?",
            now_s + TERM_S,
            self._relay_id,
            self._token,
        )
        self._renewed_s = now_s
        return done.rowcount == 1

    def release(self) -> None:
        """Give it back; does nothing where it is held by another process."""
        _left.add(self._token)
        self._store.run("DELETE FROM leases WHERE relay = ? AND holder = ?", self._relay_id, self._token)
        _left.discard(self._token)

    def _row(self) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._store.run("SELECT * FROM leases WHERE relay = ?", self._relay_id).fetchone()
        return row


def this_process() -> Holder:
    """The process that asks."""
    pid = os.getpid()
    return Holder(pid, _started_s(pid) or 0.0, _machine(), socket.gethostname())


def _is_free(row: sqlite3.Row, now_s: float) -> bool:
    """Whether its holder is gone, or, where that cannot be known, its time is over."""
    if row["holder"] in _left:
        return True
    if row["machine"] == _machine():
        started_s = _started_s(row["pid"])
        return started_s is None or abs(started_s - row["process_s"]) > _SAME_S
    if row["host"] == socket.gethostname() and row["machine"].split()[0] != _machine().split()[0]:
        return True  # this machine was started anew since
    return not now_s < row["until_s"] <= now_s + TERM_S  # a time too far ahead was written by a wrong clock


def _started_s(pid: int) -> float | None:
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return None
        return process_started_s(pid)
    except (OSError, psutil.Error, IndexError):
        return None


def _machine() -> str:
    """This start of this machine; two containers on it are two machines."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {round(psutil.boot_time())}"
