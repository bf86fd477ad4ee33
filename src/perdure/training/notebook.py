"""In a notebook that a platform runs as a batch, a paused run must keep the later cells from running."""

from __future__ import annotations

import sys
from typing import Any


def skip_later_cells(reason: str) -> None:
    """From the next cell on, each cell only says that it was skipped. Nothing happens outside a notebook.

    The source of a cell passes IPython's input transformers before it is run; that is the documented place to
    change it (ipython.readthedocs.io, "Custom input transformation").

    Args:
        reason: Why, for the line that each skipped cell prints.
    """
    shell = _shell()
    if shell is None:
        return
    line = f"print({f'perdure: cell skipped: {reason}'!r})\n"
    shell.input_transformers_cleanup.append(lambda lines: [line] if any(map(str.strip, lines)) else lines)


def cell_number() -> int | None:
    """Number of the cell that is being run; None outside a notebook."""
    shell = _shell()
    return None if shell is None else int(shell.execution_count)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
