"""Environment variables: what ``perdure run`` and ``perdure rehearse`` tell the script's process.

They win over the arguments in the script, so that one script runs unchanged on a platform and in a rehearsal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.core.errors import ConfigError
from perdure.core.limits import Limits

ROOT = "PERDURE_ROOT"
INPUTS = "PERDURE_INPUTS"
WINDOW = "PERDURE_WINDOW"
DISK = "PERDURE_DISK"
MARGIN = "PERDURE_MARGIN"
PLATFORM = "PERDURE_PLATFORM"
STARTED = "PERDURE_SESSION_STARTED"
REPORT = "PERDURE_SESSION_REPORT"
REACH = "PERDURE_REACH"


@dataclass(frozen=True)
class Settings:
    """What the environment says; every field empty where it says nothing.

    Attributes:
        root: Folder of runs.
        inputs: Folders in which checkpoints of earlier sessions are looked for.
        limits: Limits that override everything else.
        platform: Name of the platform, instead of detecting it.
        started_s: Start of the session, on the scale of ``SystemClock.monotonic()``.
        report: File to which the session writes how each of its runs ended.
    """

    root: Path | None = None
    inputs: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)
    platform: str | None = None
    started_s: float | None = None
    report: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read them.

        Raises:
            ConfigError: A variable holds nonsense.
        """
        env = os.environ if environment is None else environment
        started = env.get(STARTED)
        try:
            started_s = float(started) if started else None
        except ValueError:
            raise ConfigError(f"{STARTED} must be seconds, got {started!r}", hint=f"unset {STARTED}") from None
        return cls(
            root=Path(env[ROOT]) if env.get(ROOT) else None,
            inputs=tuple(Path(p) for p in env.get(INPUTS, "").split(os.pathsep) if p),
            limits=_limits(env),
            platform=env.get(PLATFORM) or None,
            started_s=started_s,
            report=Path(env[REPORT]) if env.get(REPORT) else None,
        )


def _limits(env: Mapping[str, str]) -> Limits:
    values: dict[str, str] = {}
    for limit, variable in (("window", WINDOW), ("disk", DISK), ("margin", MARGIN)):
        if env.get(variable):
            values[limit] = env[variable]
            try:
                Limits(**{limit: env[variable]})
            except ConfigError as error:
                what = error.what.replace(f"limits.{limit}", variable)
                raise ConfigError(what, hint=f"{error.hint}, or unset {variable}") from None
    return Limits(**values)
