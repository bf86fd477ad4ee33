"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.core.settings import Settings
from perdure.platforms.detect import detect

Root = Annotated[
    Path | None,
    typer.Option(help="Folder of runs. Default: where a script would put them here.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help="Names of runs; all if none.", show_default=False)
]


def folder_of_runs(root: Path | None) -> Path:
    """Where runs are: the flag, else the environment, else the platform's output folder. The same as ``Run``'s."""
    return root or Settings.from_environment().root or detect().root
