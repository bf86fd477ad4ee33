"""Reads safetensors files, and models that are split over several files with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from perdure.core.errors import CorruptError
from perdure.models.contents import Contents, damaged

_NO_CHECKSUMS = "safetensors has no checksums, so damage in the numbers shows only against a digest"
_SAFE = "the format can hold tensors and words only"


def read_safetensors(path: Path, trust: bool) -> Contents:
    """One safetensors file; its tensors are read one at a time.

    Raises:
        CorruptError: Its header is damaged, or it was cut short.
    """
    try:
        with safe_open(path, "pt") as file:
            facts = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise damaged(path, str(error)) from error
    facts = {name: value for name, value in facts.items() if len(value) <= 40}
    return Contents("weights in safetensors", _SAFE, _each(path), facts=facts, notes=(_NO_CHECKSUMS,))


def _each(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  it is no dict
                yield name, file.get_tensor(name)
    except (SafetensorError, RuntimeError, OSError) as error:
        raise damaged(path, str(error)) from error


def read_index(path: Path, trust: bool, read: Callable[[Path, bool], Contents]) -> Contents:
    """A model over several files, from its index.

    Args:
        path: ``*.index.json``.
        trust: As for the files.
        read: Reads one of them.

    Raises:
        CorruptError: A file or a tensor that the index names is not there, or is in another file.
    """
    index: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    shards = sorted(set(map(str, index.values())))
    if outside := [name for name in shards if Path(name).name != name]:
        raise damaged(path, f"it names a file outside of its folder: {outside[0]}")
    if not shards or any(name.endswith(".index.json") for name in shards):
        raise damaged(path, "it names no files with tensors")
    if missing := [name for name in shards if not (path.parent / name).is_file()]:
        raise CorruptError(
            f"{path} is not complete: {len(missing)} of {len(shards)} files are not there",
            path=path,
            problems=missing[:20],
            hint="copy or download them beside the index",
        )
    contents = {name: read(path.parent / name, trust) for name in shards}
    return Contents(
        f"a model in {len(shards)} files: {contents[shards[0]].what}",
        contents[shards[0]].safety,
        _all(path, index, contents),
        all(each.safe for each in contents.values()),
        notes=tuple(dict.fromkeys(note for each in contents.values() for note in each.notes)),
        files=tuple(path.parent / name for name in shards),
    )


def _all(path: Path, index: dict[str, str], contents: dict[str, Contents]) -> Iterator[tuple[str, Any]]:
    seen: dict[str, str] = {}
    for shard, each in contents.items():
        for name, value in each.tensors:
            seen[name] = shard
            yield name, value
    wrong = [f"{name} is not in {shard}" for name, shard in index.items() if seen.get(name) != shard]
    if wrong:
        raise CorruptError(f"{path} does not fit its files", path=path, problems=wrong[:20])
