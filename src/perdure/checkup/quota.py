"""How many of the week's accelerator hours are left: the only thing that the doctor asks a platform for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from perdure.checkup.checks import Check, State
from perdure.checkup.gather import Unknown
from perdure.core.errors import PerdureError
from perdure.core.intervals import format_duration
from perdure.core.settings import REACH
from perdure.platforms.kaggle.client import Client
from perdure.platforms.kaggle.credentials import credentials_source
from perdure.platforms.kaggle.platform import KagglePlatform
from perdure.platforms.protocol import Quota

ASK_S = 8.0
"""How long Kaggle may take to answer."""

START_S = 10.0
"""How long its client may take to be loaded."""

BY_HAND = "`perdure quota`, or kaggle.com > Settings > Quotas"

_LITTLE_S = 1800.0


def look_at_quota(environment: Mapping[str, str], platform: str) -> tuple[Quota, ...] | str:
    """Ask Kaggle, where that is possible without asking the user anything.

    Args:
        environment: Environment variables.
        platform: Where we are.

    Returns:
        The hours; a reason why they were not asked for; an empty reason where they are nobody's concern: without
        credentials, outside Kaggle.
    """
    if credentials_source(environment) is None:
        return "there are no credentials for Kaggle's interface" if platform == "kaggle" else ""
    if environment.get(REACH) == "off":
        return f"{REACH} is off" if platform == "kaggle" else ""
    if importlib.util.find_spec("kaggle") is None:
        return "Kaggle's client is not installed: pip install 'perdure[kaggle]'"
    client = Client(environment, limit_s=ASK_S, start_limit_s=START_S)
    try:
        client.hello()
        return KagglePlatform(client).quota()
    except PerdureError as error:
        return str(getattr(error, "what", error))
    finally:
        client.close()


def quota_checks(answer: tuple[Quota, ...] | str | Unknown) -> list[Check]:
    """The line about the week's hours; none where they are nobody's concern."""
    if isinstance(answer, Unknown):
        answer = answer.why
    if answer == "":
        return []
    if isinstance(answer, str):
        return [Check("quota", "note", f"not looked at: {answer}", BY_HAND)]
    if not answer:
        return [Check("quota", "note", "Kaggle counts no hours for this account", BY_HAND)]
    return [_hours_check(answer)]


def _hours_check(hours: Sequence[Quota]) -> Check:
    fact = "; ".join(_shown(each) for each in hours)
    refresh_s = next((each.refresh_at_s for each in hours if each.refresh_at_s is not None), None)
    when = (
        "" if refresh_s is None else f"; refreshed {datetime.fromtimestamp(refresh_s, UTC):%a %Y-%m-%d %H:%M} UTC"
    )
    details = {each.resource: _details(each) for each in hours} | {"refresh_at_s": refresh_s}
    gpu = next((each for each in hours if each.resource == "gpu"), None)
    short = gpu is not None and gpu.left_s < _LITTLE_S
    state: State = "warning" if short else "ok"
    fix = "train on the processor until then, or wait" if short else ""
    return Check("quota", state, fact + when, fix, details)


def _shown(quota: Quota) -> str:
    name = quota.resource.upper()
    reserved = f", {format_duration(quota.reserved_s)} reserved" if quota.reserved_s else ""
    left = format_duration(quota.left_s) if quota.left_s >= 1 else "none"
    return f"{name}: {left} of {format_duration(quota.allowed_s)} left{reserved}"


def _details(quota: Quota) -> dict[str, float]:
    return {
        "used_s": quota.used_s,
        "reserved_s": quota.reserved_s,
        "allowed_s": quota.allowed_s,
        "left_s": quota.left_s,
    }
