"""Opening a relay: everything is checked and packed before anything is pushed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError, NotThereError, RefusedError
from perdure.core.intervals import format_duration
from perdure.core.paths import check_name
from perdure.platforms.protocol import Accelerator, Platform, Quota
from perdure.relay.bundle import Bundle, make_bundle
from perdure.relay.home import Home
from perdure.relay.notices import check_urls
from perdure.relay.records import Relay, RelayOrder, WhenExhausted
from perdure.relay.secrets import kind_of
from perdure.relay.slugs import new_relay_id
from perdure.relay.survey import check_there

LEAST_WINDOW_S = 5.0
"""Python and a framework alone take as long to load: no run would ever get to its first checkpoint."""

_ORPHAN_S = 86400.0
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL", re.IGNORECASE)
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_DATASET = re.compile(r"[\w-]+/[\w-]+")
_COMPETITION = re.compile(r"[\w-]+")
_MODEL = re.compile(r"[\w-]+/[\w.-]+/[\w.-]+/[\w.-]+/\d+")


@dataclass(frozen=True)
class Wish:
    """What the user wrote; None where he left it to us.

    Attributes:
        target: The script or notebook.
        place: Settings with which a new process reaches the platform again.
        project: The folder that travels; that of the script if None.
        name: Of the relay; that of the script if None.
        accelerator: By the name that users know.
        window_s: Seconds of a session; all that the platform allows if None.
        internet: Whether sessions may reach the network; only where the mirror needs it, if None.
        out: Where the finished run is to lie.
        The rest: as in ``RelayOrder``.
    """

    target: Path
    arguments: tuple[str, ...] = ()
    place: Mapping[str, Any] = field(default_factory=dict)
    project: Path | None = None
    name: str | None = None
    accelerator: str | None = None
    window_s: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    internet: bool | None = None
    datasets: tuple[str, ...] = ()
    competitions: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    when_exhausted: WhenExhausted = "wait"
    mirror: str = ""
    notify: tuple[str, ...] = ()
    expect_s: float | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Opening:
    """A relay that could begin now.

    Attributes:
        relay: As it would be stored.
        bundle: What every session gets.
        account: Whose account it is.
        accelerator: What its sessions run on.
        quotas: Hours of the account.
        notes: What the user should know, a sentence each.
    """

    relay: Relay
    bundle: Bundle
    account: str
    accelerator: Accelerator
    quotas: tuple[Quota, ...]
    notes: tuple[str, ...] = ()

    @property
    def quota(self) -> Quota | None:
        """Hours of its accelerator; None where nothing is counted."""
        return quota_of(self.accelerator, self.quotas)


def prepare(wish: Wish, platform: Platform, home: Home, names: Sequence[str], now_s: float) -> Opening:
    """Check and pack; nothing is stored, nothing is pushed.

    Args:
        wish: What the user wrote.
        platform: Where it is to run.
        home: Where relays are kept: the bundle is written there.
        names: Names of relays that there are.
        now_s: Seconds since 1970.

    Raises:
        ConfigError: Something that was asked for makes no sense.
        BundleError: The project cannot travel as it is.
        RefusedError: The platform has no such accelerator.
        CredentialsError: There is no account.
    """
    target = wish.target.absolute()
    project = (wish.project or target.parent).absolute()
    check_there(target, target.name, target.parent)  # a wrong path is the likeliest mistake, and asks nobody
    _check_sources(wish)
    check_urls(wish.notify)
    account = platform.account()
    kind = pick_accelerator(platform, wish.accelerator)
    window_s = _window(wish.window_s, platform, kind)
    name = _name(wish, names)
    out = (wish.out or _out_of(name)).absolute()
    _check_out(out)
    quotas, unknown = _quotas(platform)  # asked before anything is written
    relay_id = new_relay_id()
    bundle = make_bundle(project, str(target), home.bundle(relay_id), arguments=wish.arguments)
    order = RelayOrder(
        name=name,
        target=bundle.content.target,
        project=bundle.content.project,
        platform=platform.name,
        accelerator=kind.name,
        window_s=window_s,
        out=out,
        bundle=bundle.path,
        bundle_digest=bundle.digest,
        arguments=wish.arguments,
        environment=dict(wish.environment),
        place=dict(wish.place),
        internet=bool(wish.mirror) if wish.internet is None else wish.internet,
        datasets=wish.datasets,
        competitions=wish.competitions,
        models=wish.models,
        when_exhausted=wish.when_exhausted,
        mirror=wish.mirror,
        notify=wish.notify,
        expect_s=wish.expect_s,
        account="" if platform.name == "local" else account,
    )
    relay = Relay(relay_id, order, "active", "", revision=0, created_s=now_s)
    return Opening(relay, bundle, account, kind, quotas, (*bundle.content.notes, *_notes(wish), *unknown))


def discard(opening: Opening, home: Home) -> None:
    """Take away what was packed for a relay that does not begin."""
    shutil.rmtree(home.relay(opening.relay.id), ignore_errors=True)


def sweep(home: Home, ids: Sequence[str], now_s: float) -> None:
    """Take away what was packed a day ago and more by a start that died before its relay was stored."""
    for folder in home.relay("x").parent.glob("*"):
        if folder.name not in ids and now_s - folder.stat().st_mtime > _ORPHAN_S:
            shutil.rmtree(folder, ignore_errors=True)


def _quotas(platform: Platform) -> tuple[tuple[Quota, ...], list[str]]:
    """Hours of the account; where it may not ask for them, a note: what is accepted is seen by trying."""
    try:
        return platform.quota(), []
    except (NotThereError, RefusedError) as error:
        return (), [f"the hours that are left are not known: {error.what}"]


def quota_of(accelerator: Accelerator, quotas: Sequence[Quota]) -> Quota | None:
    """The hours that an accelerator uses; None where nothing is counted."""
    return next((quota for quota in quotas if quota.resource == accelerator.resource), None)


def pick_accelerator(platform: Platform, text: str | None) -> Accelerator:
    """The accelerator that the user means; the platform's first if he means none.

    Raises:
        RefusedError: The platform has none of that name, or not any more.
        ConfigError: The same, where the platform is this machine.
    """
    if text is None:
        return platform.accelerators[0]
    exact = next((each for each in platform.accelerators if each.name == text and not each.retired), None)
    if exact is not None:
        return exact
    if platform.name in ("kaggle", "emulator"):
        from perdure.platforms.kaggle.accelerators import accelerator

        return accelerator(text)
    names = ", ".join(each.name for each in platform.accelerators if not each.retired)
    raise ConfigError(f"{platform.name} has no accelerator {text!r}", hint=f"--accelerator takes {names}")


def _window(asked_s: float | None, platform: Platform, kind: Accelerator) -> float:
    most_s = platform.window_s(kind.name)
    if asked_s is not None and asked_s > most_s:
        raise ConfigError(
            f"a session on {platform.name} with {kind.name} lasts {format_duration(most_s)} at most, "
            f"got --window {format_duration(asked_s)}",
            hint="a relay takes as many sessions as it needs: leave --window out",
        )
    if asked_s is not None and asked_s < LEAST_WINDOW_S:
        raise ConfigError(
            f"a session of {format_duration(asked_s)} leaves no time to train: its start alone takes longer",
            hint='write a number and a unit, such as "60 s" for a rehearsal, or leave --window out',
        )
    return most_s if asked_s is None else asked_s


def _name(wish: Wish, names: Sequence[str]) -> str:
    if wish.name is not None:
        _check_name(wish.name)
        if wish.name in names:
            raise ConfigError(
                f"there is a relay {wish.name!r} already",
                hint=f"give this one another --name, or go on with: perdure relay watch {wish.name}",
            )
        return wish.name
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", wish.target.stem).strip("-._") or "relay"
    number = 2
    name = stem
    while name in names or (wish.out is None and _is_taken(_out_of(name))):
        name, number = f"{stem}-{number}", number + 1
    return name


def _out_of(name: str) -> Path:
    return Path("relays") / name


def _check_out(out: Path) -> None:
    """Now, and not days later when all is done."""
    if _is_taken(out):
        raise ConfigError(f"the finished run is to lie in {out}, and there is something", hint="name another --out")
    above = next(folder for folder in out.parents if os.path.lexists(folder))
    if not above.is_dir() or not os.access(above, os.W_OK):
        why = "is not to be written to" if above.is_dir() else "is no folder"
        raise ConfigError(f"the finished run is to lie in {out}, and {above} {why}", hint="name another --out")


def _is_taken(out: Path) -> bool:
    return out.exists() and (not out.is_dir() or any(out.iterdir()))


def _check_name(name: str) -> None:
    try:
        check_name(name)
    except ConfigError as error:
        raise ConfigError(error.what.replace("a run", "a relay"), hint=error.hint) from None


def _check_sources(wish: Wish) -> None:
    for flag, values, form, example in (
        ("--dataset", wish.datasets, _DATASET, "owner/slug"),
        ("--competition", wish.competitions, _COMPETITION, "titanic"),
        ("--model", wish.models, _MODEL, "owner/model/framework/variation/version"),
    ):
        for value in values:
            if not form.fullmatch(value):
                raise ConfigError(f"{flag} {value} is no name of one", hint=f"it looks like {example}")
    if wish.mirror and wish.internet is False:
        raise ConfigError("--mirror needs the network, and --no-internet forbids it", hint="leave one of them out")
    if wish.mirror and wish.mirror != "kaggle" and "://" not in wish.mirror:
        raise ConfigError(
            f"--mirror {wish.mirror} is neither kaggle nor an address", hint="such as s3://bucket/folder"
        )


def _notes(wish: Wish) -> list[str]:
    """What would travel readable, by its place; the secret itself is not shown."""
    found = [name for name, value in wish.environment.items() if _SECRET.search(name) or kind_of(value)]
    kinds = [(number, kind_of(each)) for number, each in enumerate(wish.arguments, 1)]
    found += [f"argument {number} looks like {kind} and" for number, kind in kinds if kind]
    found += ["the password in --mirror"] if _PASSWORD.search(wish.mirror) else []
    return [f"{each} travels as plain text in the private source of every session" for each in found]
