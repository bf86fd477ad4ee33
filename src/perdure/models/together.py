"""Several models in one export: one that fails does not cost the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from perdure.core.errors import CannotCarryError, ConfigError, CorruptError, MissingExtraError, PerdureError
from perdure.core.say import warn

_OF_ONE_MODEL = (CannotCarryError, ConfigError, CorruptError, MissingExtraError)
"""No room, or a folder that cannot be written to, is the same for all."""


@contextmanager
def put_off(errors: list[PerdureError]) -> Iterator[None]:
    """Note what is wrong with one model; the others come first."""
    try:
        yield
    except _OF_ONE_MODEL as error:
        errors.append(error)


def raise_first(errors: list[PerdureError]) -> None:
    """Raise the first error; the others are told."""
    for text in dict.fromkeys(str(error) for error in errors[1:]):
        if text != str(errors[0]):
            warn(text)
    if errors:
        raise errors[0]
