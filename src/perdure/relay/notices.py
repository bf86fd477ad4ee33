"""Notices about a relay: by mail, Telegram, Slack and all else that apprise knows. They never stop a relay."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core.errors import ConfigError, MissingExtraError
from perdure.core.intervals import format_duration
from perdure.relay.records import Relay, RunStand, SessionRecord

LIMIT_S = 30.0
"""How long all receivers of a notice together may take."""

_SHOWN_LINES = 10


@dataclass(frozen=True)
class Notice:
    """What is told.

    Attributes:
        title: One line.
        body: A few lines.
    """

    title: str
    body: str


def check_urls(urls: Sequence[str]) -> None:
    """Check, without sending anything, that notices could be sent there.

    Args:
        urls: Apprise URLs, as ``tgram://token/chat`` or ``mailto://user:password@example.com``.

    Raises:
        MissingExtraError: apprise is not installed.
        ConfigError: One of them means nothing to apprise. The message holds no more of it than its first word.
    """
    if not urls:
        return
    apprise = _apprise()
    for url in urls:
        if _receiver(apprise, url) is None:
            raise ConfigError(
                f"--notify {_shown(url)} is no address that apprise understands",
                hint="see https://github.com/caronc/apprise/wiki for the forms; telegram: tgram://TOKEN/CHAT",
            )


def notify(urls: Sequence[str], title: str, body: str, *, limit_s: float = LIMIT_S) -> tuple[str, ...]:
    """Send a notice to each of the receivers.

    Args:
        urls: Apprise URLs.
        title: One line.
        body: The rest.
        limit_s: Seconds that all of them may take; then those without an answer count as failed.

    Returns:
        What failed, a sentence each, without secrets; empty if all have it. Nothing is raised.
    """
    if not urls:
        return ()
    try:
        apprise = _apprise()
    except MissingExtraError as error:
        return (f"{error.what}: {error.hint}",)
    problems: list[str | None] = ["no answer in time"] * len(urls)

    def send(place: int) -> None:
        problems[place] = _send(apprise, urls[place], title, body)

    threads = [threading.Thread(target=send, args=(place,), daemon=True) for place in range(len(urls))]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return tuple(f"{_shown(url)}: {problem}" for url, problem in zip(urls, problems, strict=True) if problem)


def notice_of(before: Relay, after: Relay) -> Notice | None:
    """What to tell of a change of a relay; None if nobody needs to know.

    Args:
        before: As it was.
        after: As it is.
    """
    if after.state != before.state and after.state in ("done", "needs-you", "stopped"):
        words = {"done": "is done", "needs-you": "needs you", "stopped": "was stopped"}[after.state]
        return Notice(f"{after.order.name} {words}", _body_of_end(after))
    told = {session.number for session in before.sessions if session.outcome}
    fresh = [session for session in after.sessions if session.outcome and session.number not in told]
    if not fresh:
        return None
    session = fresh[-1]
    return Notice(f"{after.order.name}: session {session.number} {_word(session)}", _body(session))


def _body_of_end(relay: Relay) -> str:
    last = next((session for session in reversed(relay.sessions) if session.outcome), None)
    parts = [relay.reason, _body(last) if last else ""]
    if relay.state == "done":
        parts.append(f"the run is in {relay.order.out}")
    if relay.state == "needs-you":
        parts.append(f"perdure relay status {relay.order.name} says more")
    return "\n".join(dict.fromkeys(part for part in parts if part))


def _word(session: SessionRecord) -> str:
    words = {"killed": "was killed", "refused": "refused to train", "no-output": "left no output"}
    return words.get(session.outcome, session.outcome)


def _body(session: SessionRecord) -> str:
    lines = [session.reason, *(_run_line(run) for run in session.runs)]
    if session.accelerator_s:
        lines.append(f"{format_duration(session.accelerator_s)} of {session.accelerator}")
    return "\n".join([line for line in lines if line] + list(session.tail[-_SHOWN_LINES:]))


def _run_line(run: RunStand) -> str:
    count = f" of {run.count}" if run.count else ""
    where = f"step {run.step}{count}" if run.unit != "epochs" else f"step {run.step}, epoch {run.epoch}{count}"
    return f"{run.name}: {run.status}, {where}"


def _send(apprise: Any, url: str, title: str, body: str) -> str | None:
    """Send to one receiver; what went wrong, without its address."""
    try:
        receiver = _receiver(apprise, url)
        if receiver is None:
            return "no address that apprise understands"
        sender = apprise.Apprise()
        sender.add(receiver)
        return None if sender.notify(body=body, title=title) else "it could not be delivered"
    except Exception as error:  # noqa: BLE001  # whatever a service's plug-in does wrong must not cost a relay
        return f"it could not be delivered ({type(error).__name__})"


def _receiver(apprise: Any, url: str) -> Any:
    return apprise.Apprise.instantiate(url)


def _apprise() -> Any:
    """The package, with its services loaded; old modules that those import are no news to a user."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import apprise

            apprise.Apprise.instantiate("json://localhost")
    except ImportError as error:
        raise MissingExtraError(f"notices need apprise: {error}", hint="pip install 'perdure[notices]'") from error
    return apprise


def _shown(url: str) -> str:
    """As much of an address as holds no secret."""
    scheme, mark, _ = url.partition("://")
    return f"{scheme}://..." if mark else "(no scheme)"
