"""Kaggle as a place where sessions run, through its official client.

Facts about Kaggle are those of the client's source (kaggle 2.2.5) or of people who report them; nothing here was
ever tried against the real Kaggle: see docs/guides/kaggle.md.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.core.errors import (
    CredentialsError,
    NotThereError,
    PlatformError,
    RefusedError,
    UncertainError,
)
from perdure.platforms.kaggle.accelerators import ACCELERATORS, accelerator
from perdure.platforms.kaggle.client import Client
from perdure.platforms.kaggle.credentials import LOG_IN
from perdure.platforms.kaggle.datasets import code_dataset, dataset_text
from perdure.platforms.kaggle.logs import events_of, lines_of, session_number
from perdure.platforms.kaggle.metadata import check_submission, kernel_metadata, write_kernel
from perdure.platforms.kaggle.outputs import fetch_files, output_files, split_ref, versioned
from perdure.platforms.kaggle.refusals import refusal
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
from perdure.platforms.source import CARGO_NAME, build_source

SOURCE_BYTES = 950_000
"""How large the source of a session may be. Kaggle refuses 1,000,000 bytes, as public projects report; whether it
counts them before or after the quotes are escaped is not known."""

WINDOW_S = 12 * 3600.0
TPU_WINDOW_S = 9 * 3600.0
"""Kaggle's pages on notebooks and TPUs."""

PUSH_LIMIT_S = 120.0
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
        dataset_poll_s: Seconds between two looks at a data set that is not ready.
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
        return TPU_WINDOW_S if self._accelerator(accelerator).resource == "tpu" else WINDOW_S

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
        given = self._accelerator(submission.accelerator)
        check_submission(submission, self._name)
        owner = self.account()
        data = _read_cargo(submission.cargo)
        digest = hashlib.sha256(data).hexdigest()
        source = build_source(submission.order, data, CARGO_NAME, f"sha256:{digest}")
        if len(source.encode()) <= SOURCE_BYTES:
            try:
                return self._push(owner, submission, given, source, submission.datasets)
            except RefusedError as error:
                if error.code != "source-size":
                    raise
        source = build_source(submission.order, None, CARGO_NAME, f"sha256:{digest}")
        code = code_dataset(self.client, owner, submission.cargo, digest, CARGO_NAME, poll_s=self._dataset_poll_s)
        return self._push(owner, submission, given, source, (*submission.datasets, code), code)

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

        Kaggle has no call that ends a pushed session (a maintainer in kaggle-cli pull requests 1170 and 1174). It
        can be cancelled by its number, if it has said that in its log: an experiment. With ``now`` the notebook is
        deleted, which ends the session and its hours at once, as two public projects report; its output is lost.
        """
        seen = self.observe(handle)
        if seen.ended:
            return Stopping(True, f"{handle.ref} had ended already")
        if seen.state == "missing":
            return Stopping(False, f"{handle.ref} cannot be seen: it is gone, or not there yet")
        if self._cancel(handle):
            return Stopping(True, f"Kaggle was asked to cancel {handle.ref}, and does")
        if now:
            return self._delete(handle.ref)
        return Stopping(
            False, f"Kaggle has no way to end {handle.ref} from outside: it ends itself before its window closes"
        )

    def close(self) -> None:
        """End the client's process."""
        self.client.close()

    def _accelerator(self, name: str) -> Accelerator:
        return accelerator(name)

    def _push(
        self,
        owner: str,
        submission: Submission,
        given: Accelerator,
        source: str,
        datasets: Sequence[str],
        code: str = "",
    ) -> Handle:
        most_s = self.window_s(given.name)
        what = f"{owner}/{submission.slug}"
        with tempfile.TemporaryDirectory(prefix="perdure-push-", ignore_cleanup_errors=True) as folder:
            write_kernel(Path(folder), kernel_metadata(owner, submission, given, datasets), source)
            try:
                said = self.client.call(
                    "push",
                    what,
                    acts=True,
                    limit_s=PUSH_LIMIT_S,
                    folder=folder,
                    # "must be lower than the global maximum" (kagglesdk): the longest window goes without
                    timeout_s=max(1, int(submission.window_s)) if submission.window_s < most_s else None,
                )
            except NotThereError as error:
                raise RefusedError(error.what, code="request", hint=error.hint) from error
        if said["error"]:
            raise refusal(said["error"], what)
        handle = Handle(self._name, _ref(said, what), int(said["version_number"] or 0), said["url"])
        self._check_sources(handle, said["invalid"], code)
        self._check_alone(handle)
        return handle

    def _check_sources(self, handle: Handle, invalid: Mapping[str, Sequence[str]], code: str) -> None:
        """A session that Kaggle starts without some of its sources must not run."""
        wrong = [name for names in invalid.values() for name in names]
        if not wrong:
            return
        what = f"{handle.ref}: Kaggle accepted it without {', '.join(wrong)}"
        stopped = self._delete(handle.ref)
        if not stopped.done:
            raise UncertainError(f"{what}; {stopped.what}", hint="look at it before anything else is submitted")
        if wrong == [code]:  # it was only just made; the next try will be later
            raise UncertainError(f"{what}; it was deleted at once", retry_after_s=15.0, hint="try again")
        raise RefusedError(
            f"{what}; it was deleted at once",
            code="sources",
            hint="check the names, that this account may see them, and that a competition's rules are accepted",
        )

    def _check_alone(self, handle: Handle) -> None:
        """A push that was carried out twice makes two versions, and both run."""
        owner, slug = split_ref(handle)
        try:
            newest = int(self.client.call("kernel", handle.ref, owner=owner, slug=slug)["version"] or 0)
        except PlatformError:  # cannot be seen yet: then it cannot be told
            newest = handle.version
        if max(newest, handle.version) <= 1:
            return
        what = f"{handle.ref}: Kaggle started it {newest} times"
        stopped = self._delete(handle.ref)
        if not stopped.done:
            raise UncertainError(f"{what}; {stopped.what}", hint="look at it before anything else is submitted")
        raise UncertainError(f"{what}; it was deleted, which ends all of them", hint="look, then try again")

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

    def _delete(self, ref: str) -> Stopping:
        try:
            self.client.call("delete", ref, acts=True, ref=ref)
        except NotThereError:
            pass
        except PlatformError as error:
            return Stopping(False, f"it could not be deleted: {error.what}")
        return Stopping(True, f"{ref} was deleted, and its output with it")


def _read_cargo(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PlatformError(f"the bundle {path} cannot be read: {error.strerror}") from error


def _ref(said: Mapping[str, Any], asked: str) -> str:
    """What Kaggle calls it: the end of its address, if that says anything."""
    for text in (said["url"], said["ref"]):
        owner, _, slug = text.rstrip("/").rpartition("/")
        owner = owner.rpartition("/")[2]
        if owner and slug and owner.lower() == asked.partition("/")[0].lower():
            return f"{owner}/{slug}"
    return asked


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
