"""The order of a session: made on the laptop, read inside the session. JSON, format 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.core.errors import RelayError
from perdure.platforms.protocol import Accelerator
from perdure.platforms.source import CARGO_NAME
from perdure.relay.records import Relay

FORMAT = 1

MARGIN_MOST_S = 120.0
"""Time kept free at the end of a window for the platform to take the output, and for the marker."""

_MARGIN_SHARE = 1 / 15

MOUNT_WAIT_S = 120.0
"""How long a session waits for inputs that are mounted late (seen by users: helmet-png/m45-imf-analysis, pull
requests 18 and 158; how late is not known)."""

MIRROR_EVERY_S = 1800.0


@dataclass(frozen=True)
class Expected:
    """A checkpoint that a session must find before it may begin.

    Attributes:
        run: Name of its run.
        step: Its step.
        checkpoint: Its name.
    """

    run: str
    step: int
    checkpoint: str


@dataclass(frozen=True)
class Asked:
    """The accelerator that a session was submitted with.

    Attributes:
        name: By the name that users know.
        cards: How many NVIDIA cards it has.
        card: A part of what NVML calls one.
        resource: ``"gpu"``, ``"tpu"``, or empty for the processor alone.
    """

    name: str = "none"
    cards: int = 0
    card: str = ""
    resource: str = ""


@dataclass(frozen=True)
class InsideOrder:
    """What one session is to do.

    Attributes:
        relay: Id of the relay.
        session: Number of the session.
        slug: Its name on the platform.
        target: Script or notebook, below the project.
        arguments: Its arguments.
        environment: Variables for it.
        accelerator: What it is to run on.
        window_s: When the platform ends it, counted from its start.
        margin_s: How much earlier the script must have ended.
        mirror_to: Where checkpoints go while it runs: empty, ``"kaggle"``, or an fsspec URL.
        mirror_every_s: Seconds between two of them.
        expects: Checkpoints that must be there.
        internet: Whether it may reach the network.
        mount_wait_s: How long inputs are waited for.
        older: Whether an older checkpoint that is whole will do where the expected one is damaged: a fresh session
            was tried already.
    """

    relay: str
    session: int
    slug: str
    target: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    accelerator: Asked = field(default_factory=Asked)
    window_s: float = 12 * 3600.0
    margin_s: float = MARGIN_MOST_S
    mirror_to: str = ""
    mirror_every_s: float = MIRROR_EVERY_S
    expects: tuple[Expected, ...] = ()
    internet: bool = False
    mount_wait_s: float = MOUNT_WAIT_S
    older: bool = False


def session_order(
    relay: Relay, number: int, accelerator: Accelerator, window_s: float, *, slug: str = ""
) -> dict[str, Any]:
    """The order of a relay's next session.

    Args:
        relay: The relay; its standing decides what the session must find.
        number: Number of the session.
        accelerator: What it is submitted with.
        window_s: Its window.
        slug: Its name on the platform; by default that of the record with this number.

    Returns:
        JSON-able.
    """
    record = next((item for item in relay.sessions if item.number == number), None)
    order = relay.order
    return {
        "format": FORMAT,
        "relay": relay.id,
        "session": number,
        "slug": slug or (record.slug if record else ""),
        "target": order.target,
        "arguments": list(order.arguments),
        "environment": dict(order.environment),
        "accelerator": {
            "name": accelerator.name,
            "cards": accelerator.cards,
            "card": accelerator.card,
            "resource": accelerator.resource or "",
        },
        "window_s": window_s,
        "margin_s": margin_s(window_s),
        "mirror": {"to": order.mirror, "every_s": min(MIRROR_EVERY_S, window_s / 8)},
        "expects": [
            {"run": source.stand.name, "step": source.stand.step, "checkpoint": source.stand.checkpoint}
            for source in relay.standing.runs
            if source.stand.checkpoint
        ],
        "internet": order.internet,
        "mount_wait_s": min(MOUNT_WAIT_S, window_s / 8),
        "older": relay.standing.last == "refused",
        "cargo": {"name": CARGO_NAME, "digest": order.bundle_digest},
    }


def margin_s(window_s: float) -> float:
    """Seconds that a session keeps free at the end of its window."""
    return min(MARGIN_MOST_S, window_s * _MARGIN_SHARE)


def mirror_slug(relay_id: str) -> str:
    """Name of the private data set that holds a relay's mirrored checkpoints."""
    return f"perdure-{relay_id}-mirror"


def read_order(path: Path) -> InsideOrder:
    """The order in a file.

    Raises:
        RelayError: It cannot be read, or it is no order that is understood here.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}, this Perdure knows {FORMAT}")
        return _order(value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RelayError(f"{path} is no order of a session: {error!r}") from error


def _order(value: Mapping[str, Any]) -> InsideOrder:
    mirror, asked = value.get("mirror") or {}, value.get("accelerator") or {}
    return InsideOrder(
        relay=str(value["relay"]),
        session=int(value["session"]),
        slug=str(value["slug"]),
        target=str(value["target"]),
        arguments=tuple(str(word) for word in value.get("arguments") or ()),
        environment={str(name): str(text) for name, text in (value.get("environment") or {}).items()},
        accelerator=Asked(
            str(asked.get("name", "none")),
            int(asked.get("cards", 0)),
            str(asked.get("card", "")),
            str(asked.get("resource") or ""),
        ),
        window_s=float(value["window_s"]),
        margin_s=float(value["margin_s"]),
        mirror_to=str(mirror.get("to") or ""),
        mirror_every_s=float(mirror.get("every_s") or MIRROR_EVERY_S),
        expects=tuple(
            Expected(str(entry["run"]), int(entry["step"]), str(entry["checkpoint"]))
            for entry in value.get("expects") or ()
        ),
        internet=bool(value.get("internet")),
        mount_wait_s=float(value.get("mount_wait_s", MOUNT_WAIT_S)),
        older=bool(value.get("older")),
    )
