"""In a notebook that a platform runs as a batch, a paused run must keep the later cells from running."""

from __future__ import annotations

import sys


def skip_later_cells(reason: str) -> None:
    """From the next cell on, each cell only says that it was skipped. Nothing happens outside a notebook.

    The source of a cell passes IPython's input transformers before it is run; that is the documented place to
    change it (ipython.readthedocs.io, "Custom input transformation").

    Args:
        reason: Why, for the line that each skipped cell prints.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return
    line = f"print({f'perdure: cell skipped: {reason}'!r})\n"
    shell.input_transformers_cleanup.append(lambda lines: [line] if any(map(str.strip, lines)) else lines)
