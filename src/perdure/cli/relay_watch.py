"""``perdure relay watch``: drives relays, and shows them while they run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Annotated, Any, Protocol

import typer

from perdure.cli.output import complain, fitted, note, say, styled
from perdure.cli.reached import driver_of, near, page_of, pick
from perdure.cli.relay_page import OVER, lines, short_line
from perdure.core.errors import PerdureError
from perdure.relay.driving import Driver, changes
from perdure.relay.home import find_home
from perdure.relay.records import Relay
from perdure.relay.store import Store

ONCE_S = 120.0
"""How long ``--once`` may go on while there is always more to do at once."""

LINE_EVERY_POLLS = 5
"""Outside of a terminal, a line about the training comes once in so many looks."""

WAITING_EVERY_S = 3600.0
"""The same, while it waits."""

ROWS = 5
"""Sessions that are shown in a terminal while it goes on."""

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Name of a relay; the one that goes on.", show_default=False)
]


def watch_command(
    name: Name = None,
    once: Annotated[
        bool, typer.Option("--once", help="Do what is due, say how it stands, and end: for cron.")
    ] = False,
) -> None:
    """Drive a relay and show it. Exit code 1 if it needs you.

    Sessions run without this machine; it is needed for the step from one to the next. Without a name, --once does
    what is due for all relays.
    """
    with Store(find_home()) as store:
        if not once:
            raise typer.Exit(follow(store, [pick(store, name)]))
        relays = [store.find(name)] if name else [relay for relay in store.relays() if relay.state not in OVER]
        raise typer.Exit(max([_once_or_say(store, relay) for relay in relays], default=0))


def follow(store: Store, relays: Sequence[Relay]) -> int:
    """Drive relays to their ends, and show them.

    Returns:
        The exit code: 1 if one of them needs its user.
    """
    with ExitStack() as stack:
        drivers = [stack.enter_context(driver_of(store, relay)) for relay in relays]
        try:
            with _screen() as screen:
                _drive(drivers, screen)
        except KeyboardInterrupt:
            _say_how_to_come_back(drivers)
            raise
        for driver in drivers:
            _say_the_end(driver.relay)
        return max(_exit_code(driver.relay) for driver in drivers)


class Screen(Protocol):
    """Where relays are shown."""

    def show(self, drivers: Sequence[Driver]) -> None:
        """Show how they stand now."""


def _drive(drivers: Sequence[Driver], screen: Screen) -> None:
    screen.show(drivers)
    while going := [driver for driver in drivers if driver.wake_s is not None]:
        for driver in going:
            if driver.is_due:
                driver.step()
                screen.show(drivers)
        _sleep(going, drivers, screen)


def _sleep(going: Sequence[Driver], drivers: Sequence[Driver], screen: Screen) -> None:
    """Until the first of them has something to do; a clock on the screen goes on."""
    while (wakes := [each.wake_s for each in going if each.wake_s is not None]) and not any(
        d.is_due for d in going
    ):
        # the wall clock is asked again and again: a laptop may sleep in between, or its clock be set
        time.sleep(min(1.0, max(0.01, min(wakes) - time.time())))
        screen.show(drivers)


def _once_or_say(store: Store, relay: Relay) -> int:
    """What goes wrong with one relay must not cost the others."""
    try:
        return _once(store, relay)
    except PerdureError as error:
        complain(f"{relay.order.name}: {error.args[0]}", error.hint)
        return 1


def _once(store: Store, relay: Relay) -> int:
    """Steps for as long as each of them changes something: what a session left leads to the next one at once."""
    with driver_of(store, relay) as driver:
        until_s = time.monotonic() + ONCE_S
        going = True
        while going and time.monotonic() < until_s:
            driver.step()
            before, relay = relay, driver.relay
            happened = changes(before, relay)
            for told in happened:
                say(f"{relay.order.name}: {told}")
            going = bool(happened) and driver.wake_s is not None
        say(short_line(page_of(store, relay, driver.glance)))
        return _exit_code(relay)


@contextmanager
def _screen() -> Iterator[Screen]:
    if not sys.stdout.isatty():
        yield _Plain()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False), auto_refresh=False, transient=False) as live:
        yield _Terminal(live)


class _Terminal:
    """A page that is drawn over itself."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def show(self, drivers: Sequence[Driver]) -> None:
        pages = [lines(page_of(driver.store, driver.relay, driver.glance), rows=ROWS) for driver in drivers]
        going = any(driver.wake_s is not None for driver in drivers)
        foot = ["", "Ctrl-C leaves the session to itself; perdure relay watch comes back"] if going else []
        told = [*"\n\n".join("\n".join(page) for page in pages).splitlines(), *foot]
        width = self._live.console.width
        self._live.update(styled("\n".join(piece for line in told for piece in fitted(line, width))))
        self._live.refresh()


class _Plain:
    """Lines, one after the other: what has happened, and now and then how it stands."""

    def __init__(self) -> None:
        self._before: dict[str, Relay] = {}
        self._said: dict[str, tuple[float, str]] = {}

    def show(self, drivers: Sequence[Driver]) -> None:
        for driver in drivers:
            relay = driver.relay
            known = self._before.get(relay.id)
            if known is not None and known.revision == relay.revision and not self._is_due(driver, relay):
                continue
            for told in changes(known, relay):
                _say_at(f"{relay.order.name}: {told}")
            self._before[relay.id] = relay
            self._stand(driver, relay)

    def _is_due(self, driver: Driver, relay: Relay) -> bool:
        said_s, _ = self._said.get(relay.id, (-1e9, ""))
        every_s = WAITING_EVERY_S if relay.state == "waiting" else LINE_EVERY_POLLS * driver.platform.pace.poll_s
        return time.monotonic() - said_s >= max(2.0, every_s)

    def _stand(self, driver: Driver, relay: Relay) -> None:
        line = short_line(page_of(driver.store, relay, driver.glance))
        if self._is_due(driver, relay) and line != self._said.get(relay.id, (0.0, ""))[1]:
            _say_at(line)
            self._said[relay.id] = (time.monotonic(), line)


def _say_at(text: str) -> None:
    now = datetime.now().astimezone()
    say(f"{now:%H:%M:%S} {now.tzname()}  {text}")
    sys.stdout.flush()


def _say_how_to_come_back(drivers: Sequence[Driver]) -> None:
    for driver in drivers:
        relay = driver.relay
        if relay.state in OVER:
            continue
        running = next((session.number for session in relay.sessions if session.is_open), None)
        goes_on = f"session {running} goes on by itself" if running else "no session runs"
        note(f"{relay.order.name}: {goes_on}; the next one begins when you come back:")
        note(f"  perdure relay watch {relay.order.name}")


def _say_the_end(relay: Relay) -> None:
    name = relay.order.name
    if relay.state == "done":
        note(f"{name}: everything is in {near(relay.order.out)}")
    if relay.state == "needs-you":
        if any(session.tail for session in relay.sessions):
            note(f"{name}: perdure relay status {name} shows the end of the log")
        note(f"{name}: to try it again as it is: perdure relay resume {name}")
        note("  with a mended script, or other flags: another perdure relay start")


def _exit_code(relay: Relay) -> int:
    return 1 if relay.state == "needs-you" else 0
