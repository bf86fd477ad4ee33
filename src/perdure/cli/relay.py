"""``perdure relay``: its commands, but for ``start`` and ``watch``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import Json
from perdure.cli.output import note, say, say_fitted, say_json, table
from perdure.cli.reached import driver_of, page_of, pick, reached
from perdure.cli.relay_page import document, lines, training
from perdure.cli.relay_start import start_command
from perdure.cli.relay_watch import watch_command
from perdure.core.errors import ConfigError, RelayError
from perdure.core.intervals import format_bytes
from perdure.platforms.protocol import Platform, Progress
from perdure.relay.home import find_home
from perdure.relay.live import PREFIX
from perdure.relay.logs import follow_log, read_log
from perdure.relay.records import Relay, SessionRecord
from perdure.relay.store import Store
from perdure.relay.words import moment

if TYPE_CHECKING:
    from perdure.relay.fetching import Fetched

relay_app = typer.Typer(name="relay", rich_markup_mode=None)


@relay_app.callback(invoke_without_command=True)
def relay(context: typer.Context) -> None:
    """Carry a run over as many sessions of a platform as it needs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Maybe = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Name of a relay; the one that goes on.", show_default=False)
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a relay.", show_default=False)]


def status_command(name: Maybe = None, json: Json = False) -> None:
    """How a relay stands, from what this machine knows. Asks nobody, changes nothing."""
    with Store(find_home()) as store:
        page = page_of(store, pick(store, name))
    if json:
        say_json({"version": 1, "relay": document(page)})
        return
    for line in lines(page):
        say_fitted(line)


def list_command(json: Json = False) -> None:
    """All relays of this machine."""
    with Store(find_home()) as store:
        pages = [page_of(store, relay) for relay in store.relays()]
    if json:
        say_json({"version": 1, "relays": [document(page) for page in pages]})
        return
    rows = [
        (
            page.relay.order.name,
            page.relay.state,
            page.relay.order.platform,
            str(page.relay.standing.collected),
            training(page),
            moment(page.relay.created_s, page.now_s),
        )
        for page in pages
    ]
    for line in table(("relay", "state", "on", "sessions", "training", "begun"), rows) if rows else ():
        say(line)
    if not rows:
        note("no relay yet: perdure relay start SCRIPT begins one")


def logs_command(
    name: Maybe = None,
    session: Annotated[
        int | None, typer.Option(help="Number of the session.", show_default="the newest that has begun")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the session has ended.")] = False,
) -> None:
    """What a session has printed."""
    with Store(find_home()) as store:
        relay = pick(store, name)
        record = _session(relay, session)
        folder = store.home.session(relay.id, record.number)
        assert record.handle is not None  # _session
        with reached(store, relay.order.platform, relay.order.place) as platform:
            if follow:
                for line in follow_log(platform, record.handle, folder):
                    _print(line)
                return
            log = read_log(platform, record.handle, folder)
    for line in log.lines:
        _print(line)
    if not log.lines:
        note(f"session {record.number} has no log yet; it may come late: --follow waits for it")


def _print(line: str) -> None:
    """A line of a log, but for those that are meant for programs."""
    if not line.startswith(PREFIX):
        print(line, flush=True)


def stop_command(
    name: Name,
    now: Annotated[
        bool, typer.Option("--now", help="End its session at any price; what it did since its last output is lost.")
    ] = False,
) -> None:
    """No further session. The one that runs is asked to end, where the platform can be asked."""
    from perdure.relay.controller import stop_relay

    with Store(find_home()) as store:
        relay = store.find(name)
        if relay.state in ("done", "stopped"):
            raise RelayError(f"{relay.order.name} is {relay.state} already: {relay.reason}")
        relay = stop_relay(store, relay.id, time.time(), now=now)
        told: list[str] = []
        with driver_of(store, relay, told) as driver:
            driver.step()
            relay = driver.relay
    say(f"{relay.order.name}  {relay.state}: {relay.reason}")
    for answer in told:
        say(f"  {answer}")
    if relay.state == "stopping":
        note(f"no session follows; perdure relay watch {relay.order.name} brings what this one leaves")


def resume_command(name: Name) -> None:
    """Let a relay go on that was stopped, or that needed you. Then watch drives it."""
    from perdure.relay.controller import resume_relay

    with Store(find_home()) as store:
        relay = resume_relay(store, store.find(name).id, time.time())
    say(f"{relay.order.name}  {relay.state}: {relay.reason}")
    note(f"perdure relay watch {relay.order.name} drives it")


def fetch_command(
    name: Maybe = None,
    tensors: Annotated[
        bool, typer.Option("--tensors/--no-tensors", help="With checkpoints, or what is small only.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Where it goes.", show_default="--out of start")] = None,
) -> None:
    """Bring what a relay has come to so far: status, model files, checkpoints, each proved.

    A download that was cut goes on.
    """
    with Store(find_home()) as store:
        relay = pick(store, name)
        with reached(store, relay.order.platform, relay.order.place) as platform:
            fetched = _fetch(platform, relay, (out or relay.order.out).absolute(), tensors=tensors)
    say(f"{fetched.folder}  {format_bytes(fetched.size_bytes)}")
    for path in (*fetched.models, *fetched.checkpoints):
        say(f"  {path.relative_to(fetched.folder)}")
    for remark in fetched.remarks:
        note(f"note: {remark}")


def _fetch(platform: Platform, relay: Relay, out: Path, *, tensors: bool) -> Fetched:
    from perdure.relay.fetching import fetch_run

    try:
        with _bar() as progress:
            return fetch_run(platform, relay, out, progress, tensors=tensors)
    except OSError as error:  # of this machine: its disk is full, say
        raise RelayError(
            f"{out} cannot be written: {error.strerror or error}",
            hint="make room, or name another folder with --out; a second fetch goes on where this one ended",
        ) from error


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar on stderr; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True, highlight=False)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("fetch", total=None)
        yield lambda there, total: bars.update(task, completed=there, total=total)


def _session(relay: Relay, number: int | None) -> SessionRecord:
    begun = [session for session in relay.sessions if session.handle is not None]
    if number is None and begun:
        return begun[-1]
    for session in begun:
        if session.number == number:
            return session
    known = ", ".join(str(session.number) for session in begun)
    if number is None or not known:
        raise RelayError(f"no session of {relay.order.name} has begun yet")
    raise ConfigError(f"{relay.order.name} has no session {number}", hint=f"it has {known}")


relay_app.command("start", short_help="Check, pack, begin; then watch.")(start_command)
relay_app.command("status")(status_command)
relay_app.command("watch", short_help="Drive a relay and show it.")(watch_command)
relay_app.command("logs")(logs_command)
relay_app.command("stop", short_help="No further session.")(stop_command)
relay_app.command("resume", short_help="Let it go on.")(resume_command)
relay_app.command("list")(list_command)
relay_app.command("fetch", short_help="Bring what it has come to.")(fetch_command)
