"""The bundle: the user's project and Perdure itself in one archive, the same bytes for the same content."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from perdure.core.errors import BundleError
from perdure.core.files import write_atomic
from perdure.relay.survey import Item, Survey, survey

PROJECT, LIBRARY, DESCRIPTION = "project", "library", "bundle.json"
"""Names in the archive."""

_TIME_S = 315_532_800  # 1980: older than that some archivers cannot say
_LEFT_OUT = ("testing", "__pycache__")
"""Parts of Perdure that no session needs."""


@dataclass(frozen=True)
class Bundle:
    """An archive that every session of a relay gets.

    Attributes:
        path: The archive, ``.tar.xz``.
        digest: ``sha256:...``: what unpacks it has only the standard library.
        size_bytes: Its size.
        content: What is in it of the project.
    """

    path: Path
    digest: str
    size_bytes: int
    content: Survey

    @property
    def text_bytes(self) -> int:
        """Its size as base64, as it travels in a session's source."""
        return -(-self.size_bytes // 3) * 4


def make_bundle(project: Path, target: str, path: Path, *, arguments: tuple[str, ...] = ()) -> Bundle:
    """Pack a project.

    Args:
        project: Its folder.
        target: The script or notebook, below it or as an absolute path.
        path: The archive to be written; it is whole or not there.
        arguments: Arguments of the target: they are checked, they do not travel here.

    Raises:
        ConfigError: The target lies outside of the project.
        BundleError: The project cannot travel as it is, or the archive cannot be written.
    """
    content = survey(project, target, arguments)
    data = _archive(content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except OSError as error:
        raise BundleError(
            f"{path} cannot be written: {error.strerror}", hint="check the disk and its rights"
        ) from error
    return Bundle(path, digest_of(data), len(data), content)


def digest_of(data: bytes) -> str:
    """The digest that bundles are known by."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _archive(content: Survey) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", format=tarfile.PAX_FORMAT, preset=6) as archive:
        _add(archive, DESCRIPTION, _description(content))
        for name, data in _library():
            _add(archive, f"{LIBRARY}/{name}", data)
        for item in content.items:
            _add_item(archive, item)
    return buffer.getvalue()


def _description(content: Survey) -> bytes:
    value = {"format": 1, "target": content.target, "files": len(content.items), "perdure": _version()}
    return json.dumps(value, indent=1).encode()


def _add(archive: tarfile.TarFile, name: str, data: bytes, *, executable: bool = False) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), _TIME_S, 0o755 if executable else 0o644
    archive.addfile(info, io.BytesIO(data))


def _add_item(archive: tarfile.TarFile, item: Item) -> None:
    name = f"{PROJECT}/{item.name}"
    if item.link:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mtime = tarfile.SYMTYPE, item.link, _TIME_S
        archive.addfile(info)
        return
    try:
        data = item.path.read_bytes()
    except OSError as error:
        raise BundleError(f"{item.path} cannot be read: {error.strerror}", hint="check its permissions") from error
    _add(archive, name, data, executable=item.executable)


def _library() -> Iterator[tuple[str, bytes]]:
    """Perdure's own files, and what tells a session its version."""
    spec = importlib.util.find_spec("perdure")
    if spec is None or not spec.submodule_search_locations:
        raise BundleError(
            "Perdure's own source is not to be found", hint="install it as files: pip install perdure"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        found += [Path(folder, name) for name in names if not name.endswith((".pyc", ".tmp"))]
    for path in sorted(found, key=lambda path: path.relative_to(root).as_posix()):
        yield f"perdure/{path.relative_to(root).as_posix()}", path.read_bytes()
    head = f"Metadata-Version: 2.1\nName: perdure\nVersion: {_version()}\n"
    yield f"perdure-{_version()}.dist-info/METADATA", head.encode()


def _version() -> str:
    try:
        return version("perdure")
    except PackageNotFoundError:
        return "0"
