"""The marker: which session left this output, and how it ended. Read from the output, never from a listing.

The bootstrap writes it first (``perdure.platforms.bootstrap``, which holds the same names), so it is there even
where nothing of Perdure could be loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.errors import CorruptError, FormatVersionError, NoCheckpointError, UnreadableError
from perdure.core.files import write_json

MARKER = "perdure-session.json"
"""Its name, directly in the working folder."""

FORMAT = 1

_YEAR_5000_S = 9.5e10

STATUSES = ("starting", "running", "finished", "paused", "failed", "refused")
"""``"starting"`` and ``"running"`` in an output that is complete: the session was killed."""


@dataclass(frozen=True)
class Marker:
    """One session, by its own word.

    Attributes:
        relay: Id of the relay.
        session: Number of the session.
        slug: Its name on the platform.
        status: One of ``STATUSES``.
        reason: Why, in a sentence.
        exit_code: The script's exit code; None before its end.
        started_s: When it began, seconds since 1970.
        ended_s: When it ended; None before.
        accelerator: ``asked`` (as in the order) and ``found`` (names of the cards; None if nobody looked).
        accelerator_s: Seconds of accelerator hours it used, as it measured; 0 for none.
        resumed: For each run that was expected: ``run``, ``step``, ``checkpoint`` and ``digest`` of its manifest.
        report: For each run: ``name``, ``status``, ``step``, ``epoch``, ``checkpoint``, ``count``, ``unit``,
            ``steps_per_s``, ``reason``, ``resumed_from``, ``folder`` (below the working folder).
        mirror: ``to``, ``state`` (``"off"``, ``"ready"``, ``"failing"``), ``reason``, ``held``
            (checkpoints that were proven to be there); empty without a mirror.
        environment: Versions, the machine, the platform's number of the session.
        tail: Last lines of what it printed, where it did not end well.
    """

    relay: str
    session: int
    slug: str
    status: str = "starting"
    reason: str = ""
    exit_code: int | None = None
    started_s: float = 0.0
    ended_s: float | None = None
    accelerator: Mapping[str, Any] = field(default_factory=dict)
    accelerator_s: float = 0.0
    resumed: tuple[Mapping[str, Any], ...] = ()
    report: tuple[Mapping[str, Any], ...] = ()
    mirror: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    tail: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the session said how it ended."""
        return self.status in STATUSES[2:]

    def write(self, folder: Path) -> None:
        """Write it into a working folder, whole or not at all.

        Raises:
            OSError: It could not be written; the old one is untouched.
        """
        write_json(folder / MARKER, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Marker:
        """The marker in a folder.

        Raises:
            NoCheckpointError: There is none.
            UnreadableError: It cannot be read.
            CorruptError: It is no marker.
            FormatVersionError: A newer Perdure wrote it.
        """
        path = folder / MARKER
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NoCheckpointError(f"there is no {MARKER} in {folder}", path=path) from None
        except OSError as error:
            raise UnreadableError(f"{path} cannot be read: {error.strerror}", path=path) from error
        return load_marker(data, path)


def load_marker(data: bytes, path: Path) -> Marker:
    """The marker in these bytes; ``path`` is for messages. Raises as ``Marker.read`` does."""
    try:
        value = json.loads(data)
        version = value["format"]
        if type(version) is not int or version < 1:
            raise ValueError("no format version")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"{path} is no marker of a session ({type(error).__name__})", path=path) from None
    if version > FORMAT:
        raise FormatVersionError(
            f"{path} is of format {version}; this Perdure reads up to {FORMAT}",
            path=path,
            found=version,
            supported=FORMAT,
            hint="install a newer Perdure",
        )
    try:
        return _marker(value)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptError(f"{path} is no marker of a session: {error!r}", path=path) from None


def _marker(value: Mapping[str, Any]) -> Marker:
    code = value.get("exit_code")
    if value.get("status") not in STATUSES:
        raise ValueError(f"status {value.get('status')!r}")
    return Marker(
        relay=str(value["relay"]),
        session=int(value["session"]),
        slug=str(value["slug"]),
        status=str(value["status"]),
        reason=str(value.get("reason") or ""),
        exit_code=None if code is None else int(code),
        started_s=_seconds(value.get("started_s")) or 0.0,
        ended_s=_seconds(value.get("ended_s")),
        accelerator=dict(value.get("accelerator") or {}),
        accelerator_s=_seconds(value.get("accelerator_s")) or 0.0,
        resumed=tuple(dict(entry) for entry in value.get("resumed") or ()),
        report=tuple(dict(entry) for entry in value.get("report") or ()),
        mirror=dict(value.get("mirror") or {}),
        environment=dict(value.get("environment") or {}),
        tail=tuple(str(line) for line in value.get("tail") or ()),
    )


def _seconds(value: Any) -> float | None:
    """Seconds that can be added up and shown as a time; None for anything else."""
    seconds = None if value is None else float(value)
    return seconds if seconds is not None and 0.0 <= seconds < _YEAR_5000_S else None
