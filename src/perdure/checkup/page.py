"""A checkup as a table in a notebook."""

from __future__ import annotations

from html import escape

from perdure.checkup.checks import Check, Checkup, summary

# readable on a light and on a dark ground
_COLOURS = {"ok": "#2e9e5b", "note": "#7a8594", "warning": "#d98200", "failed": "#d9363e"}
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


def page(checkup: Checkup) -> str:
    """The table."""
    rows = "".join(_row(check) for check in checkup.checks)
    return (
        f'<div><table style="border-collapse:collapse"><tbody>{rows}</tbody></table>'
        f"<p>{escape(summary(checkup))}</p></div>"
    )


def _row(check: Check) -> str:
    colour = _COLOURS[check.state]
    fix = f'<br><span style="opacity:.75">fix: {escape(check.fix)}</span>' if check.fix else ""
    return (
        f'<tr><td style="{_CELL};color:{colour};font-weight:600">{check.state}</td>'
        f'<td style="{_CELL};white-space:nowrap">{escape(check.name)}</td>'
        f'<td style="{_CELL}">{escape(check.fact)}{fix}</td></tr>'
    )
