"""What was proved already: so that an export that was killed goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash

from perdure.core.digests import digest, size
from perdure.core.errors import PerdureError
from perdure.core.files import write_json
from perdure.core.say import warn
from perdure.models._proof_child import octets
from perdure.models.formats import Difference, Exported, Parity, Source
from perdure.models.live import Batch, live_of
from perdure.models.proof import expected_of
from perdure.models.workplace import alone_in

RECORDS = ".proofs.json"
"""Beside the files: for each, of which model it was made, its digest, and what the proof found."""

_VERSION = 1


class Records:
    """The records of a folder. A file of them that cannot be read only means that files are made again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS
        self._files = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            warn(f"{self._path} cannot be read, so model files that were proved before are made again")
            return {}
        files = found.get("files") if isinstance(found, dict) and found.get("version") == _VERSION else None
        return files if isinstance(files, dict) else {}

    def note(self, exported: Exported, source: str) -> None:
        """Keep that a file was proved, and of which model it is."""
        entry = {"source": source, **dataclasses.asdict(exported)}
        for name in ("path", "companions", "reused"):
            del entry[name]
        entry["companions"] = [path.name for path in exported.companions]
        with alone_in(self._path.parent):
            self._files = {**self._read(), exported.path.name: entry}
            write_json(self._path, {"version": _VERSION, "files": self._files})

    def find(self, path: Path, source: str) -> Exported | None:
        """The file, if it is there, was made of this very model, and has the bytes that were proved."""
        entry = self._files.get(path.name)
        if entry is None or entry.get("source") != source:
            return None
        try:
            found = _restored(path, entry)
            same = found.bytes == sum(map(size, (path, *found.companions)))
            told = found.digests or {path.name: found.digest}  # a folder has one for all of it
            whole = same and all(digest(path.with_name(name)) == value for name, value in told.items())
        except (OSError, KeyError, TypeError, ValueError):
            return None
        return found if whole else None


def _restored(path: Path, entry: Mapping[str, Any]) -> Exported:
    parity = entry["parity"]
    if parity is not None:
        outputs = tuple(Difference(**each) for each in parity["outputs"])
        parity = Parity(**{**parity, "outputs": outputs, "batches": tuple(parity["batches"])})
    return Exported(
        format=entry["format"],
        path=path,
        bytes=entry["bytes"],
        digest=entry["digest"],
        parity=parity,
        companions=tuple(path.with_name(name) for name in entry["companions"]),
        notes=tuple(entry["notes"]),
        digests=entry["digests"],
        reused=True,
    )


def source_digest(source: Source) -> str:
    """A digest of everything that a file is made of: weights, code, example, outputs, versions."""
    hasher = xxhash.xxh3_128()
    hasher.update(json.dumps([_VERSION, torch.__version__, source.framework, source.dynamic]).encode())
    hasher.update(json.dumps(sorted(expected_of(source).items())).encode())
    if source.module is not None:
        hasher.update(repr(source.module).encode())
        for kind in sorted({type(module) for module in source.module.modules()}, key=repr):
            code = getattr(kind.forward, "__code__", None)
            hasher.update(repr((code.co_code, code.co_names, _plain_constants(code))).encode() if code else b"")
    if source.module is not None and source.example is not None:
        for batch in _batches(source):
            for name, tensor in batch.outputs.items():
                hasher.update(name.encode())
                hasher.update(octets(tensor))
    _add_values(hasher, source.classic)
    return hasher.hexdigest()


def _batches(source: Source) -> Sequence[Batch]:
    try:
        return live_of(source).batches
    except PerdureError:  # said where the files are proved
        return ()


def _plain_constants(code: Any) -> list[str]:
    """Constants of a function; of functions inside it only their code, as their place in memory changes."""
    return [repr(each.co_code if hasattr(each, "co_code") else each) for each in code.co_consts]


def _add_values(hasher: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        hasher.update(octets(value.cpu()))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            hasher.update(repr(key).encode())
            _add_values(hasher, each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _add_values(hasher, each)
    else:
        hasher.update(repr(value).encode())
