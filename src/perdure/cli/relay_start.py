"""``perdure relay start``: everything is checked, packed, shown; then the relay begins."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from perdure.cli.output import note, say, say_fitted
from perdure.cli.reached import period_s, reached, where
from perdure.cli.relay_page import quota_line
from perdure.cli.relay_watch import follow
from perdure.core.errors import ConfigError
from perdure.core.intervals import format_bytes, format_duration, parse_duration
from perdure.platforms.protocol import Platform
from perdure.relay.driving import Glance
from perdure.relay.home import Home, find_home
from perdure.relay.hours import least_s
from perdure.relay.inside.order import margin_s
from perdure.relay.prospects import prospect
from perdure.relay.records import Relay, WhenExhausted
from perdure.relay.store import Store
from perdure.relay.words import sentence

if TYPE_CHECKING:
    from perdure.relay.opening import Opening, Wish

Target = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT|NOTEBOOK [-- ARGS]...",
        help="A Python script or a notebook; its arguments after --.",
        show_default=False,
    ),
]
On = Annotated[str, typer.Option(metavar="PLATFORM", help="kaggle, local, emulator, or emulator:FOLDER.")]
Name = Annotated[str | None, typer.Option(help="Name of the relay.", show_default="the script's")]
Kind = Annotated[
    str | None, typer.Option(help="Such as t4x2, tpu-v5e-8, none.", show_default="the platform's first")
]
Window = Annotated[
    str | None, typer.Option(help="How long a session may last.", show_default="the platform's longest")
]
Expect = Annotated[
    str | None,
    typer.Option(help="How long the training takes on that accelerator, such as '38 h'.", show_default=False),
]
Project = Annotated[Path | None, typer.Option(help="The folder that travels.", show_default="the script's")]
Env = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A variable for the script; repeatable.", show_default=False),
]
Dataset = Annotated[
    list[str] | None, typer.Option(metavar="OWNER/SLUG", help="A data set; repeatable.", show_default=False)
]
Competition = Annotated[
    list[str] | None,
    typer.Option(metavar="SLUG", help="A competition whose data is wanted; repeatable.", show_default=False),
]
Model = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OWNER/MODEL/FRAMEWORK/VARIATION/VERSION", help="A model; repeatable.", show_default=False
    ),
]
Internet = Annotated[
    bool | None,
    typer.Option("--internet/--no-internet", help="May sessions reach it?", show_default="only for --mirror"),
]
Exhausted = Annotated[str, typer.Option(metavar="wait|cpu|stop", help="What to do when the hours are used up.")]
Mirror = Annotated[
    str,
    typer.Option(metavar="kaggle|URL", help="Where checkpoints also go while a session runs.", show_default=False),
]
Notify = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="Apprise address for notices; repeatable.", show_default=False),
]
Out = Annotated[Path | None, typer.Option(help="Where the finished run goes.", show_default="relays/NAME")]
Detach = Annotated[bool, typer.Option("--detach", help="Drive it in the background.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, pack and show; begin nothing.")]


def start_command(
    target: Target,
    *,
    on: On = "kaggle",
    name: Name = None,
    accelerator: Kind = None,
    window: Window = None,
    expect: Expect = None,
    project: Project = None,
    env: Env = None,
    dataset: Dataset = None,
    competition: Competition = None,
    model: Model = None,
    internet: Internet = None,
    when_exhausted: Exhausted = "wait",
    mirror: Mirror = "",
    notify: Notify = None,
    out: Out = None,
    detach: Detach = False,
    dry_run: DryRun = False,
) -> None:
    """Carry a run over as many sessions as it needs. Exit code 1 if it needs you in between.

    Everything is checked, packed and shown first. Then it is driven and shown, until it is done; Ctrl-C leaves it
    as it is, and perdure relay watch goes on.
    """
    from perdure.relay.opening import Wish

    home = find_home()
    platform_name, place = where(on, home)
    wish = Wish(
        target=Path(target[0]),
        arguments=tuple(target[1:]),
        place=place,
        project=project,
        name=name,
        accelerator=accelerator,
        window_s=None if window is None else parse_duration(window, what="--window"),
        environment=_environment(env or ()),
        internet=internet,
        datasets=tuple(dataset or ()),
        competitions=tuple(competition or ()),
        models=tuple(model or ()),
        when_exhausted=_when_exhausted(when_exhausted),
        mirror=mirror,
        notify=tuple(notify or ()),
        expect_s=None if expect is None else parse_duration(expect, what="--expect"),
        out=out,
    )
    with Store(home) as store, reached(store, platform_name, place) as platform:
        relay = _begin(wish, platform, store, dry_run=dry_run)
    if relay is None:
        return
    if detach:
        _detach(home, relay)
    else:
        with Store(home) as store:
            raise typer.Exit(follow(store, [relay]))


def _begin(wish: Wish, platform: Platform, store: Store, *, dry_run: bool) -> Relay | None:
    from perdure.relay.opening import discard, prepare, sweep

    now_s = time.time()
    relays = store.relays()
    sweep(store.home, [relay.id for relay in relays], now_s)
    opening = prepare(wish, platform, store.home, store.names(), now_s)
    relay = None
    try:
        _show(opening, platform, relays, now_s)
        if dry_run:
            note("nothing was begun: leave --dry-run out to begin")
            return None
        relay = store.create(opening.relay.id, opening.relay.order, now_s)
    finally:
        if relay is None:
            discard(opening, store.home)
    Glance(now_s, quotas=opening.quotas).write(store.home.relay(relay.id))
    return relay


def _show(opening: Opening, platform: Platform, relays: Sequence[Relay], now_s: float) -> None:
    """What is going to happen, before anything does."""
    order, content = opening.relay.order, opening.bundle.content
    kind = "the CPU" if order.accelerator == "none" else order.accelerator
    place = f"{order.platform} as {opening.account}" if opening.account else order.platform
    say_fitted(f"{order.name}  {order.target} on {place}, {kind}, sessions of {format_duration(order.window_s)}")
    files = f"{len(content.items)} file{'' if len(content.items) == 1 else 's'}"
    packed = format_bytes(opening.bundle.size_bytes)
    say_fitted(f"  project   {files}, {format_bytes(content.size_bytes)}; packed, with Perdure, {packed}")
    if content.left:
        shown = ", ".join(left.name for left in content.left[:5])
        more = f" and {len(content.left) - 5} more" if len(content.left) > 5 else ""
        say_fitted(f"  left out  {shown}{more}")
    if opening.quota is not None:
        say_fitted(f"  hours     {quota_line(opening.quota, now_s)}")
    expected = prospect(
        opening.relay,
        now_s,
        platform.pace,
        quota=opening.quota,
        margin_s=margin_s(order.window_s),
        least_s=least_s(order.window_s),
        period_s=period_s(order),
        earlier=relays,
    )
    if expected.expected is None:
        say_fitted(f"  expected  {expected.basis}")
    else:
        told = sentence(expected.expected, now_s, (opening.accelerator.resource or "").upper())
        say_fitted(f"  expected  {told} ({expected.basis})")
    for each in opening.notes:
        note(f"note: {each}")


def _detach(home: Home, relay: Relay) -> None:
    """Drive it in a process that outlives this one and its terminal."""
    log = home.relay(relay.id) / "driver.log"
    command = [sys.executable, "-c", "import sys; from perdure.cli.main import main; sys.exit(main())"]
    with log.open("ab") as file:
        subprocess.Popen(
            [*command, "relay", "watch", relay.id],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=home.folder,
        )
    name = relay.order.name
    say(f"{name} is driven in the background: {log}")
    say(f"look at it: perdure relay status {name}; when this machine was off: perdure relay watch {name}")


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--env takes NAME=VALUE, got {pair!r}", hint="--env EPOCHS=30")
        found[name] = value
    return found


def _when_exhausted(text: str) -> WhenExhausted:
    if text not in get_args(WhenExhausted):
        raise ConfigError(f"--when-exhausted takes wait, cpu or stop, got {text!r}", hint="wait is the default")
    return cast("WhenExhausted", text)
