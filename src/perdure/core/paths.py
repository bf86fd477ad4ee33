"""Names of runs and of the files in a run folder; all file names come from here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perdure.core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str) -> str:
    """The name of a run, if it can be a folder on every file system and a slug on every platform.

    Raises:
        ConfigError: It cannot; the hint proposes one that can.
    """
    if isinstance(name, str) and _NAME.fullmatch(name) and not name.endswith("."):
        return name
    mended = re.sub(r"[^A-Za-z0-9._-]+", "-", str(name)).strip("-.")[:100] or "run"
    raise ConfigError(
        f"the name of a run may hold letters, digits, '.', '_' and '-' only, got {name!r}",
        hint=f"try {mended!r}",
    )


@dataclass(frozen=True)
class RunPaths:
    """Where the files of one run are.

    Attributes:
        folder: The folder of the run, ``<root>/<name>``.
    """

    folder: Path

    @property
    def run_json(self) -> Path:
        """What the run is: format version, id, name, created, code digest, settings."""
        return self.folder / "run.json"

    @property
    def session_json(self) -> Path:
        """What the newest session is doing; replaced atomically."""
        return self.folder / "session.json"

    @property
    def events(self) -> Path:
        """Metrics and events, a JSON document a line."""
        return self.folder / "events.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the process that writes."""
        return self.folder / "lock"

    @property
    def checkpoints(self) -> Path:
        """Folder of committed checkpoints, one folder each."""
        return self.folder / "checkpoints"

    @property
    def tensors(self) -> Path:
        """Folder of the tensor files that the checkpoints share."""
        return self.folder / "tensors"

    @property
    def quarantine(self) -> Path:
        """Folder of checkpoints that did not verify."""
        return self.folder / "quarantine"
