"""Which cards are there, what they are, and under which numbers a framework sees them. NVML is asked, never CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """A part of a card in MIG mode; for a framework it is a card.

    Attributes:
        uuid: Its own name: ``"MIG-..."``.
        name: Its model: ``"NVIDIA A100-SXM4-40GB MIG 1g.5gb"``.
        memory_bytes: What it has; None if NVML does not say.
        visible_as: Its number for a framework in this process; None if it is hidden.
    """

    uuid: str
    name: str
    memory_bytes: int | None = None
    visible_as: int | None = None


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
            ``"nvml"`` (another error); empty if there is none.
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
    return Cards(trouble="NVML was not asked", trouble_code="nvml")
