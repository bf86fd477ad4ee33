"""Bringing small files of a session's output, one by one whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from perdure.core.errors import NotThereError, TransientPlatformError
from perdure.platforms.protocol import Handle, Platform, Progress
from perdure.relay.listing import Listing


@dataclass
class Bringer:
    """Brings files of one session's output to a folder.

    Attributes:
        platform: Where it ran.
        handle: The session.
        listing: What its output holds.
        folder: Where the files go, under their names.
        give_up: Whether a file that still fails counts as not there, instead of as an error.
        brought: Names of the files that lie in the folder now.
    """

    platform: Platform
    handle: Handle
    listing: Listing
    folder: Path
    give_up: bool = False
    brought: list[str] = field(default_factory=list)

    def bring(self, names: Iterable[str], progress: Progress | None = None) -> None:
        """Bring those that are listed; what the platform lists and does not give is left out.

        Args:
            names: Names in the output.
            progress: Called with bytes that are there, and bytes in all, of those that were missing.

        Raises:
            TransientPlatformError, CredentialsError: As the platform says.
            OSError: A file could not be written.
        """
        here = set(self.brought)
        wanted = [name for name in dict.fromkeys(names) if name in self.listing and name not in here]
        missing = [name for name in wanted if not self.is_here(name)]
        if missing:
            self._fetch(missing, progress)
        self.brought += [name for name in wanted if self.is_here(name)]

    def is_here(self, name: str) -> bool:
        """Whether a file lies there with the size that the listing names; one of another size is removed."""
        path, size_bytes = self.path(name), self.listing.sizes[name]
        if not path.is_file():
            return False
        if size_bytes in (None, path.stat().st_size):
            return True
        path.unlink()
        return False

    def forget(self, name: str) -> None:
        """Remove a file that is not what was written, so that it is brought again."""
        self.path(name).unlink(missing_ok=True)
        if name in self.brought:
            self.brought.remove(name)

    def path(self, name: str) -> Path:
        """Where a file lies, or would lie."""
        return self.folder / name

    def _fetch(self, names: list[str], progress: Progress | None = None) -> None:
        try:
            self.platform.fetch(self.handle, names, self.folder, progress)
        except (NotThereError, TransientPlatformError) as error:
            if len(names) > 1:  # one of them; the others are worth a try
                for name in names:
                    self._fetch([name])
            elif not isinstance(error, NotThereError) and not self.give_up:
                raise
