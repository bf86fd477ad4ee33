"""The page for people beside model files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.core.intervals import format_bytes

PAGE = "README.md"
MARK = "<!-- Written by Perdure from model-card.json; it is replaced at the next export. -->"


def may_replace(page: Path) -> bool:
    """Whether a page is absent or one that we wrote; somebody's own README is never touched."""
    try:
        return page.read_bytes().startswith(MARK.encode())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def page_of(models: Sequence[Mapping[str, Any]]) -> str:
    """The page of the models of a card, newest first."""
    return "\n".join([MARK, *(line for model in reversed(models) for line in _section(model))])


def _section(model: Mapping[str, Any]) -> list[str]:
    lines = [f"# {model['name']}", "", _origin(model), ""]
    if model.get("metrics"):
        lines += ["| metric | value |", "|---|---|"]
        lines += [f"| {_cell(name)} | {_number(value)} |" for name, value in model["metrics"].items()] + [""]
    for word in ("inputs", "outputs"):
        ports = model.get("signature", {}).get(word) or []
        lines += [f"- {word[:-1]} `{each['name']}`: {each['dtype']} {_shape(each['shape'])}" for each in ports]
    lines += ["", "| file | size | proved |", "|---|---|---|"]
    lines += [f"| `{f['file']}` | {format_bytes(f['bytes'])} | {_proof(f)} |" for f in model["files"]] + [""]
    for file in model["files"]:
        if file.get("load"):
            lines += [f"`{file['file']}`:", "```python", *file["load"], "```", ""]
    lines += [f"Note on `{file['file']}`: {note}" for file in model["files"] for note in file.get("notes", [])]
    lines += ["Digests, libraries and all figures are in `model-card.json`.", ""]
    return lines


def _origin(model: Mapping[str, Any]) -> str:
    words = f"Run `{model['run']}`" if model.get("run") else "A model"
    if model.get("step") is not None:
        words += f" at step {model['step']}"
    if model.get("position", {}).get("epoch") is not None:
        words += f", epoch {model['position']['epoch']}"
    if model.get("weights") not in (None, "live"):
        words += f"; the weights are the average `{model['weights']}`"
    libraries = ", ".join(f"{name} {version}" for name, version in model.get("libraries", {}).items())
    hardware = ", ".join(str(value) for value in model.get("hardware", {}).values() if value)
    words += f". Made with {libraries}" if libraries else ""
    return words + (f" on {hardware}." if hardware else ".")


def _proof(file: Mapping[str, Any]) -> str:
    parity = file.get("parity")
    if not parity:
        return "not proved"
    words = [f"{parity['loader']}"]
    if parity["tensors"]:
        words.append(f"{parity['tensors']} tensors bit for bit")
    if parity["outputs"]:
        largest = max(each["largest"] for each in parity["outputs"])
        words.append(f"outputs differ by at most {largest:.2g}" if largest else "outputs equal")
    if parity["note"]:
        words.append(parity["note"])
    return "; ".join(words)


def _shape(shape: Sequence[Any]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
