"""The hand-over of a session that has ended: its small files come to this machine, and say what it came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perdure.platforms.protocol import Handle, Platform
from perdure.relay.records import Outcome, RunStand


@dataclass(frozen=True)
class Collected:
    """What a session came to, as its output tells.

    Attributes:
        outcome: In a word, never empty.
        reason: In a sentence.
        runs: How each of its runs stood: by the newest checkpoint that lies whole in its output, by sizes. A run whose
            output holds no whole checkpoint has ``checkpoint=None`` and step 0.
        accelerator_s: Seconds of accelerator hours it used, as it measured; 0 for none.
        started_s: When it says that it began, seconds since 1970; None if it does not say.
        ended_s: When it says that it ended; None if it does not say.
        tail: Last lines of its log; empty where it ended well.
        files: Names of the files that were brought, below the folder.
    """

    outcome: Outcome
    reason: str
    runs: tuple[RunStand, ...] = ()
    accelerator_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    tail: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class Collector(Protocol):
    """What the controller calls when a session has ended; ``collect``, or a stand-in of tests."""

    def __call__(
        self,
        platform: Platform,
        handle: Handle,
        relay_id: str,
        number: int,
        folder: Path,
        now_s: float,
        ended_s: float,
    ) -> Collected | None: ...


def collect(
    platform: Platform,
    handle: Handle,
    relay_id: str,
    number: int,
    folder: Path,
    now_s: float,
    ended_s: float,
) -> Collected | None:
    """Bring the small files of an ended session, and judge it by them. Tensors stay where they are.

    May be called again after a death anywhere in it: what was brought is brought again or found.

    Args:
        platform: Where it ran.
        handle: Which one.
        relay_id: Whose session it has to be: an output that names another is refused.
        number: Its number in the relay, likewise.
        folder: Where its files go, ``<home>/relays/<id>/sessions/<number>``; made if it is not there.
        now_s: Seconds since 1970.
        ended_s: When it was first seen to have ended, seconds since 1970.

    Returns:
        What it came to; None while its output may still be on its way (``pace.lag_s`` after its end): ask again.

    Raises:
        TransientPlatformError, CredentialsError: As the platform says; nothing is judged.
        OSError: The files could not be written.
    """
    raise NotImplementedError
