"""What Perdure tells the user while it works: one line each, on stderr, through the logger ``perdure``.

Programs that want the lines elsewhere configure that logger; stdout is never touched, it belongs to data.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("perdure")


class _Stderr(logging.Handler):
    """Writes to the present ``sys.stderr``, which notebooks and tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "perdure: warning: " if record.levelno >= logging.WARNING else "perdure: "
        try:
            print(prefix + record.getMessage(), file=sys.stderr, flush=True)
        except (OSError, ValueError):  # a closed or full stderr must not end a training
            self.handleError(record)


def say(text: str) -> None:
    """Tell the user a fact."""
    _ready()
    logger.info("%s", text)


def warn(text: str) -> None:
    """Tell the user something that may need a hand."""
    _ready()
    logger.warning("%s", text)


@contextmanager
def facts_hidden() -> Iterator[None]:
    """Within it, facts are not told; warnings are."""
    _ready()  # first: the level that is put back in the end must be one that was set
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _ready() -> None:
    if not logger.handlers:
        logger.addHandler(_Stderr())
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.propagate = False
