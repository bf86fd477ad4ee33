"""What cards and loop did as plain values for files, and as short lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.core.intervals import format_bytes, format_duration
from perdure.hardware.use import CardUse, LoopTimes, Verdict


def card_facts(use: CardUse) -> dict[str, Any]:
    """A card as plain values; the fields of ``CardUse``, rounded, without those that say nothing."""
    facts = {name: round(value, 3) if isinstance(value, float) else value for name, value in vars(use).items()}
    facts["throttled_share"] = {reason: round(share, 3) for reason, share in use.throttled_share.items()}
    return {name: value for name, value in facts.items() if value not in (None, "", {})}


def loop_facts(times: LoopTimes) -> dict[str, Any]:
    """Times of the loop as plain values, seconds."""
    return {
        "steps": times.steps,
        "total_s": round(times.total_s, 3),
        "wait_s": round(times.wait_s, 3),
        "copy_s": None if times.copy_s is None else round(times.copy_s, 3),
        "save_s": round(times.save_s, 3),
        "compute_s": round(times.compute_s, 3),
    }


def verdict_facts(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain values."""
    return {
        "code": verdict.code,
        "sentence": verdict.sentence,
        "remedy": verdict.remedy,
        "evidence": {name: round(value, 3) for name, value in verdict.evidence.items()},
    }


def card_line(facts: Mapping[str, Any]) -> str:
    """A card in a few words: ``"Tesla T4 (cuda:0) 87 % busy, 6.1 of 16.1 GB, 71 °C"``."""
    place = facts.get("visible_as")
    name = f"{facts.get('name', 'card')} ({f'cuda:{place}' if place is not None else 'hidden'})"
    if facts.get("lost"):
        return f"{name} lost: {facts['lost']}"
    parts = []
    if facts.get("busy_percent") is not None:
        parts.append(f"{facts['busy_percent']:.0f} % busy")
    if facts.get("memory_peak_bytes") is not None:
        total = facts.get("memory_total_bytes")
        peak = format_bytes(facts["memory_peak_bytes"])
        parts.append(f"{peak} of {format_bytes(total)}" if total else peak)
    if facts.get("temperature_peak_c") is not None:
        parts.append(f"{facts['temperature_peak_c']:.0f} °C")
    for why, share in facts.get("throttled_share", {}).items():
        parts.append(f"slowed down {100 * share:.0f} % of the time ({why})")
    return f"{name} {', '.join(parts) or 'says nothing'}"


def loop_line(facts: Mapping[str, Any]) -> str:
    """Where the time went: ``"3 % waiting for data, 1 % copying, 1 % saving, 95 % in steps, of 12 min"``."""
    total = float(facts.get("total_s") or 0.0)
    if total <= 0:
        return ""
    names = {"wait_s": "waiting for data", "copy_s": "copying", "save_s": "saving", "compute_s": "in steps"}
    shares = [
        f"{100 * facts[key] / total:.0f} % {name}" for key, name in names.items() if facts.get(key) is not None
    ]
    return f"{', '.join(shares)}, of {format_duration(total)}"
