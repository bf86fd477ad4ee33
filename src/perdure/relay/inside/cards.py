"""Is the accelerator the one that was asked for? Looked at first, so that a wrong one costs no hours."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from perdure.core.say import warn
from perdure.hardware.cards import Cards, read_cards
from perdure.hardware.fixes import fix
from perdure.relay.inside.order import Asked
from perdure.relay.inside.refusing import Refused

ANSWER_MOST_S = 30.0
"""A driver that hangs is given this long."""

_TPU_VARIABLES = ("TPU_NAME", "TPU_ACCELERATOR_TYPE", "ISTPUVM")
_TPU_DEVICES = ("accel*", "vfio/[0-9]*")


def check_accelerator(
    asked: Asked,
    platform: str,
    environment: Mapping[str, str] = os.environ,
    read: Callable[[], Cards] = read_cards,
    answer_most_s: float = ANSWER_MOST_S,
) -> list[str]:
    """Compare the accelerator with the one that was asked for.

    Args:
        asked: What the session was submitted with.
        platform: Where it runs, for the words of the remedy.
        environment: Where a TPU is announced.
        read: Reads the cards.
        answer_most_s: How long that may take.

    Returns:
        Names of the cards that are there; none were looked for where none were asked for.

    Raises:
        Refused: It is another one, or none.
    """
    if asked.resource == "tpu":
        return _check_tpu(asked, platform, environment, _read_within(read, answer_most_s))
    if not asked.cards:
        return []
    cards = _read_within(read, answer_most_s)
    if cards is None:
        raise Refused(
            f"{asked.name} was asked for, and the NVIDIA driver gave no answer in {answer_most_s:.0f} s: "
            + fix("all-lost", platform)
        )
    names = [card.name for card in cards.cards if not card.lost]
    if len([name for name in names if asked.card in name]) >= asked.cards:
        return names
    if not names:
        why = cards.trouble or "the NVIDIA driver shows no card"
        raise Refused(f"{asked.name} was asked for, and {why}: {fix(cards.trouble_code or 'no-cards', platform)}")
    want = f"{asked.cards} x {asked.card}" if asked.card else f"{asked.cards} cards"
    have = " + ".join(names)
    raise Refused(f"{asked.name} ({want}) was asked for, and this session has {have}: {fix('not-given', platform)}")


def _read_within(read: Callable[[], Cards], most_s: float) -> Cards | None:
    """The cards; None if the driver gives no answer in time. Its thread then stays behind."""
    found: list[Cards] = []
    thread = threading.Thread(target=lambda: found.append(read()), name="perdure-cards", daemon=True)
    thread.start()
    thread.join(most_s)
    return found[0] if found else None


def _check_tpu(asked: Asked, platform: str, environment: Mapping[str, str], cards: Cards | None) -> list[str]:
    """By the platform's variables, or by devices. That none is seen proves nothing, so it is only said."""
    told = next((environment[name] for name in _TPU_VARIABLES if environment.get(name)), "")
    if told or any(any(Path("/dev").glob(pattern)) for pattern in _TPU_DEVICES):
        return [told or "TPU"]
    names = [card.name for card in cards.cards if not card.lost] if cards else []
    if names:
        raise Refused(
            f"{asked.name} was asked for, and this session has {' + '.join(names)}: {fix('not-given', platform)}"
        )
    warn(f"{asked.name} was asked for, and nothing here shows that there is one")
    return []
