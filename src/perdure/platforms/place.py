"""Where a session runs, as far as it can be known from inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perdure.core.errors import EXIT_PAUSED
from perdure.core.limits import Limits


@dataclass(frozen=True)
class Place:
    """One platform, in the mode the present session runs in.

    Attributes:
        platform: ``"local"``, ``"kaggle"``, ``"colab"``.
        mode: How it runs there; ``"batch"`` sessions end with the script, ``"interactive"`` ones do not.
        root: Default folder of runs.
        inputs: Folders in which output of earlier sessions may be mounted, read-only.
        limits: What the platform allows.
        survives: One sentence: what of the output folder outlives the session.
        paused_exit_code: Exit code of a paused run (a Kaggle batch run marks anything but 0 as failed).
        output: Folder that the disk limit is for; None if it is for the folder of runs.
        gpu_promised: The platform says that there is a GPU; the reason in words, empty if it does not.
    """

    platform: str
    mode: Literal["batch", "interactive", "process"]
    root: Path
    inputs: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)
    survives: str = ""
    paused_exit_code: int = EXIT_PAUSED
    output: Path | None = None
    gpu_promised: str = ""
