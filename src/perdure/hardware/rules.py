"""The rules behind the verdicts: one function each, with its thresholds."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.intervals import format_bytes, format_duration
from perdure.hardware import remedies
from perdure.hardware.fixes import fix
from perdure.hardware.known import precision
from perdure.hardware.use import CardUse, Circumstances, LoopTimes, Verdict

MIN_SAMPLES = 10
"""Looks at a card before anything is said about it: 20 s at the usual rate."""

IDLE_PERCENT = 10.0
"""A card below is idle: even a small model whose steps are mostly Python shows more."""

UNUSED_PERCENT = 5.0
"""A second card below does nothing for this training."""

STARVED_SHARE = 0.3
"""Share of the loop's time spent waiting for batches or copying them; below, a remedy gains little."""

WELL_FED_PERCENT = 80.0
"""A card above is busy enough, whatever the loop waits for: kernels run on while it does."""

SAVING_SHARE = 0.3
"""Above, saves explain an idle card, and how often to save is another question."""

FULL_SHARE = 0.95
OTHERS_SHARE = 0.5
OTHERS_NAMED_SHARE = 0.1
"""Memory in use by all; by other processes; by others so that they are named."""

SPARE_SHARE = 0.2
"""A card that uses less of its memory could take a larger batch."""

THROTTLED_SHARE = 0.2
"""Share of looks. Only heat and hardware count: a power cap is the normal state of a T4 at work (70 W)."""

SLOW_PRECISION_PERCENT = 50.0
SLOW_PRECISION_BYTES = 4_000_000
"""Busy enough and large enough (a million parameters) that faster numbers pay."""


def lost(card: CardUse, platform: str) -> Verdict:
    """A card that stopped answering. Said at once: there is no more evidence to come."""
    sentence = f"{_place(card)} has stopped answering: {card.lost}"
    remedy = f"the run goes on from its last checkpoint in a new session; {fix('card-lost', platform)}"
    return Verdict("card-lost", sentence, remedy, {"card": card.index, "samples": card.samples})


def beside_the_cpu(seen: Sequence[CardUse], loop: LoopTimes) -> list[Verdict]:
    """A run on the CPU with cards beside it that do nothing."""
    known = [card for card in seen if card.busy_percent is not None and card.samples >= MIN_SAMPLES]
    if not known or len(known) < len(seen) or any(_is_busy(card) for card in known):
        return []
    card = known[0]
    do = "do" if len(known) > 1 else "does"
    sentence = f"the run trains on the CPU, and {names(known)} beside it {do} nothing ({_busy(card, loop)})"
    return [Verdict("card-idle", sentence, remedies.ON_THE_CPU, _evidence(card, loop))]


def starved(main: CardUse | None, loop: LoopTimes, around: Circumstances) -> list[Verdict]:
    """The loop waits for its batches, or for them to be copied."""
    working_s = loop.total_s - loop.save_s
    copy_s = loop.copy_s or 0.0
    share = (loop.wait_s + copy_s) / working_s if working_s > 0 else 0.0
    busy = main.busy_percent if main is not None and main.samples >= MIN_SAMPLES else None
    if share < STARVED_SHARE or (busy is not None and busy >= WELL_FED_PERCENT):
        return []
    step_s = working_s / loop.steps
    copying = copy_s > loop.wait_s
    what = "for batches to be copied to the card" if copying else "for its next batch"
    part_s = (copy_s if copying else loop.wait_s) / loop.steps
    sentence = (
        f"the loop waits {what} {100 * part_s / step_s:.0f} % of the time "
        f"({format_duration(part_s)} of {format_duration(step_s)} a step, over {_steps(loop)})"
    )
    if main is not None and busy is not None:
        sentence += f"; {_place(main)} is {busy:.0f} % busy"
    remedy = remedies.copy_faster(around) if copying else remedies.feed_faster(loop, around)
    evidence = {"waiting_share": share, "wait_s": loop.wait_s, "copy_s": copy_s, "total_s": loop.total_s}
    evidence["steps"] = loop.steps
    return [Verdict("starved", sentence, remedy, evidence if busy is None else evidence | {"busy_percent": busy})]


def idle(main: CardUse, watched: Sequence[CardUse], loop: LoopTimes) -> list[Verdict]:
    """The card of the run does next to nothing, and waiting for data does not explain it."""
    elsewhere = any(_is_busy(card) and card.memory_own_bytes for card in watched if card is not main)
    if main.busy_percent is None or _is_busy(main) or elsewhere or loop.save_s >= SAVING_SHARE * loop.total_s:
        return []
    sentence = f"{_place(main)} was {_busy(main, loop)}"
    if main.memory_own_bytes == 0:
        sentence += ", and this process has nothing on it: the steps run on the CPU"
        return [Verdict("card-idle", sentence, remedies.MOVE_TO_THE_CARD, _evidence(main, loop))]
    step = format_duration(loop.compute_s / loop.steps)
    sentence += f": a step takes {step}, and nearly all of that is spent on the CPU"
    return [Verdict("card-idle", sentence, remedies.LESS_ON_THE_CPU, _evidence(main, loop))]


def second_idle(watched: Sequence[CardUse], loop: LoopTimes) -> list[Verdict]:
    """Further cards that nobody uses."""
    working = [card for card in watched if _is_busy(card)]
    idle = [
        card
        for card in watched
        if card.busy_percent is not None
        and card.busy_percent < UNUSED_PERCENT
        and (card.busy_now_percent or 0.0) < UNUSED_PERCENT
        and (card.memory_others_bytes or 0) < OTHERS_NAMED_SHARE * (card.memory_total_bytes or 0)
    ]
    if not idle or not working:
        return []
    works, was = "works" if len(working) == 1 else "work", "was" if len(idle) == 1 else "were"
    sentence = (
        f"{len(watched)} cards are there and {len(working)} of them {works}: {names(idle)} {was} "
        f"{_busy(idle[0], loop)}"
    )
    evidence = {**_evidence(idle[0], loop), "idle_cards": len(idle)}
    remedy = remedies.use_more(len(watched), _name_for_cuda(idle[0]))
    return [Verdict("second-card-idle", sentence, remedy, evidence)]


def memory_full(watched: Sequence[CardUse]) -> list[Verdict]:
    """Memory that is nearly used up, or held by others."""
    verdicts = []
    for card in watched:
        peak, total, others = card.memory_peak_bytes, card.memory_total_bytes, card.memory_others_bytes or 0
        if peak is None or not total or (peak < FULL_SHARE * total and others < OTHERS_SHARE * total):
            continue
        sentence = f"{format_bytes(peak)} of {format_bytes(total)} on {_place(card)} are in use"
        remedy = remedies.LESS_MEMORY
        if others >= OTHERS_NAMED_SHARE * total:
            sentence += f", {format_bytes(others)} of them by other processes"
            remedy = remedies.OTHERS_MEMORY
        evidence = {"card": card.index, "memory_share": peak / total, "others_share": others / total}
        verdicts.append(Verdict("memory-nearly-full", sentence, remedy, evidence | {"samples": card.samples}))
    return verdicts


def throttled(card: CardUse) -> list[Verdict]:
    """A card that heat or hardware slows down."""
    reasons = {
        reason: card.throttled_share[reason]
        for reason in ("thermal", "hardware slowdown")
        if card.throttled_share.get(reason, 0.0) >= THROTTLED_SHARE
    }
    if not reasons:
        return []
    reason, share = max(reasons.items(), key=lambda item: item[1])
    hot = "" if card.temperature_peak_c is None else f", up to {card.temperature_peak_c:.0f} °C"
    sentence = f"{_place(card)} was slowed down in {100 * share:.0f} % of {card.samples} looks ({reason}{hot})"
    evidence = {"card": card.index, "throttled_share": share, "samples": card.samples}
    return [Verdict("throttled", sentence, remedies.cooler(reason), evidence)]


def slow_precision(main: CardUse, around: Circumstances) -> list[Verdict]:
    """Numbers that this card computes slowly, where it has fast ones."""
    total = sum(around.parameter_dtypes.values())
    if main.capability is None or total < SLOW_PRECISION_BYTES or (main.busy_percent or 0) < SLOW_PRECISION_PERCENT:
        return []
    known = precision(main.capability, main.name)
    fast = around.autocast or (around.tf32 and known.tf32) or not known.fp16
    plain = not fast and around.parameter_dtypes.get("float32", 0) > total / 2
    slow = around.parameter_dtypes.get("bfloat16", 0) > total / 2 and not known.bf16
    if not plain and not slow:
        return []
    used = "bfloat16" if slow else "float32"
    sentence = f"the model trains in {used} on {_place(main)}, {main.busy_percent:.0f} % busy; {known.reason}"
    evidence = {"card": main.index, "parameter_bytes": total, "busy_percent": main.busy_percent or 0.0}
    evidence["samples"] = main.samples
    return [Verdict("slow-precision", sentence, remedies.faster_numbers(known), evidence)]


def memory_unused(main: CardUse) -> list[Verdict]:
    """Memory to spare on a card that has time to spare."""
    peak, total, busy = main.memory_peak_bytes, main.memory_total_bytes, main.busy_percent
    if not peak or not total or busy is None or peak >= SPARE_SHARE * total:
        return []
    if not IDLE_PERCENT <= busy < WELL_FED_PERCENT:
        return []
    sentence = (
        f"{format_bytes(peak)} of {format_bytes(total)} on {_place(main)} are in use, and it is {busy:.0f} % busy: "
        "there is room for larger batches"
    )
    evidence = {"card": main.index, "memory_share": peak / total, "busy_percent": busy, "samples": main.samples}
    return [Verdict("memory-unused", sentence, remedies.larger_batch(total / peak), evidence)]


def names(cards: Sequence[CardUse]) -> str:
    """Cards in a sentence."""
    return ", ".join(_place(card) for card in cards)


def _is_busy(card: CardUse) -> bool:
    """It works, or has just begun to: a first step that compiles takes long, and the card idles meanwhile."""
    return max(card.busy_percent or 0.0, card.busy_now_percent or 0.0) >= IDLE_PERCENT


def _busy(card: CardUse, loop: LoopTimes) -> str:
    return f"{card.busy_percent:.0f} % busy over {format_duration(loop.total_s)} and {_steps(loop)}"


def _steps(loop: LoopTimes) -> str:
    return f"{loop.steps} step{'s' if loop.steps != 1 else ''}"


def _name_for_cuda(card: CardUse) -> str:
    """What another process calls it in ``CUDA_VISIBLE_DEVICES``, where a number counts all cards of the machine."""
    return str(card.index) if card.index == card.visible_as else card.uuid


def _evidence(card: CardUse, loop: LoopTimes) -> dict[str, float]:
    busy = card.busy_percent or 0.0
    seconds = {"steps": loop.steps, "total_s": loop.total_s}
    return {"card": card.index, "busy_percent": busy, "samples": card.samples, **seconds}


def _place(card: CardUse) -> str:
    return f"{card.name} (cuda:{card.visible_as})"
