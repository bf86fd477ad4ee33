"""Which files of which sessions make up what a relay has come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import cast

from perdure.checkpoint.manifest import Manifest, load_manifest
from perdure.core.errors import CheckpointError, CorruptError, NotThereError, RelayError
from perdure.platforms.protocol import Platform
from perdure.relay.bringing import Bringer
from perdure.relay.inside.marker import MARKER
from perdure.relay.inside.order import mirror_slug
from perdure.relay.listing import ListedCheckpoint, Listing
from perdure.relay.mirrored import KAGGLE, MirrorOutput
from perdure.relay.records import Outcome, Relay, RunSource, SessionRecord

_LEFT: tuple[Outcome, ...] = ("finished", "paused", "failed", "killed")
"""Outcomes of sessions that may have left something for the user."""

_TIDIED: tuple[Outcome, ...] = ("finished", "paused", "failed")
"""Outcomes of sessions that have taken the project's own files away at their end."""

_CACHES = frozenset({".cache", ".ipynb_checkpoints", ".virtual_documents", "__pycache__"})
"""Folders that the platform or the interpreter has left. Other hidden ones are the script's: ``.hydra``."""

_STATE = ("checkpoints/", "tensors/", "quarantine/")


@dataclass(frozen=True)
class Kept:
    """A checkpoint that is to be brought.

    Attributes:
        run_folder: Folder of its run below the output, with ``/`` at its end.
        name: Its name.
        newest: Whether it is what the relay goes by: it has to be whole.
    """

    run_folder: str
    name: str
    newest: bool


@dataclass(frozen=True)
class Choice:
    """What is to be brought.

    Attributes:
        names: The session that each file comes from, by name.
        checkpoints: The checkpoints among them.
        gone: Numbers of sessions whose output is no longer there, and that hold no run.
    """

    names: dict[str, Bringer]
    checkpoints: tuple[Kept, ...]
    gone: tuple[int, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """Names that are listed and cannot be used here."""
        return tuple(dict.fromkeys(name for bring in self.names.values() for name in bring.listing.refused))

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, as far as the platform names them."""
        return sum(bring.listing.sizes[name] or 0 for name, bring in self.names.items())


def sources_of(relay: Relay) -> tuple[SessionRecord, ...]:
    """The sessions that hold the runs of a relay, and the newest one that left anything; in their order.

    Raises:
        RelayError: No session has left anything yet.
    """
    numbers = {source.session for source in relay.standing.runs if not source.stand.mirrored}
    left = [record.number for record in relay.sessions if record.outcome in _LEFT]
    numbers |= {max(left)} if left else set()
    found = tuple(each for each in relay.sessions if each.number in numbers and each.handle)
    if not found:
        raise RelayError(
            f"no session of {relay.order.name} has left anything yet",
            hint=f"perdure relay status {relay.order.name} shows how it stands",
        )
    return found


def choose(platform: Platform, relay: Relay, folder: Path, *, tensors: bool) -> Choice:
    """Look what there is, and choose: the checkpoints of each run from the session that holds it the furthest, all
    other files from the newest session that has them; of one that holds no run, only what lies outside of runs.

    Args:
        platform: Where the sessions ran.
        relay: The relay.
        folder: Where files go; the manifests are brought there to choose by them.
        tensors: Whether checkpoints are wanted at all.

    Raises:
        RelayError: No session has left anything yet.
        CorruptError: A checkpoint that the relay goes by is no longer there.
        PlatformError: As the platform says.
    """
    brings = {record.number: _bringer(platform, record, folder) for record in sources_of(relay)}
    others, gone = _others(platform, relay, folder, brings)
    names: dict[str, Bringer] = {}
    for number, bring in sorted((brings | others).items(), reverse=True):
        runs = bring.listing.run_folders if number in others else ()
        _add(names, bring, [name for name in _plain_files(bring.listing) if not name.startswith(runs)])
    checkpoints: list[Kept] = []
    for source in relay.standing.runs if tensors else ():
        bring = _from_mirror(relay, source, folder) if source.stand.mirrored else brings[source.session]
        for kept, files in _checkpoints(bring, source):
            checkpoints.append(kept)
            names.update(dict.fromkeys(files, bring))
    return Choice(names, tuple(checkpoints), gone)


def _others(
    platform: Platform, relay: Relay, folder: Path, brings: Mapping[int, Bringer]
) -> tuple[dict[int, Bringer], tuple[int, ...]]:
    """The sessions that hold no run, where the script may have left a plot of each night; those that are gone."""
    found: dict[int, Bringer] = {}
    gone = []
    for record in relay.sessions:
        if record.number not in brings and record.outcome in _TIDIED and record.handle:
            try:
                found[record.number] = _bringer(platform, record, folder)
            except NotThereError:
                gone.append(record.number)
    return found, tuple(gone)


def _add(names: dict[str, Bringer], bring: Bringer, more: Iterable[str]) -> None:
    """Add files of an older session, but for those that a newer one has, or has put something in the way of."""
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    for name in more:
        above = (str(parent) for parent in PurePosixPath(name).parents)
        if name not in names and name not in folders and not any(each in names for each in above):
            names[name] = bring


def _bringer(platform: Platform, record: SessionRecord, folder: Path) -> Bringer:
    assert record.handle is not None  # sources_of
    return Bringer(platform, record.handle, Listing.of(platform.files(record.handle)), folder)


def _from_mirror(relay: Relay, source: RunSource, folder: Path) -> Bringer:
    """A run whose newest checkpoint no session has handed over."""
    record = next(each for each in relay.sessions if each.number == source.session)
    assert record.handle is not None  # it was collected
    if relay.order.mirror == KAGGLE:
        raise RelayError(
            f"the newest checkpoint of {source.stand.name} lies in the data set {mirror_slug(relay.id)} only",
            hint="let the relay go on: its next session brings it home; or fetch without --tensors",
        )
    mirror = cast(Platform, MirrorOutput(relay.order.mirror, relay.id))
    return Bringer(mirror, record.handle, Listing.of(mirror.files(record.handle)), folder)


def _plain_files(listing: Listing) -> Iterator[str]:
    """Everything but checkpoints, the marker, and what only the session itself needed."""
    runs = listing.run_folders
    state = tuple(run + part for run in runs for part in _STATE)
    never = {MARKER, *(run + "lock" for run in runs)}
    for name in listing.sizes:
        parts = name.split("/")
        half = name.startswith(runs) and any(part.startswith(".") for part in parts)
        if not half and not _CACHES & set(parts) and name not in never and not name.startswith(state):
            yield name


def _checkpoints(bring: Bringer, source: RunSource) -> list[tuple[Kept, list[str]]]:
    """The checkpoints of a run that are whole as sizes tell, the one that the relay goes by first."""
    for run_folder in bring.listing.run_folders:
        listed = bring.listing.checkpoints(run_folder)
        if source.stand.checkpoint in [each.name for each in listed]:
            bring.bring(each.manifest for each in listed)
            whole = {
                each.name: (manifest, each) for each in listed if (manifest := _whole(bring, each)) is not None
            }
            found = whole.get(source.stand.checkpoint or "")
            if found is not None and found[0].run == source.stand.name:
                return [_kept(manifest, each, source) for manifest, each in whole.values()]
    raise CorruptError(
        f"{source.stand.name}: {source.stand.checkpoint} is not whole in the output of session {source.session}",
        path=bring.folder,
    )


def _whole(bring: Bringer, checkpoint: ListedCheckpoint) -> Manifest | None:
    """The manifest of a checkpoint that is whole as sizes tell; one that does not parse is brought once more."""
    for _ in range(2):
        bring.bring([checkpoint.manifest])
        path = bring.path(checkpoint.manifest)
        try:
            manifest = load_manifest(path.read_bytes(), path)
        except (CheckpointError, FileNotFoundError):
            bring.forget(checkpoint.manifest)
        else:
            return None if bring.listing.problems(checkpoint.run_folder, manifest) else manifest
    return None


def _kept(manifest: Manifest, checkpoint: ListedCheckpoint, source: RunSource) -> tuple[Kept, list[str]]:
    files: Sequence[str] = [checkpoint.run_folder + file for file in manifest.files]
    kept = Kept(checkpoint.run_folder, checkpoint.name, checkpoint.name == source.stand.checkpoint)
    return kept, [checkpoint.manifest, *files]
