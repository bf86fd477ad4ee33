"""Whether there is room for a session now, and what happens when there is none. Pure."""

from __future__ import annotations

from perdure.platforms.protocol import Pace, Quota
from perdure.relay.actions import Action, AskQuota, Close, Intend, Rest, Seen, Terms
from perdure.relay.records import Relay
from perdure.relay.words import hours, moment

LEAST_S = 1200.0
"""A session with an accelerator that could only be shorter is not worth its beginning."""

_BUSY_MOST_S = 10.0
"""A driver that finds another at work looks again sooner than that, whatever the pace."""

SOURCES_TRIES = 4
"""How often a session is submitted whose inputs the platform does not accept: they may be too fresh to be seen."""

_FINAL = ("request", "accelerator", "source-size")


def least_s(window_s: float) -> float:
    """The shortest session that is worth its beginning.

    Args:
        window_s: The window that the user wants.
    """
    return min(LEAST_S, window_s / 2)


def retry_s(pace: Pace, tries: int) -> float:
    """How long to wait after so many refusals or errors in a row."""
    return min(pace.retry_most_s, pace.retry_s * 2.0 ** min(max(tries - 1, 0), 30))


def is_due(wake_s: float, now_s: float, pace: Pace) -> bool:
    """Whether it is time; a time that is too far ahead was put down before the clock was set back."""
    longest_s = max(pace.poll_s, pace.settle_s, pace.lag_s, pace.retry_s, pace.retry_most_s, _BUSY_MOST_S)
    return not now_s < wake_s <= now_s + longest_s


def next_session(relay: Relay, seen: Seen, now_s: float, terms: Terms) -> Action:
    """A session, or what is waited for instead.

    Args:
        relay: Of which no session runs.
        seen: What this tick has learnt.
        now_s: Seconds since 1970.
        terms: What the platform offers.
    """
    quota = next((each for each in seen.quota or () if each.resource == terms.resource), None)
    if seen.refused:
        return _refused(relay, seen, quota, now_s, terms)
    if terms.resource is None:
        return Intend(relay.order.accelerator, terms.window_s)
    if seen.quota is None:
        return AskQuota()
    window_s = terms.window_s if quota is None else min(terms.window_s, float(int(quota.left_s)))
    if window_s >= least_s(terms.window_s):
        return Intend(relay.order.accelerator, window_s)
    return _exhausted(relay, seen, quota, now_s, terms)


def _refused(relay: Relay, seen: Seen, quota: Quota | None, now_s: float, terms: Terms) -> Action:
    """The platform said no to a session in this tick."""
    if seen.refused in _FINAL or (seen.refused == "sources" and relay.tries >= SOURCES_TRIES):
        return Close("needs-you", seen.said)
    if seen.refused == "quota-exhausted" and not seen.plain:
        return _exhausted(relay, seen, quota, now_s, terms)
    return Rest("waiting", seen.said, now_s + retry_s(terms.pace, relay.tries))


def _exhausted(relay: Relay, seen: Seen, quota: Quota | None, now_s: float, terms: Terms) -> Action:
    """The hours are used up, or reserved by other sessions."""
    refresh_s = quota.refresh_at_s if quota else None
    reason = _words(quota, seen, now_s)
    if relay.order.when_exhausted == "stop":
        return Close("stopped", f"{reason}, and it was to stop then")
    if relay.order.when_exhausted == "cpu":
        window_s = terms.plain_window_s
        if refresh_s is not None and refresh_s > now_s:
            window_s = min(window_s, float(int(refresh_s - now_s)))
        if window_s >= least_s(terms.plain_window_s):
            return Intend("none", window_s)
    longest_s = now_s + terms.pace.retry_most_s  # hours that others had reserved may come back before
    if refresh_s is None or refresh_s <= now_s:
        return Rest("waiting", reason, now_s + retry_s(terms.pace, relay.tries + 1))
    return Rest("waiting", reason, min(refresh_s, longest_s))


def _words(quota: Quota | None, seen: Seen, now_s: float) -> str:
    if quota is None:
        return seen.said
    reserved = f", {hours(quota.reserved_s)} reserved by other sessions" if quota.reserved_s > 0 else ""
    what = quota.resource.upper()
    refresh = quota.refresh_at_s
    again = f"; the next come {moment(refresh, now_s)}" if refresh is not None and refresh > now_s else ""
    return f"{hours(quota.used_s)} of {hours(quota.allowed_s)} of {what} are used{reserved}{again}"
