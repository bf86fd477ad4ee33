"""How a session came out: from the exit code of its script, and from what its runs say."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.core.errors import EXIT_PAUSED
from perdure.platforms.report import RunReport, SessionReport


@dataclass(frozen=True)
class Ending:
    """The end of a session, for the marker.

    Attributes:
        status: As in the marker.
        reason: Why, in a sentence.
    """

    status: str
    reason: str

    @property
    def exit_code(self) -> int:
        """What the session's process ends with. Kaggle marks a version as failed for anything but 0."""
        return 1 if self.status == "failed" else 0


def judge_end(
    code: int, report: SessionReport | None, *, window_closed: bool, unfinished: Sequence[str] = ()
) -> Ending:
    """What the session came to.

    Args:
        code: The script's exit code; 128 and more for a signal.
        report: How its runs stand; None if it does not use Perdure.
        window_closed: Whether its window was about to close when it ended.
        unfinished: Runs that it was to go on with, and that were not at their end.
    """
    runs = report.runs if report else ()
    if code in (os.EX_OK, EXIT_PAUSED) and report is not None and report.status == "paused":
        return Ending("paused", report.reason)
    if code == os.EX_OK:
        return _ended_well(runs, unfinished)
    if code == EXIT_PAUSED:
        return Ending("paused", "the script says that it is paused")
    cut_off = code in (128 + signal.SIGTERM, 128 + signal.SIGKILL) and window_closed
    if cut_off and any(run.checkpoint for run in runs):
        return Ending("paused", "the script was ended when its window closed; it goes on from its last checkpoint")
    if cut_off:
        return Ending("failed", "the script was ended when its window closed, and has saved nothing to go on from")
    failed = next((run for run in runs if run.status == "failed" and run.reason), None)
    why = f": {failed.reason}" if failed else ""
    return Ending("failed", f"the script {_how(code)}{why}")


def _ended_well(runs: tuple[RunReport, ...], unfinished: Sequence[str]) -> Ending:
    opened = {run.name for run in runs}
    unseen = next((name for name in unfinished if name not in opened), None)
    if unseen is not None:  # it may have caught an error of its own, and said nothing of it
        return Ending("failed", f"the script ended without an error, and did not go on with its run {unseen!r}")
    left = next((run for run in runs if run.status != "finished"), None)
    if left is None:
        return Ending("finished", "" if runs else "the script has ended; it does not use Perdure")
    why = f": {left.reason}" if left.reason else ""
    return Ending("failed", f"the script ended without an error, and its run {left.name!r} is {left.status}{why}")


def _how(code: int) -> str:
    if code <= 128:
        return f"failed with exit code {code}"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"failed with exit code {code}"
    memory = " (out of memory, perhaps)" if code == 128 + signal.SIGKILL else ""
    return f"was killed by {name}{memory}"
