"""Model files brought to a public place, on request only, and proved by listing back what is there."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.core.errors import ConfigError, PlatformError
from perdure.core.intervals import format_bytes
from perdure.models import publish_hub, publish_kaggle
from perdure.models.remote import Listed, Outgoing

FORMS = "hf://user/repo, hf://user/repo/folder, or kaggle://owner/model/framework/variation"
MAX_FILES = 50
"""kagglehub packs more files than this into one archive, which nobody expects; ours are never so many."""

_PART = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Published:
    """What is there now.

    Attributes:
        target: Where, as it was asked for.
        url: The page of it.
        files: Name to size in bytes, as the place lists them.
        digests: How many of them the place gave a digest of; each was equal.
    """

    target: str
    url: str
    files: dict[str, int]
    digests: int

    def __str__(self) -> str:
        count, size = len(self.files), format_bytes(sum(self.files.values()))
        proof = "names and sizes" if self.digests == 0 else f"names, sizes and the digests of {self.digests}"
        return f"{self.url}: {count} file{'s' if count != 1 else ''}, {size}; listed back with equal {proof}"


def publish(files: Sequence[str | os.PathLike[str]], target: str, *, message: str = "") -> Published:
    """Upload model files, then list the place and compare.

    A new repository or model is made private; one that is there keeps its visibility, and files of other names in
    it are left alone on Hugging Face; Kaggle makes a new version that holds exactly these files. To do it again
    after a failure is safe.

    Args:
        files: Files, or folders (a SavedModel), which keep their name.
        target: ``hf://user/repo[/folder]`` (token of ``hf auth login`` or ``HF_TOKEN``), or
            ``kaggle://owner/model/framework/variation`` (``~/.kaggle``, or ``KAGGLE_API_TOKEN``).
        message: What the commit or version is called.

    Returns:
        What is there, as the place lists it.

    Raises:
        ConfigError: A target or a file that cannot be.
        MissingExtraError: The client of the place is not installed.
        PlatformError: No token, refused, or what is listed is not what was sent.
        TransientPlatformError: The network or the place failed; try again.
    """
    place, parts = _parse(target)
    outgoing = list(_gather(files))
    message = message or "Model files written and checked by Perdure"
    send = publish_hub.send if place == "hf" else publish_kaggle.send
    receipt = send(target, parts, outgoing, message)
    digests = _compare(target, outgoing, receipt.files)
    sizes = {file.name: receipt.files[file.name].bytes for file in outgoing}
    return Published(target, receipt.url, sizes, digests)


def check_target(target: str) -> None:
    """Refuse, before any work is done, a target that cannot be.

    Raises:
        ConfigError: It is none of the known forms.
    """
    _parse(target)


def _parse(target: str) -> tuple[str, list[str]]:
    place, separator, rest = target.partition("://")
    parts = rest.rstrip("/").split("/")
    known = separator and all(_PART.fullmatch(part) for part in parts)
    if known and ((place == "hf" and len(parts) >= 2) or (place == "kaggle" and len(parts) == 4)):
        return place, parts
    raise ConfigError(f"{target!r} is no place to publish to", hint=f"one of: {FORMS}")


def _gather(files: Sequence[str | os.PathLike[str]]) -> Iterator[Outgoing]:
    """Every file, under the name that it will have there."""
    found = [outgoing for file in files for outgoing in _expand(Path(file))]
    names = [outgoing.name for outgoing in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two files would have the same name there: {', '.join(twice)}", hint="rename one")
    if not 0 < len(found) <= MAX_FILES:
        raise ConfigError(f"{len(found)} files are to be published; it can be 1 to {MAX_FILES}")
    yield from found


def _expand(path: Path) -> Iterator[Outgoing]:
    paths = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for one in paths:
        if not one.is_file():
            raise ConfigError(f"there is no file {one}", hint="export the model first")
        name = one.relative_to(path.parent).as_posix()
        yield Outgoing(name, one, one.stat().st_size)


def _compare(target: str, sent: list[Outgoing], listed: dict[str, Listed]) -> int:
    """How many digests were equal.

    Raises:
        PlatformError: Something is not there, or not the same.
    """
    wrong, digests = [], 0
    for file in sent:
        there = listed.get(file.name)
        if there is None:
            wrong.append(f"{file.name} is not there")
        elif there.bytes != file.bytes:
            wrong.append(f"{file.name} has {there.bytes} bytes there and {file.bytes} here")
        elif there.digest and there.digest != _digest(file, there.digest.partition(":")[0]):
            wrong.append(f"{file.name} has another digest there: {there.digest}")
        digests += bool(there and there.digest)
    if wrong:
        lines = "".join(f"\n  - {line}" for line in wrong)
        raise PlatformError(
            f"{target} does not hold what was sent{lines}", hint="publish again; the files here are whole"
        )
    return digests


def _digest(file: Outgoing, kind: str) -> str:
    """The digest of a file here, in the way of the place: git's own puts the size before the content."""
    hasher = hashlib.sha256() if kind == "sha256" else hashlib.sha1(f"blob {file.bytes}\0".encode())
    with open(file.path, "rb") as stream:
        while block := stream.read(1 << 20):
            hasher.update(block)
    return f"{kind}:{hasher.hexdigest()}"
