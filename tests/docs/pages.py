"""The pages of the project, taken apart."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, its line, its language, its text without the indent."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def benchmark(name: str) -> ModuleType:
    """A module of the benchmarks, which import one another as scripts of one folder do."""
    folder = str(REPOSITORY / "benchmarks")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def blocks(language: str) -> list[Block]:
    """All blocks of a language."""
    return [block for page in PAGES for block in _blocks(page) if block.language == language]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        body = re.sub(f"^{match.group(1)}", "", match.group(3), flags=re.MULTILINE)
        yield Block(page, text.count("\n", 0, match.start()) + 1, match.group(2), body)


def links(page: Path) -> list[str]:
    """Where a page leads to, outside of its blocks."""
    return _LINK.findall(_BLOCK.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors that its headings make, as GitHub names them."""
    heads = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def sides(diff: str) -> tuple[str, str]:
    """The text before and after a diff."""
    lines = diff.splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    after = [line[1:] for line in lines if not line.startswith("-")]
    return "\n".join(before) + "\n", "\n".join(after) + "\n"


def commands(console: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block (lines that begin with ``$``), each with the lines that it shows."""
    found: list[tuple[str, list[str]]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


_NUMBER = r"[\d.,]+"
_UNIT = r"(?:ms|s|min|h|B|kB|MB|GB)"
_LOOSE = re.compile(
    rf"(?P<measure>{_NUMBER} {_UNIT}(?: \d\d (?:s|min))?\b)|(?P<number>\d[\d.,]*)|(?P<any>\s*\.\.\.\s*)|(?P<space>\s+)"
)
_MEANS = {
    "measure": rf"{_NUMBER} {_UNIT}(?: \d\d (?:s|min))?",
    "number": _NUMBER,
    "any": ".*",
    "space": r"\s+",
}


def shown(expected: list[str], output: str) -> bool:
    """Whether the output is these lines: any number for a number, any measure for one, anything for ``...``."""
    text, pattern, end = "\n".join(expected).strip(), "", 0
    for match in _LOOSE.finditer(text):
        pattern += re.escape(text[end : match.start()]) + _MEANS[str(match.lastgroup)]
        end = match.end()
    return re.fullmatch(pattern + re.escape(text[end:]), output.strip(), re.DOTALL) is not None
