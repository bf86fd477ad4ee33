"""A fake ``nvidia-smi``: ``-L``, ``--query-gpu`` and the plain table, from the same scene as the fake NVML."""

from __future__ import annotations

import argparse
import sys

from perdure.hardware.cards import Card, Cards, read_cards

EXIT_NO_DRIVER = 9
"""What the real one exits with when it cannot reach the driver (man nvidia-smi, RETURN VALUE)."""


def main(arguments: list[str] | None = None) -> int:
    """Print what the real one would, as far as Perdure's tests need it."""
    parser = argparse.ArgumentParser(prog="nvidia-smi")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("--query-gpu", default="")
    parser.add_argument("--format", default="csv")
    asked = parser.parse_args(arguments)
    cards = read_cards({})  # nvidia-smi does not heed CUDA_VISIBLE_DEVICES
    if cards.trouble_code == "no-cards":
        print("No devices were found")
        return 6
    if cards.trouble:
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n"
        )
        return EXIT_NO_DRIVER
    lines = _lines(cards, asked.query_gpu, "noheader" in asked.format, asked.list_gpus)
    print("\n".join(lines))
    return 0


def _lines(cards: Cards, query: str, bare: bool, listed: bool) -> list[str]:
    if query:
        fields = [word.strip() for word in query.split(",")]
        rows = [", ".join(_field(cards, card, word) for word in fields) for card in cards.cards]
        return rows if bare else [", ".join(fields), *rows]
    if listed:
        return [f"GPU {card.index}: {card.name} (UUID: {card.uuid})" for card in cards.cards]
    head = f"| NVIDIA-SMI {cards.driver}   Driver Version: {cards.driver}   CUDA Version: {cards.cuda} |"
    return [head, *(f"| {card.index}  {card.name}  {_memory(card)} |" for card in cards.cards)]


def _field(cards: Cards, card: Card, word: str) -> str:
    values = {
        "index": str(card.index),
        "name": card.name,
        "uuid": card.uuid,
        "driver_version": cards.driver,
        "memory.total": _memory(card),
        "compute_cap": "{}.{}".format(*card.capability) if card.capability else "[N/A]",
    }
    return values.get(word, "[N/A]")


def _memory(card: Card) -> str:
    return "[N/A]" if card.memory_bytes is None else f"{card.memory_bytes >> 20} MiB"


if __name__ == "__main__":
    sys.exit(main())
