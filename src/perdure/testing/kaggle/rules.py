"""What the emulated platform is like: durations, hours, slots, sizes. Every duration is in real seconds.

The defaults are what is known of Kaggle (public documentation, and third-party measurements where that is silent);
nothing of it was tried against the real one. Tests and rehearsals take smaller numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from perdure.core.files import write_json

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Rules:
    """What the platform is like.

    Attributes:
        window_s: After which a CPU or GPU session is killed.
        tpu_window_s: After which a TPU session is.
        gpu_quota_s: GPU seconds in a period.
        tpu_quota_s: TPU seconds in a period.
        gpu_used_s: GPU seconds that were used before the emulator began, in its first period.
        refresh_every_s: Length of a period.
        gpu_slots: GPU sessions at once.
        cpu_slots: CPU sessions at once.
        tpu_slots: TPU sessions at once.
        disk_bytes: What the working folder may hold.
        source_bytes: From which size on a source is refused.
        queue_s: How long a session waits before it runs.
        dataset_ready_s: How long a version of a data set is processed.
        url_s: How long an address of a file is good.
        owner: Name of the account.
        pace: How often a client may ask: fields of ``perdure.platforms.protocol.Pace``.
    """

    window_s: float = 12 * _HOUR_S
    tpu_window_s: float = 9 * _HOUR_S
    gpu_quota_s: float = 30 * _HOUR_S
    tpu_quota_s: float = 20 * _HOUR_S
    gpu_used_s: float = 0.0
    refresh_every_s: float = 7 * 24 * _HOUR_S
    gpu_slots: int = 2
    cpu_slots: int = 5
    tpu_slots: int = 1
    disk_bytes: int = 20_000_000_000
    source_bytes: int = 1_000_000
    queue_s: float = 0.0
    dataset_ready_s: float = 0.5
    url_s: float = _HOUR_S
    owner: str = "emulated-user"
    pace: Mapping[str, float] = field(
        default_factory=lambda: {
            "poll_s": 0.3,
            "settle_s": 3.0,
            "lag_s": 5.0,
            "retry_s": 0.5,
            "retry_most_s": 3.0,
        }
    )


def write_rules(path: Path, rules: Rules) -> None:
    """Keep the rules, so that an emulator that is started again goes on with them."""
    write_json(path, asdict(rules))


def read_rules(path: Path) -> Rules:
    """The rules that were kept; the defaults where there are none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Rules()
    return Rules(**known(Rules, values))


def known(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values that are fields of a data class."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in values.items() if name in names}
