"""One session of a training, watched from outside through the files that it leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from perdure.core.errors import PlatformError
from perdure.core.paths import RunPaths
from perdure.core.runs import read_json
from perdure.platforms.local import LocalLimits, LocalSession, SessionEnd, SessionFolders, log_tail

SCRIPT = Path(__file__).with_name("digits.py")
RUN = "digits"


class Leg:
    """A session that runs the demo's script.

    Args:
        home: Folder of the training; the outputs of its earlier sessions are in there.
        number: Of the session, from 1.
        window_s: How long it may last; None for ever.
    """

    def __init__(self, home: Path, number: int, window_s: float | None = None) -> None:
        self.number = number
        self._finished = False
        self.window_s = window_s
        self.output = home / "outputs" / f"session-{number}"
        self._folders = SessionFolders(
            working=home / "working",
            inputs=home / "inputs",
            source=home / "outputs",
            kept=home / "logs" / f"session-{number}",
            output=self.output,
        )
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # two trainings side by side
        self.session = LocalSession(
            (sys.executable, str(SCRIPT)), self._folders, LocalLimits(window_s=window_s), one_thread
        )

    def facts(self) -> Mapping[str, Any]:
        """What the run says about itself now; empty until it begins."""
        return read_json(RunPaths(self._folders.working / "perdure" / RUN).session_json)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._finished:
            self.session.kill()
            self.session.finish()

    def finish(self) -> SessionEnd:
        """Keep its output, when it has ended; without this, leaving the ``with`` block kills it.

        Raises:
            PlatformError: The script failed by itself.
        """
        self._finished = True
        end = self.session.finish()
        if end.how == "failed":
            tail = "\n".join(log_tail(self._folders.log))
            raise PlatformError(
                f"session {self.number} of the demo failed:\n{tail}", hint=f"see {self._folders.log}"
            )
        return end


def run_below(output: Path) -> RunPaths:
    """The run in the output of a session."""
    return RunPaths(output / "perdure" / RUN)
