"""The words of a report on a model file, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.core.intervals import format_bytes
from perdure.models.contents import printable
from perdure.models.formats import Port
from perdure.models.report import ModelReport, Row

ROWS = 40
"""Tensors that are listed unless all are asked for."""

FACTS = 12
"""Plain values that are shown."""


def lines_of(report: ModelReport, rows: int | None = ROWS) -> list[str]:
    """A report as lines: what the file is, then a table of at most ``rows`` tensors; all if None."""
    facts = [(word, line) for word, line in _facts(report) if line]
    width = max(len(word) for word, _ in facts)
    lines = [str(report.path), *(f"  {word.ljust(width)}  {line}" for word, line in facts)]
    shown = report.tensors[:rows]
    if shown:
        lines += ["", *_table(shown)]
    if left := len(report.tensors) - len(shown):
        lines.append(f"... and {left} more")
    return [printable(line) for line in lines]


def _facts(report: ModelReport) -> Iterator[tuple[str, str]]:
    yield "what", report.what
    yield "size", f"{format_bytes(report.bytes)}, {report.digest[:23]}..."
    yield "card", report.card
    yield "safe", ("yes: " if report.safe else "no: ") + report.safety
    yield "holds", _counts(report)
    yield "numbers", _health(report)
    for row in report.tensors:
        if row.same_as:
            yield "tied", f"{row.name} = {row.same_as}"
    for port in report.signature.inputs:
        yield "input", _port(port)
    for port in report.signature.outputs:
        yield "output", _port(port)
    if report.facts:
        facts = [f"{name} {value}" for name, value in report.facts.items()]
        yield "facts", ", ".join([*facts[:FACTS], *(["..."] if len(facts) > FACTS else [])])
    for answer in report.forward:
        finite = "all finite" if answer.finite else "not all finite"
        yield "ran", f"{answer.name}: {answer.dtype} {list(answer.shape)}, {finite}"
    for note in report.notes:
        yield "note", note
    for problem in report.problems:
        yield "problem", problem


def _counts(report: ModelReport) -> str:
    if not report.tensors:
        return "no tensors that can be listed"
    noun = "tensor" if len(report.tensors) == 1 else "tensors"
    return f"{report.parameters:,} parameters; {len(report.tensors)} {noun}, {', '.join(report.dtypes)}"


def _health(report: ModelReport) -> str:
    nan, inf = sum(row.nan for row in report.tensors), sum(row.inf for row in report.tensors)
    if not report.tensors:
        return ""
    return "no NaN, no Inf" if not nan and not inf else f"{nan:,} NaN, {inf:,} Inf"


def _port(port: Port) -> str:
    return f"{port.name}: {port.dtype} [{', '.join(map(str, port.shape))}]"


def _table(rows: Sequence[Row]) -> list[str]:
    cells = [("tensor", "dtype", "shape", "values"), *((r.name, r.dtype, _shape(r), _values(r)) for r in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[3]]) for line in cells]


def _shape(row: Row) -> str:
    return "[" + ", ".join(map(str, row.shape)) + "]"


def _values(row: Row) -> str:
    bad = [f"{count:,} {word}" for count, word in ((row.nan, "NaN"), (row.inf, "Inf")) if count]
    return f"{row.values:,}" + (f" ({', '.join(bad)})" if bad else "")
