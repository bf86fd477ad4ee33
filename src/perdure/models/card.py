"""The card beside model files: where they come from, what they are, how to load them; as JSON and as a page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from perdure.core.digests import digest, size
from perdure.core.files import write_atomic, write_json
from perdure.core.say import warn
from perdure.models.formats import Exported, Facts, Parity, Signature
from perdure.models.loading import load_lines
from perdure.models.page import PAGE, may_replace, page_of
from perdure.models.workplace import alone_in

CARD = "model-card.json"
CARD_VERSION = 1
OTHER_PAGE = "model-card.md"
"""Name of the page where there is a ``README.md`` that we did not write."""


@dataclass(frozen=True)
class Entry:
    """What a card says of one file.

    Attributes:
        model: The entry of the model that the file is of: run, step, metrics, signature ...
        file: The entry of the file: format, bytes, digest, parity.
    """

    model: Mapping[str, Any]
    file: Mapping[str, Any]


def write_card(folder: Path, exported: Sequence[Exported], facts: Facts, signature: Signature | None) -> Path:
    """Describe finished files in ``model-card.json`` and in a page for people beside them.

    Models that an older card describes stay in it while their files are there. A ``README.md`` that Perdure did not
    write is left alone; the page is then ``model-card.md``.

    Args:
        folder: Where the files lie.
        exported: Files of one model.
        facts: What is known of its training.
        signature: Its inputs and outputs; None if it was never run.

    Returns:
        The path of the card.

    Raises:
        OSError: It could not be written; an older card is untouched.
    """
    model = _model(exported, facts, signature or Signature())
    with alone_in(folder):
        older = [kept for each in _older(folder) if (kept := _kept(each, folder, model))]
        models = sorted([*older, model], key=lambda each: str(each.get("created")))
        card = {"format_version": CARD_VERSION, "written_by": f"perdure {_version()}", "models": models}
        write_json(folder / CARD, _finite(card))
        page = folder / PAGE
        page = page if may_replace(page) else folder / OTHER_PAGE
        write_atomic(page, page_of(models).encode())
    return folder / CARD


def read_card(folder: Path) -> dict[str, Any] | None:
    """The card in a folder; None if there is none, or none that can be understood."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn(f"{folder / CARD} cannot be read, so it is not believed: {error}")
        return None
    models = card.get("models") if isinstance(card, dict) else None
    return card if isinstance(models, list) and all(_is_model(each) for each in models) else None


def find_entry(path: Path) -> Entry | None:
    """What the card beside a file says of it; None if there is no card or it does not know the file."""
    card = read_card(path.absolute().parent)
    for model in card["models"] if card else []:
        for file in model["files"]:
            if path.name == file.get("file"):
                return Entry(model, file)
    return None


def _is_model(value: Any) -> bool:
    files = value.get("files") if isinstance(value, dict) else None
    return isinstance(files, list) and all(isinstance(each, dict) for each in files)


def _older(folder: Path) -> list[dict[str, Any]]:
    card = read_card(folder)
    return list(card["models"]) if card else []


def _kept(older: dict[str, Any], folder: Path, new: dict[str, Any]) -> dict[str, Any] | None:
    """The entry of an older model without files that are gone or described anew; None if none is left."""
    described = {file["file"] for file in new["files"]}
    files = [each for each in older["files"] if each.get("file") not in described]
    files = [each for each in files if (folder / str(each.get("file"))).exists()]
    return {**older, "files": files} if files else None


def _model(exported: Sequence[Exported], facts: Facts, signature: Signature) -> dict[str, Any]:
    return {
        "name": _stem(exported),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": facts.run,
        "step": facts.step,
        "position": {"epoch": facts.epoch, "batch": facts.batch},
        "weights": facts.weights,
        "metrics": dict(facts.metrics),
        "libraries": dict(facts.libraries),
        "hardware": dict(facts.hardware),
        "signature": asdict(signature),
        "files": [_file(each, signature) for each in exported],
    }


def _stem(exported: Sequence[Exported]) -> str:
    names = [each.path.stem for each in exported]
    return min(names, key=len) if names else ""


def _file(exported: Exported, signature: Signature) -> dict[str, Any]:
    return {
        "file": exported.path.name,
        "format": exported.format,
        "bytes": exported.bytes,
        "digest": exported.digest,
        "companions": [
            {"file": each.name, "bytes": size(each), "digest": exported.digests.get(each.name) or digest(each)}
            for each in exported.companions
        ],
        "parity": _parity(exported.parity),
        "notes": list(exported.notes),
        "load": load_lines(exported.format, exported.path.name, signature),
    }


def _parity(parity: Parity | None) -> dict[str, Any] | None:
    return None if parity is None else asdict(parity)


def _finite(value: Any) -> Any:
    """JSON has no word for numbers that are none: they go as ``"nan"``, ``"inf"``."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def _version() -> str:
    try:
        return version("perdure")
    except PackageNotFoundError:  # used from a source folder that is not installed
        return "of unknown version"
