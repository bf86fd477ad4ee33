"""Which cards CUDA shows to a process, and in which order: the rules of ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"\s*([+-]?\d+)")


def visible_order(setting: str | None, uuids: Sequence[str]) -> list[int]:
    """The cards that a process sees, in its order, as positions in ``uuids``.

    The rules are CUDA's (CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "Device
    Enumeration"), with what they leave open as ``torch.cuda`` reads it: the first entry that names no card ends
    the list, an entry given twice makes it empty, a number may have other characters after it.

    Args:
        setting: The value of ``CUDA_VISIBLE_DEVICES``; None where it is not set: all cards.
        uuids: Own names of all cards, in CUDA's order.
    """
    if setting is None:
        return list(range(len(uuids)))
    kind = next((prefix for prefix in ("GPU-", "MIG-") if setting.startswith(prefix)), "")
    chosen: list[int] = []
    entries: list[str | int] = []
    for word in setting.split(","):
        entry: str | int = word if kind else _number(word)
        if entry in entries:
            return []
        if entry < 0 if isinstance(entry, int) else not entry.startswith(kind):
            break
        entries.append(entry)
    for entry in entries:
        card = entry if isinstance(entry, int) else _named(entry, uuids)
        if card is None or card >= len(uuids):
            break
        if card in chosen:
            return []
        chosen.append(card)
    return chosen


def _number(word: str) -> int:
    """The number that a word begins with; -1 if it begins with none."""
    match = _NUMBER.match(word)
    return int(match.group(1)) if match else -1


def _named(prefix: str, uuids: Sequence[str]) -> int | None:
    """The one card whose name begins so; None if there is none, or more than one."""
    found = [position for position, uuid in enumerate(uuids) if uuid.startswith(prefix)]
    return found[0] if len(found) == 1 else None
