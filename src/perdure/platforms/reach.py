"""A platform by its name: what a new process needs to go on with a relay that another one began."""

from __future__ import annotations

import json
import os
import site
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError, PlatformError
from perdure.platforms.protocol import Pace, Platform

_NOT_THERE = ("NO_PROXY", "KAGGLE_API_TOKEN", "KAGGLE_CONFIG_DIR", "XDG_CONFIG_HOME")

PLATFORMS = ("kaggle", "local", "emulator")


def reach(name: str, place: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Platform:
    """The platform of this name. Nothing is asked of it yet.

    Args:
        name: ``"kaggle"``, ``"local"`` or ``"emulator"``.
        place: Its settings, JSON-able, without secrets. All: ``pace``, a mapping of the fields of ``Pace``. Kaggle:
            ``window_s``, if not its own. Local: see ``LocalPlatform``. Emulator: ``folder``, in which it runs.
        environment: Environment variables; those of this process if None.

    Raises:
        ConfigError: There is no platform of that name, or a setting is wrong.
        PlatformError: The emulator's folder does not say how it is reached.
    """
    env = dict(os.environ if environment is None else environment)
    if name == "kaggle":
        return _kaggle(name, place, env)
    if name == "emulator":
        return _emulator(place, env)
    if name == "local":
        return _local(place)
    raise ConfigError(f"there is no platform {name!r}", hint=f"one of {', '.join(PLATFORMS)}")


def _kaggle(name: str, place: Mapping[str, Any], environment: Mapping[str, str]) -> Platform:
    from perdure.platforms.kaggle.client import Client
    from perdure.platforms.kaggle.platform import KagglePlatform

    pace = _pace(place)
    window_s = place.get("window_s")
    poll_s = min(5.0, pace.poll_s)
    return KagglePlatform(Client(environment), name=name, pace=pace, window_s=window_s, dataset_poll_s=poll_s)


def _emulator(place: Mapping[str, Any], environment: dict[str, str]) -> Platform:
    """The emulator writes into its folder how it is reached, and its window and pace."""
    folder = Path(str(place.get("folder", "")))
    path = folder / "emulator.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        own = {str(name): str(value) for name, value in told["environment"].items()}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise PlatformError(
            f"the emulator of {folder} cannot be reached: {path} does not tell how",
            hint=f"start it: python -m perdure.testing.kaggle --folder {folder}",
        ) from error
    # Its address is a proxy's: a list of exceptions that names localhost would lead past it. And no credentials of
    # the user's may get there: their files are looked for below another home.
    kept = {name: value for name, value in environment.items() if name.upper() not in _NOT_THERE}
    own |= {"HOME": str(folder / "client"), "PYTHONUSERBASE": site.getuserbase()}
    known = {"pace": told.get("pace") or {}, "window_s": told.get("window_s")}
    return _kaggle("emulator", {**known, **place}, kept | own)


def _local(place: Mapping[str, Any]) -> Platform:
    from perdure.platforms.local_platform import from_place

    return from_place(place)


def _pace(place: Mapping[str, Any]) -> Pace:
    try:
        return Pace(**{name: float(value) for name, value in dict(place.get("pace") or {}).items()})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"pace of the platform: {error}", hint="see Pace in the reference") from error
