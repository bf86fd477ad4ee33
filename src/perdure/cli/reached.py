"""From a relay to what moves it: its platform, its driver, the emulator where it is needed; and to its page."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perdure.cli.emulated import emulated_period_s, end_emulator, ensure_emulator
from perdure.cli.relay_page import OVER, Page
from perdure.core.errors import ConfigError, PerdureError
from perdure.platforms.protocol import Accelerator, Handle, Pace, Platform, Stopping
from perdure.platforms.reach import PLATFORMS, reach
from perdure.relay.driving import Driver, Glance, running_session
from perdure.relay.forecast import WEEK_S
from perdure.relay.home import Home
from perdure.relay.hours import least_s
from perdure.relay.inside.order import margin_s
from perdure.relay.prospects import prospect
from perdure.relay.records import Relay, RelayOrder
from perdure.relay.store import Store


@contextlib.contextmanager
def reached(store: Store, name: str, place: Mapping[str, Any]) -> Iterator[Platform]:
    """A platform, for as long as it is needed; an emulator is ended when no relay needs it any more."""
    if name == "emulator":
        ensure_emulator(Path(str(place["folder"])))
    platform = reach(name, place)
    try:
        yield platform
    finally:
        close = getattr(platform, "close", None)
        if close is not None:
            close()
        if name == "emulator":
            _leave(store, str(place["folder"]))


@contextlib.contextmanager
def driver_of(store: Store, relay: Relay, told: list[str] | None = None) -> Iterator[Driver]:
    """What drives a relay; what the platform answers to a wish that a session ends is put into ``told``."""
    from perdure.relay.controller import Controller

    with reached(store, relay.order.platform, relay.order.place) as platform:
        if told is not None:
            _listen(platform, told)
        yield Driver(store, platform, Controller(store, platform).tick, relay.id)


def _listen(platform: Platform, told: list[str]) -> None:
    stop_it = platform.stop

    def stop(handle: Handle, *, now: bool) -> Stopping:
        stopping = stop_it(handle, now=now)
        told.append(stopping.what)
        return stopping

    platform.stop = stop  # type: ignore[method-assign]  # of this one object: no wrapper hides what else it can


def where(text: str, home: Home) -> tuple[str, dict[str, Any]]:
    """Name and settings of the platform that ``--on`` names.

    Raises:
        ConfigError: There is none of that name.
    """
    name, _, folder = text.partition(":")
    if name not in PLATFORMS or (folder and name != "emulator"):
        raise ConfigError(f"there is no platform {text!r}", hint=f"--on takes {', '.join(PLATFORMS)}")
    if name == "emulator":
        return name, {"folder": str(Path(folder).absolute() if folder else home.folder / "emulator")}
    if name == "local":
        return name, {"folder": str(home.folder / "local")}
    return name, {}


def pick(store: Store, name: str | None) -> Relay:
    """The relay that is meant: the named one; else the only one that goes on, else the newest."""
    if name is not None:
        return store.find(name)
    relays = store.relays()
    going = [relay for relay in relays if relay.state not in OVER]
    if len(going) == 1 or (relays and not going):
        return (going or [max(relays, key=lambda relay: relay.created_s)])[0]
    names = ", ".join(relay.order.name for relay in going)
    raise ConfigError(
        "which relay?" if going else "there is no relay yet",
        hint=f"name one of {names}" if going else "perdure relay start SCRIPT begins one",
    )


def page_of(store: Store, relay: Relay, glance: Glance | None = None) -> Page:
    """What is known of a relay on this machine; nobody is asked."""
    now_s = time.time()
    seen = Glance.read(store.home.relay(relay.id)) if glance is None else glance
    pace, accelerators = _terms(relay.order)
    resource = resource_of(relay.order.accelerator, accelerators)
    quota = next((each for each in seen.quotas if each.resource == resource), None)
    session = running_session(relay)
    live = seen.live if session and seen.live and seen.live.session == session.number else None
    expected = prospect(
        relay,
        now_s,
        pace,
        quota=quota,
        margin_s=margin_s(relay.order.window_s),
        least_s=least_s(relay.order.window_s),
        period_s=period_s(relay.order),
        live=live.runs if live else (),
        earlier=store.relays() if relay.order.expect_s is None and not relay.standing.collected else (),
    )
    return Page(
        relay,
        now_s,
        resource=resource or "",
        live=live,
        quota=quota,
        seen_s=seen.seen_s or None,
        problem=seen.problem,
        prospect=expected,
        poll_s=pace.poll_s,
        models=_models(relay.order.out) if relay.state == "done" else (),
        unsent=store.problems(relay.id) if relay.order.notify else (),
    )


def _models(out: Path) -> tuple[str, ...]:
    """Model files of a fetched relay: what lies beside a card."""
    cards = sorted(out.rglob("model-card.json"))
    files = [path for card in cards for path in sorted(card.parent.iterdir())]
    return tuple(near(path) for path in files if path.name not in ("model-card.json", "README.md"))


def near(path: Path) -> str:
    """A path as one would type it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def period_s(order: RelayOrder) -> float:
    """Seconds from one refresh of a relay's hours to the next."""
    return period_of(order.platform, order.place)


def period_of(name: str, place: Mapping[str, Any]) -> float:
    """The same, of a platform."""
    emulated = emulated_period_s(Path(str(place["folder"]))) if name == "emulator" else None
    return emulated or WEEK_S


def _leave(store: Store, folder: str) -> None:
    needed = {each.order.place.get("folder") for each in store.relays() if each.state not in OVER}
    if folder not in needed:
        end_emulator(Path(folder))


def resource_of(accelerator: str, accelerators: tuple[Accelerator, ...]) -> str | None:
    """Whose hours an accelerator uses."""
    return next((each.resource for each in accelerators if each.name == accelerator), None)


def _terms(order: RelayOrder) -> tuple[Pace, tuple[Accelerator, ...]]:
    """Pace and accelerators of a platform, without asking it."""
    try:
        platform = reach(order.platform, order.place)
        return platform.pace, tuple(platform.accelerators)
    except PerdureError:  # an emulator that is gone: the page is shown all the same
        return Pace(), ()
