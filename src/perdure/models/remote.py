"""What the two places of publishing have in common: files on their way, what a place lists, how it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perdure.core.errors import PlatformError, TransientPlatformError

_PASSING = (408, 409, 425, 429)
_TRANSPORT = (
    "Timeout",
    "ConnectError",
    "ConnectionError",
    "NetworkError",
    "ReadError",
    "WriteError",
    "ProtocolError",
)


@dataclass(frozen=True)
class Outgoing:
    """A file to be published.

    Attributes:
        name: What it is called there, with ``/`` between folders.
        path: The file here.
        bytes: Its size.
    """

    name: str
    path: Path
    bytes: int


@dataclass(frozen=True)
class Listed:
    """A file as the place lists it.

    Attributes:
        bytes: Its size there.
        digest: ``"sha256:..."`` or ``"git-sha1:..."``; empty where the place gives none.
    """

    bytes: int
    digest: str = ""


@dataclass(frozen=True)
class Receipt:
    """What a place says after an upload.

    Attributes:
        url: The page of it.
        files: What is there, by name; listed anew, after the upload.
    """

    url: str
    files: dict[str, Listed]


def refusal(error: Exception, where: str, *, log_in: str) -> PlatformError:
    """The error of a client, as one of ours: what happened, where, and what to do.

    Args:
        error: What the client raised.
        where: The target, as the user wrote it.
        log_in: How to get a token that works.
    """
    status, reason = _status(error), _reason(error)
    if status == 401:
        return PlatformError(f"{where}: the token is not accepted: {reason}", hint=log_in)
    if status == 403:
        return PlatformError(
            f"{where}: this is not allowed: {reason}", hint=f"take a token that may write; {log_in}"
        )
    if status == 404:
        return PlatformError(f"{where}: not found: {reason}", hint=f"check the name and the owner; {log_in}")
    if status is not None and (status in _PASSING or status >= 500):
        return TransientPlatformError(f"{where}: status {status}: {reason}", hint="try again in a while")
    if status is None and any(_is_transport(link) for link in _chain(error)):
        return TransientPlatformError(f"{where} cannot be reached: {reason}", hint="is the internet on? try again")
    return PlatformError(f"{where}: {reason}", hint="the files are whole here; nothing was changed in them")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: Exception) -> int | None:
    """The HTTP status that a client's error carries, if there is one."""
    for link in _chain(error):
        for status in (
            getattr(getattr(link, "response", None), "status_code", None),
            getattr(link, "error_code", None),
        ):
            if isinstance(status, int):
                return status
    return None


def _is_transport(error: BaseException) -> bool:
    """The clients use different libraries for HTTP; what their errors are called is common to them."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return isinstance(error, (ConnectionError, TimeoutError)) or any(n.endswith(_TRANSPORT) for n in names)


def _reason(error: Exception) -> str:
    """What it says, and what it came from; clients hide the cause behind a sentence of their own."""
    said = " ".join(str(error).split()) or type(error).__name__
    cause = (
        f" ({type(error.__cause__).__name__}: {' '.join(str(error.__cause__).split())})" if error.__cause__ else ""
    )
    return f"{said[:300]}{cause[:200]}"
