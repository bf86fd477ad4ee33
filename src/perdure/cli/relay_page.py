"""How a relay is shown: lines for people, and the same as one JSON document. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perdure.cli.output import table
from perdure.core.intervals import format_bytes, format_duration
from perdure.platforms.protocol import Quota
from perdure.relay.live import PREFIX, Live
from perdure.relay.prospects import Prospect, newest_stands, stands_by_session
from perdure.relay.records import Relay, RunStand, SessionRecord
from perdure.relay.words import hours, in_a_line, moment, sentence, when

OVER = ("done", "stopped", "needs-you")
"""States in which nothing goes on."""

TAIL_MOST = 15
REASON_MOST = 90
"""Lines of a log, and letters of a reason in the table."""

ROWS_MOST = 12
"""Sessions in a table for people; ``--json`` has them all."""


@dataclass(frozen=True)
class Page:
    """What is known of a relay at a moment.

    Attributes:
        relay: It and its sessions.
        now_s: The moment, seconds since 1970.
        resource: Whose hours it uses: ``"gpu"``, ``"tpu"``, empty where nothing is counted.
        live: The newest word of its running session.
        quota: Hours of its accelerator.
        seen_s: When the platform was last asked, seconds since 1970; None if never.
        prospect: What is to be expected.
        problem: Why the newest look at the platform failed.
        poll_s: How often it is looked at while somebody drives the relay.
        models: Model files that were fetched, as one would type their paths here.
        unsent: Why notices could not be sent, the newest last.
    """

    relay: Relay
    now_s: float
    resource: str = ""
    live: Live | None = None
    quota: Quota | None = None
    seen_s: float | None = None
    prospect: Prospect | None = None
    problem: str = ""
    poll_s: float = 60.0
    models: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()

    @property
    def running(self) -> SessionRecord | None:
        """The session that is open."""
        return next((session for session in self.relay.sessions if session.is_open), None)


def lines(page: Page, *, rows: int = ROWS_MOST) -> list[str]:
    """A relay for people: a head line, a line a topic, a table of its newest sessions."""
    relay = page.relay
    over = relay.state in OVER
    why, _, hint = ("" if relay.state == "done" or _is_plain(page) else relay.reason).partition("\nhint: ")
    topics = {
        "now" if relay.state == "active" else "why": in_a_line(why),
        "hint": in_a_line(hint),
        "training": training(page),
        "session": _session(page),
        "page": _url(page),
        "gpu": cards(page.live),
        "so far": _so_far(page),
        "hours": quota_line(page.quota, page.now_s) if page.quota and not over else "",
        "expected": expected(page),
        "next": _next(page),
        "seen": seen(page),
        "notices": f"{len(page.unsent)} not sent: {in_a_line(page.unsent[-1])}" if page.unsent else "",
        "result": str(relay.order.out) if relay.state == "done" else "",
    }
    told = [f"{relay.order.name}  {head(relay)}"]
    told += [f"  {topic:<10}{text}" for topic, text in topics.items() if text]
    told += [f"  {'model':<10}{model}" for model in page.models]
    told += _tail(relay)
    if any(session.stage != "abandoned" for session in relay.sessions):
        told += ["", *(f"  {line}" for line in session_table(page, rows))]
    return told


def _is_plain(page: Page) -> bool:
    """Whether all is as it should be: a session runs, which the page says anyway."""
    relay, session = page.relay, page.running
    return relay.state == "active" and session is not None and relay.reason == f"session {session.number} runs"


def _tail(relay: Relay) -> list[str]:
    """The end of the log of the session that went wrong, where the user is asked."""
    newest = next((session for session in reversed(relay.sessions) if session.outcome), None)
    if relay.state != "needs-you" or newest is None or not newest.tail:
        return []
    said = [line for line in newest.tail if not line.startswith(PREFIX)]
    return ["", f"  the end of the log of session {newest.number}:", *(f"    {line}" for line in said[-TAIL_MOST:])]


def head(relay: Relay) -> str:
    """State and place in a few words."""
    order = relay.order
    return f"{relay.state}, {order.target} on {order.platform}, {_accelerator(order.accelerator)}"


def training(page: Page) -> str:
    """How far the runs are."""
    stands = newest_stands(page.relay, page.live.runs if page.live else ())
    if not stands:
        return ""
    texts = [progress(stand, named=len(stands) > 1) for stand in stands.values()]
    text = "; ".join(texts[-3:])
    if len(texts) > 3:
        finished = sum(stand.status == "finished" for stand in stands.values())
        text = f"{len(texts)} runs, {finished} finished; {text}"
    if page.prospect and page.prospect.done is not None and page.relay.state != "done":
        text += f", {100 * page.prospect.done:.0f} % done"
    metrics = page.live.metrics if page.live else {}
    return ", ".join([text, *(f"{name} {value:.4g}" for name, value in metrics.items())])


def progress(stand: RunStand, *, named: bool) -> str:
    """How far a run is: ``step 400, epoch 3 of 10``: the one that it is in, whether a session runs or not."""
    text = f"{stand.name} " if named else ""
    text += f"step {stand.step}"
    if stand.unit == "steps" and stand.count:
        text += f" of {stand.count}"
    if stand.unit == "epochs" and stand.count:
        text += f", epoch {min(stand.epoch + (stand.status != 'finished'), stand.count)} of {stand.count}"
    return text + (", finished" if stand.status == "finished" else "")


def cards(live: Live | None) -> str:
    """What the cards of the running session do; cards of one kind together."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for card in live.cards if live else ():
        kinds.setdefault(str(card.get("name") or "card"), []).append(card)
    return "; ".join(_cards(name, alike) for name, alike in kinds.items())


def expected(page: Page) -> str:
    """The forecast."""
    if page.relay.state in (*OVER, "stopping") or page.prospect is None:
        return ""
    if page.prospect.expected is None:
        return page.prospect.basis
    if page.prospect.left_s == 0 and page.running:
        return "nothing is left to train; the session comes to its end"
    told = sentence(page.prospect.expected, page.now_s, page.resource.upper())
    return f"{told} ({page.prospect.basis})"


def seen(page: Page) -> str:
    """When the platform was last asked, where that is long ago, or went wrong."""
    if page.relay.state in OVER:
        return ""
    if page.seen_s is None:
        return "not yet: perdure relay watch drives it"
    ago_s = page.now_s - page.seen_s
    due_s = max(page.relay.wake_s or 0.0, page.seen_s) + 5 * page.poll_s + 30.0
    if page.now_s > due_s:
        return f"{when(ago_s)} ago; nobody drives it now: perdure relay watch {page.relay.order.name}"
    return f"{when(ago_s)} ago: {page.problem}" if page.problem else ""


def short_line(page: Page) -> str:
    """A relay in one line."""
    relay = page.relay
    reason = in_a_line(relay.reason)
    state = relay.state if relay.state != "active" else reason or relay.state
    known = expected(page) if page.prospect and page.prospect.expected else ""
    parts = [state, training(page), cards(page.live), _left(page), known]
    if relay.state in ("waiting", "needs-you", "stopped", "stopping"):
        parts.insert(1, reason)
    return f"{relay.order.name}: " + ", ".join(part for part in parts if part)


def _left(page: Page) -> str:
    session = page.running
    if session is None or session.started_s is None:
        return ""
    left_s = session.started_s + session.window_s - page.now_s
    return f"window closes in {when(left_s)}" if left_s > 0 else "its window is over"


def quota_line(quota: Quota, now_s: float) -> str:
    """Hours of an accelerator in a line."""
    text = f"{quota.resource.upper()} {hours(quota.left_s)} left of {hours(quota.allowed_s)}"
    text += f", {hours(quota.used_s)} used"
    if quota.reserved_s >= 1:
        text += f", {hours(quota.reserved_s)} reserved"
    if quota.refresh_at_s is not None:
        text += f", refreshes {moment(quota.refresh_at_s, now_s)}"
        if quota.refresh_at_s > now_s:
            text += f" (in {when(quota.refresh_at_s - now_s)})"
    return text


def session_table(page: Page, most: int = ROWS_MOST) -> list[str]:
    """A row a session, the newest last."""
    sessions = [session for session in page.relay.sessions if session.stage != "abandoned"]
    stood = stands_by_session(page.relay)
    rows = [_row(session, page, stood[session.number]) for session in sessions[-most:]]
    told = table(("session", "began", "lasted", "came to", "step", "with", "why"), rows)
    left_out = len(sessions) - len(rows)
    return [f"({left_out} earlier left out; perdure relay status --json has all)", *told] if left_out else told


def _row(session: SessionRecord, page: Page, stands: Sequence[RunStand]) -> tuple[str, ...]:
    began_s = session.started_s or session.submitted_s
    until_s = session.ended_s if session.ended_s is not None else page.now_s
    steps = "+".join(str(stand.step) for stand in stands if stand.checkpoint)
    if session.is_open and page.live and page.live.session == session.number:
        steps = "+".join(str(stand.step) for stand in page.live.runs)
    return (
        str(session.number),
        moment(began_s, page.now_s) if began_s else "",
        format_duration(float(round(until_s - session.started_s))) if session.started_s else "",
        session.outcome or _stage(session),
        steps,
        _accelerator(session.accelerator),
        _cut(in_a_line(session.reason)),
    )


def _cut(reason: str) -> str:
    return reason if len(reason) <= REASON_MOST else reason[: REASON_MOST - 3].rstrip() + "..."


def _stage(session: SessionRecord) -> str:
    if session.stage == "intended":
        return "being submitted"
    if session.stage == "submitted":
        return "running" if session.started_s is not None else "queued"
    return "ended, its output is awaited"


def _session(page: Page) -> str:
    session = page.running
    if session is None:
        return ""
    text = f"{session.number} {_stage(session)}"
    if session.started_s is not None:
        text += f" for {when(page.now_s - session.started_s)}, {_left(page)}"
    return text


def _url(page: Page) -> str:
    """Where people see the running session; the emulator has no such page."""
    handle = page.running.handle if page.running else None
    return handle.url if handle and page.relay.order.platform != "emulator" else ""


def _so_far(page: Page) -> str:
    """Sessions and hours that were used."""
    collected = [session for session in page.relay.sessions if session.stage == "collected"]
    if not collected:
        return ""
    text = f"{len(collected)} session{'' if len(collected) == 1 else 's'} ended"
    used_s = sum(session.accelerator_s for session in collected)
    return text + (f", {hours(used_s)} of {page.resource.upper() or 'accelerator'}" if used_s else "")


def _next(page: Page) -> str:
    """What is done next, and when."""
    relay = page.relay
    if relay.state != "waiting" or relay.wake_s is None:
        return ""
    return f"tried again {moment(relay.wake_s, page.now_s)} (in {when(relay.wake_s - page.now_s)})"


def _accelerator(name: str) -> str:
    return "CPU" if name == "none" else name


def _cards(name: str, alike: Sequence[Mapping[str, Any]]) -> str:
    text = name if len(alike) == 1 else f"{len(alike)} x {name}"
    busy = [f"{card['busy_percent']:.0f}" for card in alike if card.get("busy_percent") is not None]
    used = [format_bytes(card["memory_used_bytes"]) for card in alike if card.get("memory_used_bytes") is not None]
    total = alike[0].get("memory_total_bytes")
    text += f", {' and '.join(busy)} % busy" if busy else ""
    return text + (f", {' and '.join(used)}" + (f" of {format_bytes(total)}" if total else "") if used else "")


def document(page: Page) -> dict[str, Any]:
    """The same for programs: the record as it is stored, and what was made of it."""
    relay, order = page.relay, page.relay.order
    stood = stands_by_session(relay)
    return {
        "id": relay.id,
        "name": order.name,
        "state": relay.state,
        "reason": relay.reason,
        "platform": order.platform,
        "accelerator": order.accelerator,
        "target": order.target,
        "arguments": list(order.arguments),
        "project": str(order.project),
        "out": str(order.out),
        "models": list(page.models),
        "notices_not_sent": list(page.unsent),
        "window_s": order.window_s,
        "created_s": relay.created_s,
        "wake_s": relay.wake_s,
        "seen_s": page.seen_s,
        "sessions": [_session_document(session, stood[session.number]) for session in relay.sessions],
        "runs": [asdict(stand) for stand in _stands(page)],
        "live": None if page.live is None else asdict(page.live),
        "quota": None if page.quota is None else quota_document(page.quota),
        "forecast": None if page.prospect is None else _forecast(page.prospect),
    }


def quota_document(quota: Quota) -> dict[str, Any]:
    """Hours of an accelerator for programs."""
    return {**asdict(quota), "left_s": quota.left_s}


def _stands(page: Page) -> Sequence[RunStand]:
    return list(newest_stands(page.relay, page.live.runs if page.live else ()).values())


def _session_document(session: SessionRecord, stands: Sequence[RunStand]) -> dict[str, Any]:
    runs = [asdict(stand) for stand in stands]
    return {**asdict(session), "runs": runs, "url": session.handle.url if session.handle else ""}


def _forecast(prospect: Prospect) -> dict[str, Any]:
    known = asdict(prospect.expected) if prospect.expected else {}
    return {"basis": prospect.basis, "left_s": prospect.left_s, "done": prospect.done, **known}
