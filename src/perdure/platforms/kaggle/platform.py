"""Kaggle as a place where sessions run, through its official client.

Facts about Kaggle are those of the client's source (kaggle 2.2.5) or of people who report them; nothing here was
ever tried against the real Kaggle: see docs/reference/untried.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.core.errors import (
    CredentialsError,
    NotThereError,
    PlatformError,
)
from perdure.platforms.kaggle.accelerators import ACCELERATORS
from perdure.platforms.kaggle.accelerators import accelerator as find_accelerator
from perdure.platforms.kaggle.client import Client
from perdure.platforms.kaggle.credentials import LOG_IN
from perdure.platforms.kaggle.datasets import dataset_text
from perdure.platforms.kaggle.logs import events_of, lines_of, session_number
from perdure.platforms.kaggle.metadata import check_submission
from perdure.platforms.kaggle.outputs import fetch_files, output_files, split_ref, versioned
from perdure.platforms.kaggle.pushing import Errand, delete, push_with_bundle
from perdure.platforms.protocol import (
    Accelerator,
    Handle,
    Log,
    Observation,
    OutputFile,
    Pace,
    Progress,
    Quota,
    Resource,
    SessionState,
    Stopping,
    Submission,
)

WINDOW_S = 12 * 3600.0
TPU_WINDOW_S = 9 * 3600.0
"""Kaggle's pages on notebooks and TPUs."""

LOG_LIMIT_S = 60.0
QUIET_S = 3.0
"""How long nothing new may come in the log of a session that runs, until it counts as read."""

_STATES: Mapping[str, SessionState] = {
    "QUEUED": "queued",
    "RUNNING": "running",
    "COMPLETE": "complete",
    "ERROR": "failed",
    "CANCEL_REQUESTED": "stopping",
    "CANCEL_ACKNOWLEDGED": "stopped",
}
"""Words of ``KernelWorkerStatus``; any other is unknown, ``NEW_SCRIPT`` (a draft) too."""


class KagglePlatform:
    """Kaggle, or something that speaks its protocol.

    Args:
        client: The official client.
        name: ``"kaggle"`` or ``"emulator"``.
        pace: How often it may be asked.
        window_s: The longest window; Kaggle's own if None.
        dataset_poll_s: Seconds between two looks at a data set or a fresh session that is not there yet.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str = "kaggle",
        pace: Pace | None = None,
        window_s: float | None = None,
        dataset_poll_s: float = 5.0,
    ) -> None:
        self.client = client
        self._name = name
        self._pace = pace or Pace()
        self._window_s = window_s
        self._dataset_poll_s = dataset_poll_s

    @property
    def name(self) -> str:
        """``"kaggle"`` or ``"emulator"``."""
        return self._name

    @property
    def pace(self) -> Pace:
        """How often it may be asked."""
        return self._pace

    @property
    def accelerators(self) -> Sequence[Accelerator]:
        """What it offers, the default first, the retired ones last."""
        return ACCELERATORS

    def window_s(self, accelerator: str) -> float:
        """The longest window of a session with this accelerator, in seconds.

        Raises:
            RefusedError: There is no such accelerator.
        """
        if self._window_s is not None:
            return self._window_s
        return TPU_WINDOW_S if find_accelerator(accelerator).resource == "tpu" else WINDOW_S

    def account(self) -> str:
        """Whose account it is.

        Raises:
            CredentialsError: There are no credentials, or they are not accepted.
            MissingExtraError: The client is not installed, or too old.
            TransientPlatformError: Kaggle was not reached.
        """
        user = str(self.client.hello()["user"])
        if not user:
            raise CredentialsError("Kaggle: the credentials name no user", hint=LOG_IN)
        return user

    def quota(self) -> tuple[Quota, ...]:
        """Hours of GPU and TPU in this week: ``GetAcceleratorQuotaStatistics``, in the client since 2.2.1."""
        said = self.client.call("quota", "the hours of this week")
        kinds: tuple[Resource, ...] = ("gpu", "tpu")
        refresh_s = _utc(said["refresh"])
        return tuple(_quota(kind, said["kinds"][kind], refresh_s) for kind in kinds if _counts(said["kinds"], kind))

    def submit(self, submission: Submission) -> Handle:
        """Start a session.

        The bundle travels in the source while that is small enough, else in a private data set that is waited for.
        Where Kaggle accepts the session but not all of its sources, the session is deleted at once.

        Raises:
            RefusedError: See its codes; no session was started.
            CredentialsError, MissingExtraError: As for ``account``.
            UncertainError: Nobody knows whether one was started: ask ``find``.
            TransientPlatformError: None was.
        """
        given = find_accelerator(submission.accelerator)
        check_submission(submission, self._name)
        errand = Errand(self.client, self._name, self.account(), submission, given, self.window_s(given.name))
        return push_with_bundle(errand, self._dataset_poll_s)

    def find(self, slug: str) -> Handle | None:
        """The session that was submitted under this slug; None if there is none, or it cannot be seen yet."""
        owner = self.account()
        ref = f"{owner}/{slug}"
        try:
            version = int(self.client.call("kernel", ref, owner=owner, slug=slug)["version"] or 0)
        except NotThereError:
            if self._observe(ref).state == "missing":
                return None
            version = 0
        return Handle(self._name, ref, version, f"https://www.kaggle.com/code/{ref}")

    def observe(self, handle: Handle) -> Observation:
        """How it stands. A word that is not known here is no end."""
        return self._observe(versioned(handle))

    def logs(self, handle: Handle) -> Log:
        """What it has printed so far. After its end the log may be empty for some minutes: then not complete.

        Raises:
            NotThereError: There is no such session, or not for this account.
        """
        owner, slug = split_ref(handle)
        if self.observe(handle).ended:
            said = self.client.call(
                "output", handle.ref, owner=owner, slug=slug, version=handle.version, page="", size=1
            )
            lines = lines_of(events_of(said["log"])) if said["log"] else ()
            return Log(lines, complete=bool(lines))
        quiet_s = min(QUIET_S, max(0.5, self._pace.poll_s))
        said = self.client.call(
            "log",
            handle.ref,
            limit_s=LOG_LIMIT_S + quiet_s,
            most_s=LOG_LIMIT_S,
            ref=versioned(handle),
            quiet_s=quiet_s,
        )
        return Log(lines_of(said["events"]), complete=False)

    def files(self, handle: Handle) -> tuple[OutputFile, ...]:
        """All files of its output, of all pages, with the sizes that Kaggle lists."""
        return output_files(self.client, handle)

    def fetch(
        self, handle: Handle, names: Sequence[str], folder: Path, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Bring files of its output to ``folder``; see ``outputs.fetch_files``."""
        return fetch_files(self.client, handle, names, folder, progress)

    def dataset_text(self, dataset: str, name: str) -> str:
        """A small text file of a data set.

        Args:
            dataset: ``owner/slug``.
            name: Name of the file.

        Raises:
            NotThereError: There is none.
            TransientPlatformError: A version of the data set is being processed.
        """
        return dataset_text(self.client, dataset, name)

    def stop(self, handle: Handle, *, now: bool) -> Stopping:
        """Ask it to end.

        Kaggle has no call that lets a pushed session save and end (a maintainer in kaggle-cli pull requests 1170
        and 1174). With ``now`` it is cancelled by its number, if it has said that in its log: an experiment, and
        nobody knows whether its output is kept. Else its notebook is deleted, which ends the session and its hours
        at once, as two public projects report; its output is lost.
        """
        seen = self.observe(handle)
        if seen.ended:
            return Stopping(True, f"{handle.ref} had ended already")
        if seen.state == "missing":
            return Stopping(False, f"{handle.ref} cannot be seen: it is gone, or not there yet")
        if not now:
            return Stopping(
                False,
                f"Kaggle has no way to end {handle.ref} from outside: it ends itself before its window closes",
            )
        if self._cancel(handle):
            return Stopping(True, f"Kaggle was asked to cancel {handle.ref}, and does")
        return delete(self.client, handle.ref)

    def close(self) -> None:
        """End the client's process."""
        self.client.close()

    def _observe(self, ref: str) -> Observation:
        try:
            said = self.client.call("status", ref, ref=ref)
        except NotThereError as error:
            return Observation("missing", "", error.what)
        state = _STATES.get(said["word"], "unknown") if said["known"] else "unknown"
        return Observation(state, said["word"], said["message"])

    def _cancel(self, handle: Handle) -> bool:
        """Try the experiment; whether the session ends by it."""
        try:
            number = session_number(self.logs(handle).lines)
            if number is None or self.client.call("cancel", handle.ref, acts=True, session=number)["error"]:
                return False
            seen = self.observe(handle)
        except PlatformError:
            return False
        return seen.ended or seen.state == "stopping"


def _counts(kinds: Mapping[str, Any], kind: str) -> bool:
    return kind in kinds and kinds[kind]["total_time_allowed"] is not None


def _quota(kind: Resource, said: Mapping[str, Any], refresh_s: float | None) -> Quota:
    return Quota(
        kind,
        used_s=said["time_used"] or 0.0,
        reserved_s=said["time_reserved"] or 0.0,
        allowed_s=said["total_time_allowed"],
        refresh_at_s=refresh_s,
    )


def _utc(text: str | None) -> float | None:
    """Seconds since 1970 of a time that the client gives without a zone, in UTC."""
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
