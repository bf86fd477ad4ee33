"""How a run stood at the end of a session: by its newest checkpoint that lies whole in the output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perdure.checkpoint.manifest import Manifest, load_manifest
from perdure.core.errors import CheckpointError
from perdure.core.runs import read_json
from perdure.relay.bringing import Bringer
from perdure.relay.inside.marker import Marker
from perdure.relay.listing import ListedCheckpoint
from perdure.relay.records import RunStand

EVENTS_MOST_BYTES = 16 * 1024 * 1024
"""Events of a run are brought up to this size; larger ones come with the run itself."""

_MOST = 1e15
"""No count is larger; and NaN is no number that anything can be told from."""

_STEP = re.compile(r"step-(\d{1,18})")


@dataclass(frozen=True)
class Judged:
    """A run in the output of a session.

    Attributes:
        stand: How it stood.
        problems: What keeps a newer checkpoint than that from being used, one line each; empty if there is none.
    """

    stand: RunStand
    problems: tuple[str, ...] = ()


def judge_runs(bring: Bringer, marker: Marker) -> tuple[Judged, ...]:
    """Every run that the output holds, or that the session told of.

    Args:
        bring: Brings the files that say it.
        marker: What the session told.

    Raises:
        TransientPlatformError, CredentialsError, OSError: As for ``Bringer.bring``.
    """
    told = {str(each.get("folder", "")).strip("/") + "/": each for each in marker.report}
    folders = bring.listing.run_folders
    bring.bring(name for folder in folders for name in _first_files(bring, folder))
    judged = [_judge(bring, folder, told.get(folder, {})) for folder in folders]
    seen = {each.stand.name for each in judged}
    judged += [_unseen(each) for each in marker.report if str(each.get("name")) not in seen]
    return tuple(judged)


def _first_files(bring: Bringer, folder: str) -> Iterator[str]:
    """What nearly always is enough."""
    yield from bring.listing.small_files(folder)
    yield from (each.manifest for each in bring.listing.checkpoints(folder)[:1])
    events = folder + "events.jsonl"
    if (bring.listing.sizes.get(events) or 0) <= EVENTS_MOST_BYTES:
        yield events


def _judge(bring: Bringer, folder: str, reported: Mapping[str, Any]) -> Judged:
    status, _ = read_json(bring.path(folder + "session.json"))
    known, _ = read_json(bring.path(folder + "run.json"))
    whole, manifest, problems = _newest_whole(bring, folder)
    told = {**reported, **status}
    name = manifest.run if manifest else str(known.get("name") or reported.get("name") or _last_part(folder))
    stand = RunStand(
        name=name,
        status=_status(str(told.get("status", "running")), manifest),
        step=manifest.position.step if manifest else 0,
        epoch=manifest.position.epoch if manifest else 0,
        checkpoint=whole.name if whole else None,
        reason=str(told.get("reason") or ""),
        **_plan_and_speed(told),
    )
    if _lacks(told, stand) and not problems:
        problems = [f"{folder}checkpoints/{told['checkpoint']} is not in the output"]
    return Judged(stand, tuple(problems))


def _newest_whole(bring: Bringer, folder: str) -> tuple[ListedCheckpoint | None, Manifest | None, list[str]]:
    """The newest checkpoint that is whole, by its manifest and the listed sizes; what is wrong with newer ones."""
    problems: list[str] = []
    for each in bring.listing.checkpoints(folder):
        bring.bring([each.manifest])
        manifest, found = _manifest(bring, each)
        if manifest is not None and not (found := bring.listing.problems(folder, manifest)):
            return each, manifest, problems
        problems += found
    return None, None, problems


def _manifest(bring: Bringer, checkpoint: ListedCheckpoint) -> tuple[Manifest | None, list[str]]:
    path = bring.path(checkpoint.manifest)
    try:
        return load_manifest(path.read_bytes(), path), []
    except FileNotFoundError:
        return None, [f"{checkpoint.manifest} is listed and does not come"]
    except CheckpointError as error:
        bring.forget(checkpoint.manifest)  # it may have been cut short on its way
        return None, [error.what]


def _status(told: str, manifest: Manifest | None) -> str:
    """What it told, unless the checkpoint that came says otherwise."""
    if manifest and manifest.finished:
        return "finished"
    return "paused" if told == "finished" and manifest else told


def _plan_and_speed(told: Mapping[str, Any]) -> dict[str, Any]:
    """As ``session.json`` has them, or else as the marker has."""
    plan, speeds = _mapping(told.get("plan")), _mapping(told.get("speeds"))
    count = _number(plan.get("count", told.get("count")))
    return {
        "count": None if count is None else int(count),
        "unit": str(plan.get("unit") or told.get("unit") or ""),
        "steps_per_s": _number(speeds.get("steps_per_s", told.get("steps_per_s"))),
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    """A number of a file that another version, or anybody, may have written."""
    return float(value) if isinstance(value, (int, float)) and abs(value) <= _MOST else None


def _lacks(told: Mapping[str, Any], stand: RunStand) -> bool:
    """Whether the session told of a checkpoint of its own that is newer than the one that came."""
    match = _STEP.match(str(told.get("checkpoint") or ""))
    step = int(match.group(1)) if match else 0
    return step > max(stand.step, _number(told.get("resumed_from")) or 0)


def _unseen(reported: Mapping[str, Any]) -> Judged:
    """A run that the session told of and whose folder did not come."""
    name = str(reported.get("name"))
    stand = RunStand(
        name, str(reported.get("status", "running")), 0, 0, None, reason=str(reported.get("reason") or "")
    )
    stand = replace(stand, **_plan_and_speed(reported))
    lost = [f"the run {name} is not in the output"] if _lacks(reported, stand) else []
    return Judged(stand, tuple(lost))


def _last_part(folder: str) -> str:
    return folder.rstrip("/").rpartition("/")[2] or "run"
