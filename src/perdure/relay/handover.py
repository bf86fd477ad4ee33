"""The hand-over of a session that has ended: its small files come to this machine, and say what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from perdure.core.errors import CheckpointError, NotThereError
from perdure.platforms.protocol import Handle, Observation, OutputFile, Platform
from perdure.relay.bringing import Bringer
from perdure.relay.inside.marker import MARKER, Marker
from perdure.relay.listing import Listing
from perdure.relay.logs import keep_log
from perdure.relay.records import Outcome, RunStand
from perdure.relay.stands import Judged, judge_runs

TAIL_LINES = 40
"""How much of a log is kept with a session that did not end well."""

GIVE_UP_LAGS = 4
"""So many times ``pace.lag_s`` after the end, a file that is listed and still fails to come counts as not there."""


@dataclass(frozen=True)
class Collected:
    """What a session came to, as its output tells.

    Attributes:
        outcome: In a word, never empty.
        reason: In a sentence.
        runs: How each of its runs stood, by the newest checkpoint that lies whole in its output, as sizes tell. A
            run of which there is none has ``checkpoint=None`` and step 0.
        accelerator_s: Seconds of accelerator hours it used, as it measured; 0 for none.
        started_s: When it says that it began, seconds since 1970; None if it does not say.
        ended_s: When it says that it ended; None if it does not say.
        tail: Last lines of its log; empty where it ended well.
        files: Names of the files that were brought, below the folder.
        whole: Whether all that it told of came; False too where it could not say what there is.
    """

    outcome: Outcome
    reason: str
    runs: tuple[RunStand, ...] = ()
    accelerator_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    tail: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    whole: bool = True


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
    late_s, lag_s = now_s - ended_s, platform.pace.lag_s
    folder.mkdir(parents=True, exist_ok=True)
    listing = Listing.of(_files(platform, handle))
    bring = Bringer(platform, handle, listing, folder, give_up=late_s >= GIVE_UP_LAGS * lag_s)
    bring.bring([MARKER])
    marker, problem = _marker(folder)
    if marker is None:
        return _nothing(platform, handle, folder, problem) if late_s >= lag_s else None
    if (marker.relay, marker.session) != (relay_id, number):
        return Collected("no-output", _stranger(marker, relay_id, number), whole=False)
    judged = judge_runs(bring, marker)
    if any(each.problems for each in judged) and late_s < lag_s:
        return None
    collected = _collected(marker, judged, _observe(platform, handle), ended_s)
    printed = keep_log(platform, handle, folder)
    tail = () if collected.outcome in _WELL else (marker.tail or printed)[-TAIL_LINES:]
    return replace(collected, tail=tail, files=tuple(sorted(bring.brought)))


_WELL: tuple[Outcome, ...] = ("finished", "paused")


def _files(platform: Platform, handle: Handle) -> tuple[OutputFile, ...]:
    try:
        return platform.files(handle)
    except NotThereError:  # deleted, or not shown yet: time tells
        return ()


def _observe(platform: Platform, handle: Handle) -> Observation:
    try:
        return platform.observe(handle)
    except NotThereError as error:
        return Observation("missing", message=error.what)


def _marker(folder: Path) -> tuple[Marker | None, str]:
    try:
        return Marker.read(folder), ""
    except CheckpointError as error:
        (folder / MARKER).unlink(missing_ok=True)  # it may have been cut short on its way
        return None, error.what


def _nothing(platform: Platform, handle: Handle, folder: Path, problem: str) -> Collected:
    seen = _observe(platform, handle)
    why = f": {seen.message}" if seen.message else ""
    return Collected(
        "no-output",
        f"it left no output that says whose it is ({_ending(seen)}{why})",
        tail=keep_log(platform, handle, folder)[-TAIL_LINES:] or (problem,),
        whole=False,
    )


def _stranger(marker: Marker, relay_id: str, number: int) -> str:
    return (
        f"its output is that of session {marker.session} of relay {marker.relay}, not of session {number} of"
        f" relay {relay_id}: it is not used"
    )


def _collected(marker: Marker, judged: Sequence[Judged], seen: Observation, ended_s: float) -> Collected:
    """What the marker and the runs say together."""
    runs = tuple(each.stand for each in judged)
    problems = [problem for each in judged for problem in each.problems]
    outcome, reason = _ended(marker, seen)
    if problems and outcome in _WELL:
        outcome = "paused" if any(run.checkpoint for run in runs) else "no-output"
        reason = f"{_fallen_back(runs)}: {problems[0]}"
    return Collected(
        outcome,
        reason,
        runs,
        accelerator_s=_accelerator_s(marker, ended_s),
        started_s=marker.started_s or None,
        ended_s=marker.ended_s,
        whole=marker.is_over and not problems,
    )


def _ended(marker: Marker, seen: Observation) -> tuple[Outcome, str]:
    match marker.status:
        case "finished":
            return "finished", marker.reason
        case "paused":
            return "paused", marker.reason
        case "failed":
            return "failed", marker.reason or f"the script ended with exit code {marker.exit_code}"
        case "refused":
            return "refused", marker.reason
        case _:
            return "killed", seen.message or _ending(seen)


def _ending(seen: Observation) -> str:
    words = {"stopped": "it was stopped", "failed": "the platform ended it"}
    return words.get(seen.state, "it ended") + " before it could say how it stood"


def _fallen_back(runs: Sequence[RunStand]) -> str:
    kept = [f"{run.name} at step {run.step}" for run in runs if run.checkpoint]
    return f"its output did not come whole, what is whole is {', '.join(kept) or 'nothing'}"


def _accelerator_s(marker: Marker, ended_s: float) -> float:
    """As it measured; of a session that was killed, until it was seen to have ended."""
    if marker.is_over or not marker.accelerator.get("found"):
        return marker.accelerator_s
    return max(marker.accelerator_s, ended_s - marker.started_s)
