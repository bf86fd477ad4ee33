"""The mirror as a source: where the next session goes on from, when a session has taken its output with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from perdure.checkpoint.manifest import load_manifest
from perdure.core.errors import CheckpointError, NotThereError, PerdureError, TransientPlatformError
from perdure.platforms.protocol import DataSets, Handle, OutputFile, Platform, Progress
from perdure.relay.handover import GIVE_UP_LAGS, Collected
from perdure.relay.inside.mirror import without_password
from perdure.relay.inside.mirror_kaggle import DESCRIPTION
from perdure.relay.inside.order import mirror_slug
from perdure.relay.records import Relay, RunStand, SessionRecord

LIMIT_S = 60.0
"""How long a mirror may take to answer."""

KAGGLE = "kaggle"

T = TypeVar("T")


@dataclass(frozen=True)
class Mirrored:
    """A checkpoint that lies in the mirror.

    Attributes:
        run: Name of its run.
        step: Its steps.
        checkpoint: Its name.
        epoch: Its epoch; 0 if the mirror does not say.
    """

    run: str
    step: int
    checkpoint: str
    epoch: int = 0


def with_mirror(
    platform: Platform, relay: Relay, session: SessionRecord, found: Collected, late_s: float
) -> Collected | None:
    """What a session came to, its mirror included. The mirror is asked only where the output did not come whole.

    Args:
        platform: Where it ran.
        relay: Its relay.
        session: The session.
        found: What its output tells.
        late_s: Seconds since its end. A mirror that cannot be read is asked again for some times ``pace.lag_s``:
            hours of work may lie in it.

    Returns:
        ``found``, with runs that got further in the mirror; None to ask again later.
    """
    if found.whole or not relay.order.mirror or session.handle is None:
        return found
    try:
        there = held(platform, relay, session.handle.ref.partition("/")[0])
    except PerdureError as error:
        if late_s < GIVE_UP_LAGS * platform.pace.lag_s:
            return None
        return replace(found, reason=f"{found.reason}; the mirror cannot be read: {error.what}")
    further = [each for each in there if each.step > _best(relay, found, each.run)]
    if not further:
        return found
    runs = {run.name: run for run in found.runs} | {each.run: _stand(found, each) for each in further}
    what = ", ".join(f"{each.run} at step {each.step}" for each in further)
    return replace(found, runs=tuple(runs.values()), reason=f"{found.reason}; the mirror holds {what}")


def mirror_datasets(relay: Relay) -> tuple[str, ...]:
    """The data sets that the next session has to see, because what it goes on from lies in them."""
    owners = [
        record.handle.ref.partition("/")[0]
        for source in relay.standing.runs
        for record in relay.sessions
        if source.stand.mirrored and record.number == source.session and record.handle is not None
    ]
    return (f"{owners[0]}/{mirror_slug(relay.id)}",) if owners and relay.order.mirror == KAGGLE else ()


def held(platform: Platform, relay: Relay, owner: str) -> tuple[Mirrored, ...]:
    """The newest checkpoint of each run in the mirror.

    Args:
        platform: Where the relay runs.
        relay: The relay.
        owner: Whose data set it is, where it is one.

    Raises:
        PerdureError: It cannot be read now, or not from here.
    """
    if relay.order.mirror == KAGGLE:
        return _in_data_set(platform, f"{owner}/{mirror_slug(relay.id)}")
    shown = without_password(relay.order.mirror)
    return within(LIMIT_S, shown, lambda: tuple(_in_folder(relay.order.mirror, relay.id)))


def within(limit_s: float, what: str, ask: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
    """The answer of a question that may hang or fail in any way.

    Raises:
        TransientPlatformError: It has, or there was no answer in time.
    """
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(ask())
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            answer.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if not answer:
        raise TransientPlatformError(f"{what} does not answer")
    if isinstance(answer[0], Exception):
        error = answer[0]
        raise TransientPlatformError(f"{what}: {type(error).__name__}: {error}") from error
    return tuple(answer[0])


class MirrorOutput:
    """A mirror below an address, read as the output of a session is.

    Args:
        url: The address.
        relay_id: Whose checkpoints.
    """

    def __init__(self, url: str, relay_id: str) -> None:
        self._url, self._relay_id = url, relay_id

    def files(self, handle: Handle) -> tuple[OutputFile, ...]:
        """All files of it.

        Raises:
            TransientPlatformError: It cannot be read now.
        """

        def ask() -> tuple[OutputFile, ...]:
            files, base = _open(self._url, self._relay_id)
            found = files.find(base, detail=True)
            return tuple(
                OutputFile(str(path)[len(base) + 1 :], int(about["size"])) for path, about in found.items()
            )

        return within(LIMIT_S, without_password(self._url), ask)

    def fetch(
        self, handle: Handle, names: Sequence[str], folder: Path, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Bring files of it; one that is cut off begins anew.

        Raises:
            TransientPlatformError: It cannot be read now.
        """
        files, base = _open(self._url, self._relay_id)
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            try:
                files.get_file(f"{base}/{name}", str(part))
            except Exception as error:
                raise TransientPlatformError(f"{without_password(self._url)}: {name}: {error}") from error
            part.replace(path)
        return tuple(folder / name for name in names)


def _open(url: str, relay_id: str) -> tuple[Any, str]:
    import fsspec

    files, root = fsspec.core.url_to_fs(url)
    return files, f"{str(root).rstrip('/')}/{relay_id}"


def _in_data_set(platform: Platform, dataset: str) -> tuple[Mirrored, ...]:
    """By the description that every version of it holds."""
    if not isinstance(platform, DataSets):
        raise NotThereError(f"{platform.name} has no data sets to read a mirror from")
    try:
        value = json.loads(platform.dataset_text(dataset, DESCRIPTION))
        return tuple(Mirrored(str(r["run"]), int(r["step"]), str(r["checkpoint"])) for r in value["runs"])
    except NotThereError:
        return ()  # it was never made
    except (ValueError, KeyError, TypeError) as error:
        raise TransientPlatformError(f"{DESCRIPTION} in {dataset} cannot be understood: {error!r}") from error


def _in_folder(url: str, relay_id: str) -> Iterator[Mirrored]:
    """By the manifests, which are written last, and the sizes of the files that they name."""
    files, base = _open(url, relay_id)
    for run in _names(files, base):
        found = [
            each for name in _names(files, f"{base}/{run}/checkpoints") if (each := _whole(files, base, run, name))
        ]
        if found:
            yield max(found, key=lambda each: each.step)


def _whole(files: Any, base: str, run: str, name: str) -> Mirrored | None:
    path = f"{base}/{run}/checkpoints/{name}/manifest.json"
    try:
        manifest = load_manifest(files.cat_file(path), Path(path))
        sizes = {file: int(files.info(f"{base}/{run}/{file}")["size"]) for file in manifest.files}
    except (FileNotFoundError, CheckpointError):
        return None
    return Mirrored(run, manifest.step, name, manifest.position.epoch) if sizes == manifest.files else None


def _names(files: Any, folder: str) -> list[str]:
    """Names of the folders in a folder; none where there is no such folder."""
    try:
        entries = files.ls(folder, detail=True)
    except FileNotFoundError:
        return []
    return [str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"]


def _best(relay: Relay, found: Collected, run: str) -> int:
    """How far a run got, as far as outputs tell."""
    known = [source.stand.step for source in relay.standing.runs if source.stand.name == run]
    return max(
        [*known, *(stand.step for stand in found.runs if stand.name == run and stand.checkpoint)], default=-1
    )


def _stand(found: Collected, mirrored: Mirrored) -> RunStand:
    known = next((run for run in found.runs if run.name == mirrored.run), None)
    stand = known or RunStand(mirrored.run, "running", 0, 0, None)
    return replace(stand, step=mirrored.step, epoch=mirrored.epoch, checkpoint=mirrored.checkpoint, mirrored=True)
