"""The driver and the cards, a line each, and which numbers they compute fast with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perdure.checkup.checks import Check, State
from perdure.checkup.gather import Unknown
from perdure.core.intervals import format_bytes, format_number
from perdure.hardware.cards import Card, Cards
from perdure.hardware.fixes import fix
from perdure.hardware.known import precision
from perdure.hardware.probed import Probe

ABSENT = frozenset({"no-library", "no-driver", "no-cards"})
"""Codes of a machine that may simply have no card."""

MUCH_USED = 0.5
"""Share of a card's memory that is held before a training has begun."""

FREE_MEMORY = "end what holds the card's memory (nvidia-smi lists it); in a notebook restart its kernel"

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib64-nvidia", "/usr/lib/x86_64-linux-gnu", "/usr/lib/wsl/lib")
"""Where hosts put the driver's libraries; Kaggle and Colab name theirs in ``LD_LIBRARY_PATH`` only."""


def driver_check(cards: Cards | Unknown, expected: str, platform: str, *, may_lack: bool = False) -> Check:
    """The driver, and why no card can be used if none can.

    Args:
        cards: What NVML says.
        expected: Why a card is expected here; empty if none is.
        platform: Where this is.
        may_lack: A machine like this may well have no card.
    """
    if isinstance(cards, Unknown):
        return Check("driver", "failed", f"NVML gives no answer: {cards.why}", fix("nvml", platform))
    details = {
        "driver": cards.driver,
        "cuda": cards.cuda,
        "trouble": cards.trouble_code,
        "notes": list(cards.notes),
    }
    if cards.trouble:
        state, remedy = _state_of(cards.trouble_code, expected, may_lack), fix(cards.trouble_code, platform)
        folder = _library_folder() if cards.trouble_code == "no-library" and expected else None
        if folder is not None:
            remedy = f"export LD_LIBRARY_PATH={folder} (it is not set in this shell), then start Python anew"
        return Check("driver", state, cards.trouble, remedy if state != "note" else "", details)
    fact = f"{cards.driver or 'of unknown version'}, serves CUDA up to {cards.cuda or 'an unknown version'}"
    if cards.notes:
        return Check("driver", "note", f"{fact}; {'; '.join(cards.notes)}", details=details)
    return Check("driver", "ok", fact, details=details)


def _state_of(code: str, expected: str, may_lack: bool) -> State:
    if expected or code not in ABSENT | {"hidden"}:
        return "failed"
    return "note" if may_lack or code == "hidden" else "warning"


def _library_folder() -> Path | None:
    """Where the driver's library is although it was not found."""
    return next((Path(each) for each in LIBRARY_FOLDERS if (Path(each) / LIBRARY).exists()), None)


def unwatched(driver: Check, *, rocm: bool) -> Check:
    """The line of the driver where a framework computes on a card all the same.

    A container may be given CUDA without NVML; a card of AMD has no NVML.
    """
    fact = f"{driver.fact}; a framework computes on a card all the same, but nothing can watch it"
    if rocm:
        return replace(driver, state="note", fact=fact, fix="")
    return replace(
        driver, state="warning", fact=fact, fix="start the container with NVIDIA_DRIVER_CAPABILITIES=all"
    )


def card_checks(cards: Cards | Unknown, platform: str) -> list[Check]:
    """A line for each card."""
    if isinstance(cards, Unknown):
        return []
    return [_card_check(card, platform) for card in cards.cards]


def _card_check(card: Card, platform: str) -> Check:
    name, number = f"card {card.index}", card.visible_as
    details = {
        "index": card.index,
        "uuid": card.uuid,
        "name": card.name,
        "memory_bytes": card.memory_bytes,
        "used_bytes": card.used_bytes,
        "capability": list(card.capability) if card.capability else None,
        "visible_as": number,
        "mig": card.mig,
        "slices": [{"uuid": each.uuid, "name": each.name, "visible_as": each.visible_as} for each in card.slices],
        "lost": card.lost,
    }
    fact = ", ".join(part for part in (card.name or "of unknown model", _memory(card), _capability(card)) if part)
    if card.lost:
        return Check(name, "failed", f"{fact}: does not answer ({card.lost})", fix("all-lost", platform), details)
    if card.mig:
        return Check(name, "ok", f"{fact}, in slices: {_slices(card)}", details=details)
    if number is None:
        return Check(name, "note", f"{fact}, hidden by CUDA_VISIBLE_DEVICES", details=details)
    fact = f"{fact}, cuda:{number}"
    if card.memory_bytes and card.used_bytes and card.used_bytes > MUCH_USED * card.memory_bytes:
        held = f"{fact}, but {format_bytes(card.used_bytes)} of its memory are in use"
        return Check(name, "warning", held, FREE_MEMORY, details)
    return Check(name, "ok", fact, details=details)


def _memory(card: Card) -> str:
    return format_bytes(card.memory_bytes) if card.memory_bytes else ""


def _capability(card: Card) -> str:
    return "compute capability {}.{}".format(*card.capability) if card.capability else ""


def _slices(card: Card) -> str:
    shown = [
        f"{each.name or each.uuid} ({'hidden' if each.visible_as is None else f'cuda:{each.visible_as}'})"
        for each in card.slices
    ]
    return ", ".join(shown) or "none is made"


def precision_checks(cards: Cards | Unknown, torch: Probe | None) -> list[Check]:
    """Which numbers to train in, once for each model of card, with speeds where they were measured."""
    if isinstance(cards, Unknown):
        return []
    models = {
        (card.name, card.capability): card
        for card in cards.visible
        if card.capability is not None and not card.lost
    }
    checks = []
    for (name, capability), _ in models.items():
        assert capability is not None
        known = precision(capability, name)
        speeds = _speeds(torch, name)
        measured = f"; measured here: {_shown(speeds)}" if speeds else ""
        details = {"card": name, "fp16": known.fp16, "bf16": known.bf16, "tf32": known.tf32, "tflops": dict(speeds)}
        fact = f"{name}: {known.advice}, since {known.reason.replace(name, 'it', 1)}{measured}"
        checks.append(Check("precision", "note", fact, details=details))
    return checks


def _speeds(torch: Probe | None, name: str) -> Mapping[str, float]:
    devices = torch.devices if torch is not None else ()
    return next((device.speeds for device in devices if device.name == name and device.speeds), {})


def _shown(speeds: Mapping[str, float]) -> str:
    return ", ".join(f"{dtype} {format_number(speed)} TFLOP/s" for dtype, speed in speeds.items())


def usable(cards: Cards | Unknown) -> Sequence[Card]:
    """The cards that a framework should see."""
    return () if isinstance(cards, Unknown) else [card for card in cards.visible if not card.lost]
