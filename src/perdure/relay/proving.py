"""Proof that what was brought is what was written: checkpoints by their manifests, model files by their card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perdure.checkpoint.manifest import MANIFEST
from perdure.checkpoint.verify import verify
from perdure.core.digests import digest
from perdure.core.errors import NoCheckpointError
from perdure.core.runs import read_json
from perdure.relay.listing import CARD


def checkpoint_problems(folder: Path) -> list[str]:
    """What is wrong with a checkpoint, every byte of it read; one line each."""
    try:
        return list(verify(folder).problems)
    except NoCheckpointError as error:
        return [error.what]


def suspects(run_folder: Path, checkpoint: str, problems: Iterable[str]) -> list[Path]:
    """The files of a checkpoint that are worth bringing again: its manifest, and the tensor files that are named.

    Args:
        run_folder: Folder of the run.
        checkpoint: Name of the checkpoint.
        problems: As ``checkpoint_problems`` gives them.
    """
    text, tensors = "\n".join(problems), run_folder / "tensors"
    named = [path for path in tensors.iterdir() if path.name in text] if tensors.is_dir() else []
    return [run_folder / "checkpoints" / checkpoint / MANIFEST, *named]


def card_problems(root: Path, cards: Iterable[str]) -> dict[str, str]:
    """What is wrong with model files, by their name below a folder.

    Args:
        root: The folder.
        cards: Names of the cards below it, each ``.../model-card.json``.
    """
    found: dict[str, str] = {}
    for card in cards:
        above = card.removesuffix(CARD)
        for name, expected in digests_of(root / card):
            problem = _problem(root / above / name, expected)
            if problem:
                found[above + name] = f"{above}{name} {problem}"
    return found


def digests_of(card: Path) -> Iterator[tuple[str, str]]:
    """Name and digest of every file that a card describes; nothing where it is no card of ours."""
    value, _ = read_json(card)
    for model in _objects(value.get("models")):
        for file in _objects(model.get("files")):
            for each in (file, *_objects(file.get("companions"))):
                name, expected = each.get("file"), each.get("digest")
                if (
                    isinstance(name, str)
                    and isinstance(expected, str)
                    and "/" not in name
                    and name not in ("..", ".")
                ):
                    yield name, expected


def _problem(path: Path, expected: str) -> str:
    if not path.exists():
        return "is named by the card and is not there"
    return "" if digest(path) == expected else "does not have the digest that its card names"


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    return (each for each in (value if isinstance(value, list) else ()) if isinstance(each, Mapping))
