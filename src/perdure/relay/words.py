"""Moments, hours and forecasts, in words for people. Every time of day has its zone."""

from __future__ import annotations

from datetime import datetime, tzinfo

from perdure.core.intervals import format_duration
from perdure.relay.forecast import Forecast

SOON_S = 600.0
TIMES = {1: "once", 2: "twice"}


def moment(at_s: float, now_s: float, zone: tzinfo | None = None) -> str:
    """A moment: ``"today 14:00 CET"``, ``"Tuesday 14:00 CET"``, ``"Tue 8 Dec 14:00 CET"``, with the year if it is
    another one.

    Args:
        at_s: Seconds since 1970 (UTC).
        now_s: The same, now.
        zone: Where the reader is; the zone of this machine if None.
    """
    at, now = (datetime.fromtimestamp(value, zone).astimezone(zone) for value in (at_s, now_s))
    days = (at.date() - now.date()).days
    clock = at.strftime("%H:%M") + f" {at.tzname()}"
    if abs(at_s - now_s) < SOON_S:
        clock = at.strftime("%H:%M:%S") + f" {at.tzname()}"
    if days == 0:
        return f"today {clock}"
    if 0 < days < 7:
        return f"{at:%A} {clock}"
    year = f" {at.year}" if at.year != now.year else ""
    return f"{at:%a} {at.day} {at:%b}{year} {clock}"


def hours(seconds: float) -> str:
    """Hours as quotas are counted: ``"38.5 h"``; minutes and seconds where it is less than one."""
    if seconds < 1:
        return "0 h"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else format_duration(float(round(seconds)))


def when(seconds: float) -> str:
    """How long until then: ``"3 d 4 h"``, ``"2 h 10 min"``."""
    if seconds < 1:
        return "0 s"
    if seconds < 86400:
        return format_duration(float(round(seconds)))
    days, rest = divmod(round(seconds / 3600), 24)
    return f"{days} d {rest} h" if rest else f"{days} d"


def in_a_line(text: str) -> str:
    """A reason that an error gave, with its hint, in one line."""
    return "; ".join(part.strip().removeprefix("hint: ") for part in text.splitlines() if part.strip())


def sentence(expected: Forecast, now_s: float, what: str = "", zone: tzinfo | None = None) -> str:
    """A forecast: ``4 sessions, 38.5 GPU hours, done about Tuesday 14:00 CET, waits for the refresh once``.

    Args:
        expected: The forecast.
        now_s: Seconds since 1970.
        what: Whose hours are counted, such as ``"GPU"``; empty where nothing is.
        zone: Where the reader is; the zone of this machine if None.
    """
    parts = [f"{expected.sessions} session{'' if expected.sessions == 1 else 's'}"] if expected.sessions else []
    if expected.session_s:
        parts.append(_spent(expected.session_s, what))
    if expected.end_s is not None:
        parts.append(f"done {_about(expected.end_s, now_s, zone)}")
    if expected.waits:
        parts.append(f"waits for the refresh {TIMES.get(expected.waits, f'{expected.waits} times')}")
    if expected.why:
        trained = f", {hours(expected.trained_s)} of the training done by then" if expected.trained_s else ""
        parts.append(f"not done then: {expected.why}{trained}")
    return ", ".join(parts)


def _spent(seconds: float, what: str) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} {what} hours".replace("  ", " ")
    return f"{format_duration(float(round(seconds)))} of {what}" if what else format_duration(float(round(seconds)))


def _about(end_s: float, now_s: float, zone: tzinfo | None) -> str:
    left_s = end_s - now_s
    if left_s < SOON_S:
        return f"in about {format_duration(float(round(max(left_s, 1.0))))}"
    return f"about {moment(end_s, now_s, zone)}"
