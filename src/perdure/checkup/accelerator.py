"""The accelerator that was asked for against the one that is here."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.checkup.checks import Check, counted
from perdure.core.errors import ConfigError
from perdure.hardware.cards import Card
from perdure.hardware.fixes import fix
from perdure.hardware.known import ACCELERATORS, Accelerator

METADATA = "kernel-metadata.json"
"""What a push to Kaggle is described by; ``machine_shape`` names the accelerator."""

METADATA_FOLDERS = ("/kaggle/working", "/kaggle/src")
GPU = "gpu"
TPU_VARIABLES = ("TPU_ACCELERATOR_TYPE", "TPU_NAME", "ISTPUVM")


@dataclass(frozen=True)
class Asked:
    """What was asked for.

    Attributes:
        name: ``"gpu"``, or the platform's name of an accelerator; empty if nothing was.
        where: Who asked.
        note: What is odd about it; empty if nothing is.
    """

    name: str = ""
    where: str = ""
    note: str = ""


def check_required(require: str | None) -> str:
    """The word of ``--require``, as it is written in the list.

    Raises:
        ConfigError: It is neither ``"gpu"`` nor an accelerator that is known.
    """
    if not require:
        return ""
    names = {GPU: GPU, **{name.lower(): name for name in ACCELERATORS}}
    if require.lower() in names:
        return names[require.lower()]
    close = difflib.get_close_matches(require.lower(), names, 1)
    hint = f'did you mean "{names[close[0]]}"?' if close else f"one of {', '.join(names.values())}"
    raise ConfigError(f"no accelerator is called {require!r}", hint=hint)


def is_card(required: str) -> bool:
    """Whether what is required is a card, and no TPU."""
    return required == GPU or (required in ACCELERATORS and bool(ACCELERATORS[required].card))


def asked_in_metadata() -> Asked:
    """What the description of this session asks for, where it lies in a folder of the session."""
    for folder in (os.getcwd(), *METADATA_FOLDERS):
        path = Path(folder) / METADATA
        try:
            facts = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(facts, dict):
            return _asked(facts, path)
    return Asked()


def _asked(facts: dict[str, object], path: Path) -> Asked:
    shape = facts.get("machine_shape")
    if isinstance(shape, str) and shape:
        known = {name.lower(): name for name in ACCELERATORS}.get(shape.lower())
        return Asked(known or shape, str(path), "" if known else f"no accelerator is known as {shape!r}")
    on = {key for key in ("enable_gpu", "enable_tpu") if str(facts.get(key)).lower() == "true"}
    if "enable_gpu" in on:
        return Asked(GPU, str(path), "it names no machine_shape, so that the platform chose the card")
    return Asked("", str(path))


def accelerator_check(
    required: str,
    asked: Asked,
    cards: Sequence[Card],
    environment: Mapping[str, str],
    platform: str,
    trouble_code: str = "no-cards",
) -> Check | None:
    """The line; None where nothing was asked for and no platform lends anything.

    Args:
        required: What has to be here, from ``check_required``.
        asked: What the description of the session asks for.
        cards: The cards that can be used.
        environment: Where a TPU shows itself.
        platform: Where this is.
        trouble_code: Why no card can be used, if none can.
    """
    if required:
        asked = Asked(required, "--require")
    elif platform != "kaggle":  # a description that lies here says nothing about this machine
        return None
    given = _given(cards, environment)
    details = {"asked": asked.name, "where": asked.where, "given": given}
    wanted = ACCELERATORS.get(asked.name)
    if wanted is None:
        return _any_card(asked, given, cards, fix(trouble_code, platform), details)
    if _fits(wanted, cards, environment):
        return Check("accelerator", "ok", f"{given}: {wanted.shown}, as asked", details=details)
    fact = f"asked for {wanted.shown} ({wanted.name}), got {given}"
    if not wanted.retired:
        code = "not-given" if cards else trouble_code
        return Check("accelerator", "failed", fact, fix(code, platform), details)
    fact = f"{fact}: it cannot be had any more, since {wanted.retired}"
    instead = ACCELERATORS.get(wanted.instead)
    if required or instead is None or not _fits(instead, cards, environment):
        return Check("accelerator", "failed", fact, _name_it(wanted.instead), details)
    return Check("accelerator", "warning", f"{fact}; this is what comes instead", _name_it(instead.name), details)


def _any_card(
    asked: Asked, given: str, cards: Sequence[Card], remedy: str, details: Mapping[str, object]
) -> Check | None:
    if asked.name == GPU and not cards:
        fact = f"a GPU was asked for, got {given}"
        return Check("accelerator", "failed", fact, remedy, details)
    if asked.note:
        fact = f"{given}; {asked.note} ({asked.where})"
        return Check("accelerator", "warning", fact, _name_it("NvidiaTeslaT4"), details)
    known = [each for each in ACCELERATORS.values() if each.card and each.count and _fits(each, cards, {})]
    shown = f": {known[0].shown} in the menu" if known else ""
    has_any = bool(cards) or given.startswith("TPU")
    return Check("accelerator", "ok" if has_any else "note", f"{given}{shown}", details=details)


def _name_it(name: str) -> str:
    """The fix for a name that is gone or missing."""
    name = name if name in ACCELERATORS else "NvidiaTeslaT4"
    return f'write "machine_shape": "{name}" ({ACCELERATORS[name].shown}), and look here at what came'


def _fits(wanted: Accelerator, cards: Sequence[Card], environment: Mapping[str, str]) -> bool:
    if not wanted.card:
        return tpu(environment) != ""
    name = re.compile(rf"\b{re.escape(wanted.card)}\b", re.IGNORECASE)
    count_fits = len(cards) == wanted.count if wanted.count else bool(cards)
    return count_fits and all(name.search(card.name) for card in cards)


def _given(cards: Sequence[Card], environment: Mapping[str, str]) -> str:
    if cards:
        return counted([card.name for card in cards])
    return tpu(environment) or "the CPU, with no accelerator at all"


def tpu(environment: Mapping[str, str]) -> str:
    """The TPU of this session; empty without one."""
    value = next((environment[name] for name in TPU_VARIABLES if environment.get(name)), "")
    return f"TPU {value}" if value else ""
