"""How commands speak: data on stdout, everything else on stderr, readable without colour and in a pipe."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from perdure.core.intervals import format_duration

STYLES = {
    "finished": "green",
    "running": "cyan",
    "paused": "yellow",
    "failed": "red",
    "killed": "red",
    "damaged": "red",
    "ok": "green",
    "identical": "green",
    "active": "cyan",
    "waiting": "yellow",
    "needs-you": "red",
}
"""Colours of words of state; the words say it all without them. Rich drops them in a pipe and under NO_COLOR."""


_PIECE_LEAST = 20
"""A column that leaves less room than so many letters is not kept where a line is broken."""


def say(line: str, *, styles: bool = True) -> None:
    """One line of data for people, on stdout, never wrapped."""
    Console(highlight=False, soft_wrap=True).print(styled(line) if styles else Text(line))


def styled(line: str) -> Text:
    """A line with its words of state in their colours."""
    text = Text(line)
    for word, style in STYLES.items():
        text.highlight_regex(rf"\b{word}\b", style)
    return text


def say_fitted(line: str) -> None:
    """The same; in a terminal that is narrower, broken between words, the rest below the column it belongs to."""
    for part in fitted(line, Console().width) if sys.stdout.isatty() else (line,):
        say(part)


def fitted(line: str, width: int) -> list[str]:
    """A line in pieces that fit; what is never broken is a word, so that paths and addresses can be copied."""
    if len(line) <= width or " " not in line.strip().rpartition("  ")[2].strip():
        return [line]
    column = max((found.end() for found in re.finditer(r"(?:^|\S) {2,}(?=\S)", line)), default=2)
    column = column if column <= width - _PIECE_LEAST else min(12, width // 4)
    pieces = textwrap.wrap(
        line, width, subsequent_indent=" " * column, break_long_words=False, break_on_hyphens=False
    )
    return pieces or [line]


def note(line: str) -> None:
    """One line beside the data, on stderr, behind what was said so far."""
    sys.stdout.flush()
    print(line, file=sys.stderr)


def say_json(value: Any) -> None:
    """One JSON document, on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def complain(what: str, hint: str = "") -> None:
    """An error for people, on stderr: what happened and where, then what to do next."""
    sys.stdout.flush()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), what))
    if hint:
        console.print(Text.assemble(("hint: ", "bold cyan"), hint))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces between them; the last one is ragged."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]


def ago(iso: str | None, now: datetime | None = None) -> str:
    """How long ago an ISO instant was, for people; empty if it is no instant."""
    try:
        then = datetime.fromisoformat(iso or "")
    except ValueError:
        return ""
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if seconds < 1:
        return "just now"
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.0f} d ago"
    return f"{format_duration(float(round(seconds)))} ago"
