"""Which cards are there, and under which numbers a framework sees them. NVML is asked, never CUDA."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perdure.hardware.nvml import Answer, Nvml, Refusal, open_nvml
from perdure.hardware.order import visible_order


@dataclass(frozen=True)
class Slice:
    """A part of a card in MIG mode; for a framework it is a card.

    Attributes:
        uuid: Its own name: ``"MIG-..."``.
        name: Its model: ``"NVIDIA A100-SXM4-40GB MIG 1g.5gb"``.
        memory_bytes: What it has; None if NVML does not say.
        visible_as: Its number for a framework in this process; None if it is hidden.
        old_name: Its name as drivers before R470 gave it: ``"MIG-GPU-.../1/0"``.
    """

    uuid: str
    name: str
    memory_bytes: int | None = None
    visible_as: int | None = None
    old_name: str = ""


@dataclass(frozen=True)
class Card:
    """One card; a field is None where NVML did not say.

    Attributes:
        index: Its number in NVML, by PCI address.
        uuid: Its own name: ``"GPU-..."``.
        name: Its model.
        memory_bytes: What it has.
        capability: Its compute capability: ``(7, 5)``.
        visible_as: Its number for a framework in this process (``cuda:N``); None if it is hidden.
        mig: It is cut into slices, and frameworks see those.
        slices: The slices.
        lost: It does not answer; the error in words, empty if it does.
        used_bytes: Memory in use now, by anyone.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    visible_as: int | None = None
    mig: bool = False
    slices: tuple[Slice, ...] = ()
    lost: str = ""
    used_bytes: int | None = None


@dataclass(frozen=True)
class Cards:
    """The cards of this machine.

    Attributes:
        driver: Version of the driver; empty if unknown.
        cuda: Newest CUDA that the driver serves: ``"12.8"``; empty if unknown.
        cards: All cards, by NVML's number, hidden ones too.
        trouble: Why no card can be used, in one sentence; empty if one can.
        trouble_code: The same for programs: ``"no-library"``, ``"no-driver"``, ``"version-mismatch"``,
            ``"no-permission"``, ``"no-cards"``, ``"all-lost"``, ``"hidden"`` (by ``CUDA_VISIBLE_DEVICES``),
            ``"no-slices"`` (MIG mode without one), ``"nvml"`` (another error); empty if there is none.
        notes: What could not be read, or may not be as it looks; one sentence each.
        order_known: Whether ``visible_as`` is certain; it is not where cards of several models are counted in
            CUDA's own order (``CUDA_DEVICE_ORDER``).
    """

    driver: str = ""
    cuda: str = ""
    cards: tuple[Card, ...] = ()
    trouble: str = ""
    trouble_code: str = ""
    notes: tuple[str, ...] = ()
    order_known: bool = True

    @property
    def visible(self) -> tuple[Card, ...]:
        """The cards that a framework in this process sees, in its order."""
        seen = [card for card in self.cards if card.visible_as is not None]
        return tuple(sorted(seen, key=lambda card: card.visible_as or 0))


def read_cards(environment: Mapping[str, str] | None = None) -> Cards:
    """Read the cards by NVML. Trouble with NVML is told in the result, never raised.

    Args:
        environment: Where ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` are looked up; the process's own by
            default.
    """
    nvml = open_nvml()
    if isinstance(nvml, Refusal):
        return Cards(trouble=nvml.sentence, trouble_code=nvml.code)
    try:
        cards = _Reading(nvml).cards()
    finally:
        nvml.close()
    if cards.trouble:
        return cards
    return _with_visible(cards, os.environ if environment is None else environment)


class _Reading:
    """One reading; collects what could not be read."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._notes: list[str] = []

    def cards(self) -> Cards:
        """All cards, none of them visible yet."""
        driver = self._get("the driver's version", "SystemGetDriverVersion") or ""
        cuda = self._get("the driver's CUDA version", "SystemGetCudaDriverVersion_v2") or 0
        count = self._nvml.ask("DeviceGetCount")
        found = tuple(self._card(index) for index in range(count.value or 0))
        trouble, code = "", ""
        if count.error:
            trouble, code = f"the NVIDIA driver cannot count the cards: {count.error}", "nvml"
        elif not found:
            trouble, code = f"the NVIDIA driver runs ({driver}), but there is no card", "no-cards"
        elif all(card.lost for card in found):
            trouble, code = f"no card answers: {found[0].lost}", "all-lost"
        shown = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
        return Cards(str(driver), shown, found, trouble, code, tuple(self._notes))

    def _get(self, what: str, function: str, *arguments: Any) -> Any:
        """A value, or None and a note."""
        answer = self._nvml.ask(function, *arguments)
        if answer.error:
            self._note(what, answer)
        return answer.value

    def _note(self, what: str, answer: Answer) -> None:
        self._notes.append(f"the NVIDIA driver does not tell {what}: {answer.error}")

    def _card(self, index: int) -> Card:
        handle = self._nvml.ask("DeviceGetHandleByIndex", index)
        uuid = self._nvml.ask("DeviceGetUUID", handle.value) if not handle.error else handle
        if handle.error or uuid.lost:
            error = handle.error or uuid.error
            self._notes.append(f"card {index} does not answer: {error}")
            return Card(index, "", _nameless(index), lost=error)
        if uuid.error:
            self._note(f"the UUID of card {index}", uuid)
        memory = self._get(f"the memory of card {index}", "DeviceGetMemoryInfo", handle.value)
        mig = self._nvml.ask("DeviceGetMigMode", handle.value).value  # an error: a card that has no such mode
        return Card(
            index=index,
            uuid=str(uuid.value or ""),
            name=str(self._get(f"the model of card {index}", "DeviceGetName", handle.value) or _nameless(index)),
            memory_bytes=None if memory is None else int(memory.total),
            capability=self._get(
                f"the compute capability of card {index}", "DeviceGetCudaComputeCapability", handle.value
            ),
            mig=bool(mig and mig[0]),
            slices=self._slices(handle.value, str(uuid.value or "")) if mig and mig[0] else (),
            used_bytes=None if memory is None else int(memory.used),
        )

    def _slices(self, card: Any, card_uuid: str) -> tuple[Slice, ...]:
        slices = []
        for number in range(self._nvml.ask("DeviceGetMaxMigDeviceCount", card).value or 0):
            handle = self._nvml.ask("DeviceGetMigDeviceHandleByIndex", card, number).value
            uuid = self._nvml.ask("DeviceGetUUID", handle).value if handle is not None else None
            if uuid is None:
                continue  # numbers have gaps
            memory = self._get(f"the memory of {uuid}", "DeviceGetMemoryInfo", handle)
            instance = self._nvml.ask("DeviceGetGpuInstanceId", handle).value
            compute = self._nvml.ask("DeviceGetComputeInstanceId", handle).value
            slices.append(
                Slice(
                    uuid=str(uuid),
                    name=str(self._get(f"the model of {uuid}", "DeviceGetName", handle) or uuid),
                    memory_bytes=None if memory is None else int(memory.total),
                    old_name=f"MIG-{card_uuid}/{instance}/{compute}",
                )
            )
        return tuple(slices)


def _with_visible(cards: Cards, environment: Mapping[str, str]) -> Cards:
    """The same cards with the numbers under which a framework sees them."""
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    working = [card for card in cards.cards if not card.lost]
    part = _slice_number(working, setting)
    if part is None:
        order = visible_order(setting, [card.uuid for card in working])
        numbers = {working[position].index: number for number, position in enumerate(order)}
        shown = tuple(replace(card, visible_as=numbers.get(card.index)) for card in cards.cards)
    else:
        shown = tuple(_with_slice(card, part) for card in cards.cards)
    notes = list(cards.notes)
    known = _order_is_known(working, setting, environment.get("CUDA_DEVICE_ORDER"))
    if not known:
        models = " and ".join(dict.fromkeys(card.name for card in working))
        notes.append(
            f"{models}: CUDA counts cards of several models in an order of its own, so cuda:N may be another one "
            "than shown here; CUDA_DEVICE_ORDER=PCI_BUS_ID makes it the order of nvidia-smi"
        )
    result = replace(cards, cards=shown, notes=tuple(notes), order_known=known)
    return result if result.visible else _hidden(result, len(working), setting)


def _hidden(cards: Cards, working: int, setting: str | None) -> Cards:
    """The same cards, with why none of them is visible."""
    if setting is None:
        name = next(card.name for card in cards.cards if card.mig)
        trouble = f"{name} is in MIG mode and has no slices"
        return replace(cards, trouble=trouble, trouble_code="no-slices")
    count = "the card is" if working == 1 else f"all {working} cards are"
    return replace(cards, trouble=f'{count} hidden by CUDA_VISIBLE_DEVICES="{setting}"', trouble_code="hidden")


def _slice_number(working: list[Card], setting: str | None) -> str | None:
    """Name of the one slice that is visible, empty if none is; None where whole cards are visible.

    CUDA shows a process a single slice, and beside a slice no whole card (MIG User Guide, "Device Enumeration").
    """
    slices = [part for card in working for part in card.slices]
    if setting is not None and setting.startswith("MIG-"):
        for names in ([part.uuid for part in slices], [part.old_name for part in slices]):
            if found := visible_order(setting.split(",")[0], names):
                return slices[found[0]].uuid
        return ""
    order = visible_order(setting, [card.uuid for card in working])
    cut = [working[position] for position in order if working[position].mig]
    if not cut:
        return None
    return next((part.uuid for card in cut for part in card.slices), "")


def _with_slice(card: Card, uuid: str) -> Card:
    slices = tuple(replace(part, visible_as=0 if part.uuid == uuid else None) for part in card.slices)
    return replace(card, slices=slices, visible_as=0 if any(part.uuid == uuid for part in slices) else None)


def _order_is_known(working: list[Card], setting: str | None, order: str | None) -> bool:
    """Whether CUDA's order is NVML's, by PCI address, or does not matter."""
    by_name = setting is not None and setting.startswith(("GPU-", "MIG-"))
    names = {card.name for card in working if card.name != _nameless(card.index)}
    sizes = {card.memory_bytes for card in working if card.memory_bytes is not None}
    return by_name or order == "PCI_BUS_ID" or (len(names) < 2 and len(sizes) < 2)


def _nameless(index: int) -> str:
    """What a card is called whose model NVML does not tell."""
    return f"card {index}"
