"""Starting a session: its source, where its bundle goes, and what an accepted push may still have wrong."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.core.errors import NotThereError, PlatformError, RefusedError, UncertainError
from perdure.platforms.kaggle.client import Client
from perdure.platforms.kaggle.datasets import code_dataset
from perdure.platforms.kaggle.metadata import kernel_metadata, write_kernel
from perdure.platforms.kaggle.outputs import split_ref
from perdure.platforms.kaggle.refusals import refusal
from perdure.platforms.protocol import Accelerator, Handle, Stopping, Submission
from perdure.platforms.source import CARGO_NAME, build_source

SOURCE_BYTES = 950_000
"""How large the source of a session may be. Kaggle refuses 1,000,000 bytes, as public projects report; whether it
counts them before or after the quotes are escaped is not known."""

PUSH_LIMIT_S = 120.0
"""How long Kaggle may take to accept a session."""

ALONE_LOOKS = 6
"""How often a session that was just accepted and cannot be seen yet is looked for, to know whether it is alone."""

_LOOK = "look at it before anything else is submitted"


@dataclass(frozen=True)
class Errand:
    """One session to be started.

    Attributes:
        client: The client.
        platform: Name of the platform, for the handle.
        owner: Whose account it is.
        submission: What is asked for; checked already.
        accelerator: What it is to run on.
        most_s: The longest window with that.
    """

    client: Client
    platform: str
    owner: str
    submission: Submission
    accelerator: Accelerator
    most_s: float

    @property
    def ref(self) -> str:
        """What it is to be called."""
        return f"{self.owner}/{self.submission.slug}"

    @property
    def timeout_s(self) -> int | None:
        """ "Must be lower than the global maximum" (kagglesdk): the longest window goes without."""
        window_s = self.submission.window_s
        return max(1, int(window_s)) if window_s < self.most_s else None


def push_with_bundle(errand: Errand, poll_s: float) -> Handle:
    """Start a session; its bundle travels in the source, or in a private data set where it is too large for that.

    Args:
        errand: The session.
        poll_s: Seconds between two looks at what is not there yet.

    Raises:
        RefusedError, UncertainError, TransientPlatformError, PlatformError: See ``KagglePlatform.submit``.
    """
    submission = errand.submission
    data = _read(submission.cargo)
    digest = hashlib.sha256(data).hexdigest()
    source = build_source(submission.order, data, CARGO_NAME, f"sha256:{digest}")
    if len(source.encode()) <= SOURCE_BYTES:
        try:
            return _push(errand, source, submission.datasets, poll_s)
        except RefusedError as error:
            if error.code != "source-size":
                raise
    source = build_source(submission.order, None, CARGO_NAME, f"sha256:{digest}")
    code = code_dataset(errand.client, errand.owner, submission.cargo, digest, CARGO_NAME, poll_s=poll_s)
    return _push(errand, source, (*submission.datasets, code), poll_s, code)


def delete(client: Client, ref: str) -> Stopping:
    """Delete a notebook, which ends its session."""
    try:
        client.call("delete", ref, acts=True, ref=ref)
    except NotThereError:
        return Stopping(False, f"{ref} could not be deleted: it cannot be seen")
    except PlatformError as error:
        return Stopping(False, f"{ref} could not be deleted: {error.what}")
    return Stopping(True, f"{ref} was deleted, and its output with it")


def _push(errand: Errand, source: str, datasets: Sequence[str], poll_s: float, code: str = "") -> Handle:
    with tempfile.TemporaryDirectory(prefix="perdure-push-", ignore_cleanup_errors=True) as folder:
        metadata = kernel_metadata(errand.owner, errand.submission, errand.accelerator, datasets)
        write_kernel(Path(folder), metadata, source)
        try:
            said = errand.client.call(
                "push", errand.ref, acts=True, limit_s=PUSH_LIMIT_S, folder=folder, timeout_s=errand.timeout_s
            )
        except NotThereError as error:
            raise RefusedError(error.what, code="request", hint=error.hint) from error
    if said["error"]:
        raise refusal(said["error"], errand.ref)
    handle = Handle(errand.platform, _ref(said, errand.ref), int(said["version_number"] or 0), said["url"])
    _check_sources(errand.client, handle, said["invalid"], code)
    _check_alone(errand, handle, poll_s)
    return handle


def _check_sources(client: Client, handle: Handle, invalid: Mapping[str, Sequence[str]], code: str) -> None:
    """A session that Kaggle starts without some of its sources must not run."""
    wrong = [name for names in invalid.values() for name in names]
    if not wrong:
        return
    what = f"{handle.ref}: Kaggle accepted it without {', '.join(wrong)}"
    stopped = delete(client, handle.ref)
    if not stopped.done:
        raise UncertainError(f"{what}; {stopped.what}", hint=_LOOK)
    if wrong == [code]:  # it was only just made; the next try will be later
        raise UncertainError(f"{what}; it was deleted at once", retry_after_s=15.0, hint="try again")
    raise RefusedError(
        f"{what}; it was deleted at once",
        code="sources",
        hint="check the names, that this account may see them, and that a competition's rules are accepted",
    )


def _check_alone(errand: Errand, handle: Handle, poll_s: float) -> None:
    """A push that was carried out twice makes two versions, and both run."""
    newest = max(_newest(errand.client, handle, poll_s), handle.version)
    if newest <= 1:
        return
    stopped = delete(errand.client, handle.ref)
    raise UncertainError(f"{handle.ref}: Kaggle started it {newest} times; {stopped.what}", hint=_LOOK)


def _newest(client: Client, handle: Handle, poll_s: float) -> int:
    """The newest version of a session; 0 if that cannot be told: it is not shown, or Kaggle does not answer."""
    owner, slug = split_ref(handle)
    for look in range(ALONE_LOOKS):
        if look:
            time.sleep(poll_s)
        try:
            return int(client.call("kernel", handle.ref, owner=owner, slug=slug)["version"] or 0)
        except NotThereError:
            continue
        except PlatformError:
            break
    return 0


def _ref(said: Mapping[str, Any], asked: str) -> str:
    """What Kaggle calls it: the end of its address, if that says anything."""
    for text in (said["url"], said["ref"]):
        owner, _, slug = text.rstrip("/").rpartition("/")
        owner = owner.rpartition("/")[2]
        if owner and slug and owner.lower() == asked.partition("/")[0].lower():
            return f"{owner}/{slug}"
    return asked


def _read(cargo: Path) -> bytes:
    try:
        return cargo.read_bytes()
    except OSError as error:
        raise PlatformError(f"the bundle {cargo} cannot be read: {error.strerror}") from error
