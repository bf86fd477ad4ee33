"""A checkup as a table in a notebook."""

from __future__ import annotations

from html import escape

from perdure.checkup.checks import Check, Checkup, summary, with_remedies

# readable on a light and on a dark ground
_COLOURS = {"ok": "#2e9e5b", "note": "#7a8594", "warning": "#d98200", "failed": "#d9363e"}
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


def page(checkup: Checkup) -> str:
    """The table."""
    rows = "".join(_row(check, remedy) for check, remedy in with_remedies(checkup))
    return (
        f'<div><table style="border-collapse:collapse"><tbody>{rows}</tbody></table>'
        f"<p>{escape(summary(checkup))}</p></div>"
    )


def _row(check: Check, remedy: str) -> str:
    colour = _COLOURS[check.state]
    below = f'<br><span style="opacity:.75">{escape(remedy)}</span>' if remedy else ""
    return (
        f'<tr><td style="{_CELL};color:{colour};font-weight:600">{check.state}</td>'
        f'<td style="{_CELL};white-space:nowrap">{escape(check.name)}</td>'
        f'<td style="{_CELL}">{escape(check.fact)}{below}</td></tr>'
    )
