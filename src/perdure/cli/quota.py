"""``perdure quota``: accelerator hours, as the platform counts them, beside what relays of this machine used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from perdure.cli.options import Json
from perdure.cli.output import note, say, say_json, table
from perdure.cli.reached import page_of, period_of, reached, where
from perdure.cli.relay_page import OVER, expected, quota_document
from perdure.platforms.protocol import Platform, Quota
from perdure.relay.home import find_home
from perdure.relay.ledger import entries, used_by_relay
from perdure.relay.records import Relay
from perdure.relay.store import Store
from perdure.relay.words import hours, moment, when

On = Annotated[str, typer.Option(help="kaggle, emulator, or emulator:FOLDER.")]


def quota_command(on: On = "kaggle", json: Json = False) -> None:
    """Accelerator hours. Used, reserved, left, when they refresh; what relays used; how far they get."""
    home = find_home()
    name, place = where(on, home)
    now_s = time.time()
    with Store(home) as store:
        relays = store.relays()
        with reached(store, name, place) as platform:
            account, quotas = platform.account(), platform.quota()
            found = {
                quota.resource: _ledger(quota, relays, platform, period_of(name, place), now_s) for quota in quotas
            }
        going = [
            page_of(store, relay) for relay in relays if relay.state not in OVER and relay.order.platform == name
        ]
    if json:
        say_json(_document(account, quotas, found))
        return
    if not quotas:
        note(f"{name} counts no hours")
        return
    _show(account, quotas, found, now_s)
    for page in going:
        say(f"{page.relay.order.name}: {expected(page) or page.relay.state}")


Ledger = dict[str, tuple[float, int]]
"""Seconds and sessions of each relay in the present period."""


def _ledger(quota: Quota, relays: Sequence[Relay], platform: Platform, period_s: float, now_s: float) -> Ledger:
    counted = {each.name: each.resource for each in platform.accelerators}
    since_s = (quota.refresh_at_s or now_s) - period_s
    return used_by_relay(entries(relays, platform.name, counted, quota.resource, now_s), since_s, now_s)


def _show(account: str, quotas: Sequence[Quota], found: dict[Any, Ledger], now_s: float) -> None:
    rows = [
        (
            quota.resource.upper(),
            hours(quota.used_s),
            hours(quota.reserved_s),
            hours(quota.left_s),
            hours(quota.allowed_s),
            _refresh(quota, now_s),
        )
        for quota in quotas
    ]
    say(f"account {account}")
    for line in table(("", "used", "reserved", "left", "of", "refreshes"), rows):
        say(line)
    for quota in quotas:
        ledger = found[quota.resource]
        total_s = sum(used_s for used_s, _ in ledger.values())
        if not total_s:
            continue
        each = ", ".join(_used(name, *of) for name, of in ledger.items())
        beside = quota.used_s - total_s
        other = f"; {hours(beside)} elsewhere, or not yet counted here" if beside >= 60 else ""
        say(f"{quota.resource.upper()} used by relays of this machine, as their sessions measured: {each}{other}")


def _used(name: str, used_s: float, sessions: int) -> str:
    return f"{name} {hours(used_s)} in {sessions} session{'' if sessions == 1 else 's'}"


def _refresh(quota: Quota, now_s: float) -> str:
    if quota.refresh_at_s is None:
        return "not said"
    return f"{moment(quota.refresh_at_s, now_s)} (in {when(quota.refresh_at_s - now_s)})"


def _document(account: str, quotas: Sequence[Quota], found: dict[Any, Ledger]) -> dict[str, Any]:
    return {
        "version": 1,
        "account": account,
        "quotas": [
            {
                **quota_document(quota),
                "relays": {
                    name: {"used_s": used_s, "sessions": count}
                    for name, (used_s, count) in found[quota.resource].items()
                },
            }
            for quota in quotas
        ],
    }
