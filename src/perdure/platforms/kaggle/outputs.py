"""The output of a session: what is there, and bringing it here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from perdure.core.errors import NotThereError, RefusedError, TransientPlatformError
from perdure.platforms.kaggle.client import Client
from perdure.platforms.protocol import Handle, OutputFile, Progress

PAGE = 200
"""Files a page: the most that Kaggle gives (help text of the client 2.2.5)."""

STALL_S = 120.0
"""How long a download may stand still."""

_TRIES = 2


def split_ref(handle: Handle) -> tuple[str, str]:
    """Owner and slug."""
    owner, _, slug = handle.ref.partition("/")
    return owner, slug


def versioned(handle: Handle) -> str:
    """``owner/slug/version``: exactly that session, whatever was run there afterwards."""
    return f"{handle.ref}/{handle.version}" if handle.version else handle.ref


def output_files(client: Client, handle: Handle) -> tuple[OutputFile, ...]:
    """All files that can be fetched, with the sizes that Kaggle lists.

    Raises:
        NotThereError, CredentialsError, TransientPlatformError: It could not be asked.
    """
    names = list(addresses(client, handle))
    sizes = _sizes(client, handle) if names else {}
    return tuple(OutputFile(name, sizes.get(name)) for name in names)


def addresses(client: Client, handle: Handle) -> dict[str, str]:
    """Where each file of the output can be had; the addresses are good for some time only."""
    owner, slug = split_ref(handle)

    def page(token: str) -> dict[str, Any]:
        return client.call(
            "output", handle.ref, owner=owner, slug=slug, version=handle.version, page=token, size=PAGE
        )

    return {file["name"]: file["url"] for file in _pages(page)}


def fetch_files(
    client: Client, handle: Handle, names: Sequence[str], folder: Path, progress: Progress | None
) -> tuple[Path, ...]:
    """Bring files of the output to a folder.

    Args:
        client: The client.
        handle: The session.
        names: Names in its output.
        folder: Where they go, below their names.
        progress: Called with bytes that are there, and bytes in all.

    Raises:
        NotThereError: One of them is not in the output.
        RefusedError: A name leads out of the folder.
        TransientPlatformError: It could not be finished, or not be written here; calling this again goes on.
    """
    wanted = {name: folder / _inside(name) for name in names}
    if not wanted:
        return ()
    urls, sizes = addresses(client, handle), _sizes(client, handle)
    if missing := [name for name in wanted if name not in urls]:
        raise NotThereError(f"{handle.ref}: not in its output: {', '.join(missing[:5])}")
    tally = _Tally({name: sizes.get(name, 0) for name in wanted}, progress)
    for name, path in wanted.items():
        if not (path.is_file() and path.stat().st_size == sizes.get(name)):
            urls = _fetch_one(client, handle, name, path, urls, tally)
            _check_size(handle, name, path, sizes.get(name))
        tally.done(name, path.stat().st_size)
    return tuple(wanted.values())


def _fetch_one(
    client: Client, handle: Handle, name: str, path: Path, urls: dict[str, str], tally: _Tally
) -> dict[str, str]:
    """Fetch a file; gives the addresses, which are asked for anew where they are too old."""
    part = path.with_name(f".{path.name}.part")  # hidden: the output may hold a file NAME.part of its own
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TransientPlatformError(
            f"cannot write to {path.parent}: {error.strerror}", hint="make room"
        ) from error
    what = f"{handle.ref}: {name}"

    def load(url: str) -> None:
        client.call(
            "download", what, limit_s=STALL_S, alive=tally.watch(name, part), url=url, path=str(part), tries=_TRIES
        )

    try:
        load(urls[name])
    except (NotThereError, RefusedError, KeyError):  # an address that is too old is refused in many ways
        urls = addresses(client, handle)
        if name not in urls:
            raise NotThereError(f"{what}: it is no longer in the output") from None
        load(urls[name])
    os.replace(part, path)
    return urls


def _check_size(handle: Handle, name: str, path: Path, size: int | None) -> None:
    """A file that is shorter than its listing says must not keep its name."""
    found = path.stat().st_size
    if size is not None and found != size:
        path.unlink()
        raise TransientPlatformError(
            f"{handle.ref}: {name} has {found} bytes, and {size} are listed", hint="try again later"
        )


class _Tally:
    """Counts the bytes of all files that are fetched."""

    def __init__(self, sizes: dict[str, int], progress: Progress | None) -> None:
        self._sizes = sizes
        self._there: dict[str, int] = {}
        self._progress = progress

    def done(self, name: str, size: int) -> None:
        self._there[name] = size
        if self._progress is not None:
            total = sum(max(size, self._there.get(name, 0)) for name, size in self._sizes.items())
            self._progress(sum(self._there.values()), total)

    def watch(self, name: str, part: Path) -> Callable[[], object]:
        """Gives the bytes of a file that are there, and tells of them."""

        def look() -> int:
            size = part.stat().st_size if part.exists() else 0
            if size != self._there.get(name):
                self.done(name, size)
            return size

        return look


def _sizes(client: Client, handle: Handle) -> dict[str, int]:
    def page(token: str) -> dict[str, Any]:
        return client.call("sizes", handle.ref, ref=versioned(handle), page=token, size=PAGE)

    try:
        return {file["name"]: int(file["size"]) for file in _pages(page)}
    except NotThereError:  # the output was listed just now: only its sizes are not told
        return {}


def _pages(page: Callable[[str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All entries of all pages; a token that comes again would lead round in a circle."""
    token, seen = "", {""}
    while True:
        found = page(token)
        yield from found["files"]
        token = found["next"]
        if token in seen:
            return
        seen.add(token)


def _inside(name: str) -> PurePosixPath:
    """The path of an output file below a folder; its name is the platform's word and not to be trusted."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise RefusedError(f"{name!r} leads out of the output folder", code="request")
    return path
