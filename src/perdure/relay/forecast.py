"""How a relay will go on: sessions, hours, the end, waits for the refresh. Pure: figures in, figures out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perdure.core.intervals import format_duration
from perdure.relay.records import WhenExhausted

WEEK_S = 7 * 86400.0
"""Kaggle counts accelerator hours by the week [3P, not tried]."""

SESSIONS_MOST = 10_000
"""A relay of more sessions is not forecast: its window is a mistake."""


@dataclass(frozen=True)
class Work:
    """What is still to be trained, and what sessions are like.

    Attributes:
        left_s: Seconds of training that are left, on the accelerator of the relay.
        window_s: Seconds of a session.
        overhead_s: Seconds from the start of a session to its first new step.
        margin_s: Seconds at the end of a window in which nothing is trained.
        between_s: Seconds from the end of a session to the start of the next.
        least_s: A session that could only be shorter is not started; the refresh is waited for.
        running_s: Seconds until the window of the session that runs now closes; None if none runs.
    """

    left_s: float
    window_s: float
    overhead_s: float = 0.0
    margin_s: float = 0.0
    between_s: float = 0.0
    least_s: float = 0.0
    running_s: float | None = None


@dataclass(frozen=True)
class Hours:
    """Accelerator hours, as the forecast counts with them.

    Attributes:
        left_s: Seconds that may be used before the refresh, those that the running session will use included.
        allowed_s: Seconds in each period after it.
        refresh_at_s: When the next period begins, seconds since 1970; None if nobody knows.
        period_s: Seconds from one refresh to the next.
    """

    left_s: float
    allowed_s: float
    refresh_at_s: float | None
    period_s: float = WEEK_S


@dataclass(frozen=True)
class Forecast:
    """What is to be expected.

    Attributes:
        sessions: Sessions from now on, the running one included.
        session_s: Seconds of all of them together, from now on.
        end_s: When the last one ends, seconds since 1970; None if it does not come to an end.
        waits: How often it waits for the refresh.
        waited_s: Seconds of these waits.
        trained_s: Seconds of the work that are done at the end.
        why: Why it does not come to an end, in a clause; empty if it does.
    """

    sessions: int
    session_s: float
    end_s: float | None
    waits: int = 0
    waited_s: float = 0.0
    trained_s: float = 0.0
    why: str = ""


def forecast(
    work: Work, now_s: float, hours: Hours | None = None, when_exhausted: WhenExhausted = "wait"
) -> Forecast:
    """Walk through the sessions that are to come.

    Sessions without an accelerator, between two periods, count for nothing: nobody knows how fast they are.

    Args:
        work: What is left.
        now_s: Seconds since 1970.
        hours: Hours of the accelerator; None where nothing is counted.
        when_exhausted: What the relay does when they are used up.
    """
    walk = _Walk(work, now_s, hours)
    if work.running_s is not None:
        walk.train(max(0.0, work.running_s), overhead_s=0.0)
    while walk.left_s > 0:
        if why := walk.obstacle():
            return walk.result(why)
        if walk.room_s() < walk.least_s:
            if when_exhausted == "stop":
                return walk.result("it stops when the hours are used up")
            walk.wait()
        else:
            walk.train(walk.room_s(), work.overhead_s)
    return walk.result("")


class _Walk:
    """Where the forecast has come to."""

    def __init__(self, work: Work, now_s: float, hours: Hours | None) -> None:
        self._work, self._now_s, self._hours = work, now_s, hours
        self.left_s = max(0.0, work.left_s)
        self._free_s = hours.left_s if hours else math.inf
        self._refresh_s = hours.refresh_at_s if hours else None
        self._sessions, self._session_s, self._end_s = 0, 0.0, now_s
        self._waits, self._waited_s = 0, 0.0
        # a session that trains for less than a second is none
        self.least_s = max(min(work.least_s, work.window_s), work.overhead_s + work.margin_s + 1.0)
        self._go_to(now_s)  # the refresh may be over already: then what is known is of the period before

    def room_s(self) -> float:
        """Seconds that a session may last which begins now."""
        return min(self._work.window_s, self._free_s)

    def obstacle(self) -> str:
        """Why no session will ever get further; empty if one will."""
        if self._work.window_s < self.least_s:
            return f"a window of {format_duration(self._work.window_s)} leaves no time to train"
        if self._sessions >= SESSIONS_MOST:
            return f"it is not done after {SESSIONS_MOST} sessions"
        if self._hours is None or self.room_s() >= self.least_s:
            return ""
        if self._refresh_s is None:
            return "the hours are used up, and nobody says when they refresh"
        if self._hours.allowed_s < self.least_s:
            return f"the {format_duration(self._hours.allowed_s)} of a whole period are too short for a session"
        return ""

    def train(self, room_s: float, overhead_s: float) -> None:
        """One session."""
        useful_s = max(0.0, room_s - self._work.margin_s - overhead_s)
        done = self.left_s <= useful_s
        lasts_s = overhead_s + self.left_s if done else room_s
        self.left_s = 0.0 if done else self.left_s - useful_s
        self._sessions += 1
        self._session_s += lasts_s
        self._free_s -= lasts_s
        self._go_to(self._now_s + lasts_s, used=True)
        self._end_s = self._now_s
        if not done:
            self._go_to(self._now_s + self._work.between_s)

    def wait(self) -> None:
        """Until the next period."""
        assert self._refresh_s is not None  # obstacle() was asked
        self._waits += 1
        self._waited_s += max(0.0, self._refresh_s - self._now_s)
        self._go_to(self._refresh_s)

    def _go_to(self, then_s: float, *, used: bool = False) -> None:
        """Let time go by; behind a refresh, only what was used since counts."""
        began_s, self._now_s = self._now_s, max(then_s, self._now_s)
        if self._hours is None or self._refresh_s is None or self._now_s < self._refresh_s:
            return
        periods = math.floor((self._now_s - self._refresh_s) / self._hours.period_s)
        newest_s = self._refresh_s + periods * self._hours.period_s
        used_s = self._now_s - max(newest_s, began_s) if used else 0.0
        self._refresh_s = newest_s + self._hours.period_s
        self._free_s = max(0.0, self._hours.allowed_s - used_s)

    def result(self, why: str) -> Forecast:
        return Forecast(
            sessions=self._sessions,
            session_s=self._session_s,
            end_s=None if why else self._end_s,
            waits=self._waits,
            waited_s=self._waited_s,
            trained_s=max(0.0, self._work.left_s) - self.left_s,
            why=why,
        )
