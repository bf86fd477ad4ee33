"""Where a run stands, for others to read: ``session.json`` and the session's report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from perdure.core.limits import Window
from perdure.core.paths import RunPaths
from perdure.training.journal import Journal
from perdure.training.pace import Pace
from perdure.training.schedule import SaveSchedule
from perdure.training.session import Session
from perdure.training.stop import StopFlag


class StatusBoard:
    """Writes the status of one run, and knows the limits it runs under.

    Attributes:
        name: The run's.
        run_id: The run's, once it is open.
        window: The session's.
        margin_s: Time that the platform needs after the script has ended.
    """

    def __init__(
        self,
        name: str,
        *,
        paths: RunPaths,
        session: Session,
        window: Window,
        margin_s: float,
        schedule: SaveSchedule,
        pace: Pace,
        journal: Journal,
    ) -> None:
        self.name = name
        self.run_id = ""
        self.window = window
        self.margin_s = margin_s
        self._paths = paths
        self._session = session
        self._schedule = schedule
        self._pace = pace
        self._journal = journal
        ago_s = session.clock.monotonic() - session.started_s
        self._started = datetime.fromtimestamp(session.clock.time() - ago_s, UTC).isoformat(timespec="seconds")

    @property
    def stop_flag(self) -> StopFlag:
        """Whether the session was asked to stop."""
        return self._session.stop

    @property
    def paused_exit_code(self) -> int:
        """Exit code of a paused run on this platform."""
        return self._session.place.paused_exit_code

    @property
    def mode(self) -> str:
        """How the session runs."""
        return self._session.place.mode

    def write(self, status: str, reason: str, *, seen: Mapping[str, Any], **where: Any) -> None:
        """Replace ``session.json``, and the session's report where one was asked for.

        Args:
            status: In one word.
            reason: Why, in words.
            seen: What was seen of cards, loop and verdicts.
            where: Where the run stands.
        """
        limited = math.isfinite(self.window.length_s)
        self._journal.status(
            run=self.name,
            run_id=self.run_id,
            status=status,
            reason=reason,
            **where,
            platform=self._session.place.platform,
            mode=self._session.place.mode,
            started=self._started,
            window_s=self.window.length_s if limited else None,
            left_s=round(self.window.left_s, 1) if limited else None,
            speeds={
                "steps_per_s": self._pace.steps_per_s,
                "save_s": self._pace.last_save_s,
                "save_bytes": self._pace.state_bytes,
                "save_every": str(self._schedule),
            },
            **seen,
        )
        self._session.record(
            {
                "name": self.name,
                "folder": str(self._paths.folder),
                "status": status,
                "reason": reason,
                **where,
                "updated": self._session.clock.time(),
            }
        )
