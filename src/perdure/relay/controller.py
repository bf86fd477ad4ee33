"""The controller: drives a relay on, a tick at a time.

A tick may die anywhere. What is about to be done is on disk before the platform is asked to do it; what was learnt is
on disk before the next thing is asked. Whatever a dead tick leaves open, the next one finds out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from perdure.core.clock import Clock, SystemClock
from perdure.core.errors import PlatformError, RelayError, StaleError
from perdure.platforms.protocol import Platform, Progress
from perdure.relay import changes
from perdure.relay.actions import Action, Rest, Seen
from perdure.relay.handover import Collector, collect
from perdure.relay.lease import Lease
from perdure.relay.notices import notify
from perdure.relay.plan import plan
from perdure.relay.records import Relay
from perdure.relay.store import Store

STEPS_MOST = 60
"""Actions of one tick; far more than any tick needs."""

_BUSY_S = 2.0


class Fetcher(Protocol):
    """Brings a finished run to this machine; may be called again after a death anywhere in it."""

    def __call__(self, platform: Platform, relay: Relay, out: Path, progress: Progress | None) -> object: ...


Notifier = Callable[[Sequence[str], str, str], Sequence[str]]
"""Sends a notice: addresses, title, body; gives what failed."""


class Controller:
    """Drives relays of one platform.

    Args:
        store: Where they are kept.
        platform: Where their sessions run.
        collect: Judges a session that has ended.
        fetch: Brings the finished run.
        notify: Sends notices.
        clock: For the time of day.
    """

    def tick(self, relay_id: str) -> float | None:
        """Do for a relay what is to be done now.

        Args:
            relay_id: Which one.

        Returns:
            When to call again, seconds since 1970; None when it has come to an end, or needs its user.

        Raises:
            RelayError: There is no such relay.
        """
        raise NotImplementedError


def stop_relay(store: Store, relay_id: str, now_s: float, *, now: bool = False) -> Relay:
    """Let a relay end: no further session; a tick tells the one that runs.

    Args:
        store: Where it is kept.
        relay_id: Which one.
        now_s: Seconds since 1970.
        now: Whether its session is to be ended at any price: its output may be lost.

    Returns:
        How it stands now.
    """
    raise NotImplementedError


def resume_relay(store: Store, relay_id: str, now_s: float) -> Relay:
    """Let a relay go on that was stopped, or that needed its user.

    Args:
        store: Where it is kept.
        relay_id: Which one.
        now_s: Seconds since 1970.

    Returns:
        How it stands now.

    Raises:
        RelayError: It is done already.
    """
    raise NotImplementedError
