"""Where relays are kept on this machine; all their file names come from here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOME = "PERDURE_HOME"
"""Environment variable that names another folder."""


@dataclass(frozen=True)
class Home:
    """The folder in which this machine keeps its relays.

    Attributes:
        folder: ``PERDURE_HOME``, or the user's folder for data of programs.
    """

    folder: Path

    @property
    def database(self) -> Path:
        """The database of all relays; ``docs/reference/relay-database.md`` says what is in it."""
        return self.folder / "relays.sqlite"

    def relay(self, relay_id: str) -> Path:
        """The folder of a relay."""
        return self.folder / "relays" / relay_id

    def bundle(self, relay_id: str) -> Path:
        """The archive that every session of a relay gets."""
        return self.relay(relay_id) / "bundle.tar.xz"

    def session(self, relay_id: str, number: int) -> Path:
        """The folder for the small files of a session."""
        return self.relay(relay_id) / "sessions" / str(number)


def find_home(environment: Mapping[str, str] = os.environ) -> Home:
    """Where relays are kept; nothing is made.

    Args:
        environment: Environment variables.
    """
    named = environment.get(HOME)
    if named:
        return Home(Path(named).expanduser().absolute())
    import platformdirs

    return Home(platformdirs.user_data_path("perdure"))
