"""One look at one card, and many looks summed up."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from perdure.hardware.cards import Card, Slice
from perdure.hardware.nvml import Answer, Nvml
from perdure.hardware.use import CardUse

_THERMAL = 0x20 | 0x40
_POWER_CAP = 0x04
_HARDWARE = 0x08 | 0x80
# nvml.h, nvmlClocksEventReasons: SW and HW thermal slowdown; SW power cap; HW slowdown and power brake

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Its inode (linux/proc_ns.h, PROC_PID_INIT_INO): there the numbers of NVML are those of this process's world."""

_LOOKS_UNTIL_LOST = 3
"""Looks in a row in which a card answers nothing, until it counts as lost."""

_QUESTIONS: dict[str, tuple[str, ...]] = {
    "how busy it is": ("DeviceGetUtilizationRates",),
    "its memory in use": ("DeviceGetMemoryInfo",),
    "its temperature": ("DeviceGetTemperature",),
    "its power draw": ("DeviceGetPowerUsage",),
    "why it is slowed down": ("DeviceGetCurrentClocksEventReasons", "DeviceGetCurrentClocksThrottleReasons"),
    "which processes use it": ("DeviceGetComputeRunningProcesses_v3", "DeviceGetComputeRunningProcesses_v2"),
}
"""What is asked, and by which names, newest first: an older driver has the older ones."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a card did at one moment; None where NVML did not say.

    Attributes:
        at_s: When, on the monitor's clock.
        busy_percent: Share of the last moments in which a kernel ran.
        memory_bytes: In use by anyone.
        own_bytes: In use by this process.
        others_bytes: In use by other processes.
        temperature_c: Its temperature.
        power_w: Its draw.
        throttle: NVML's reasons for a slower clock, a bit mask.
    """

    at_s: float
    busy_percent: float | None = None
    memory_bytes: int | None = None
    own_bytes: int | None = None
    others_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: int | None = None


@dataclass(slots=True)
class Tally:
    """Samples summed up."""

    samples: int = 0
    busy: list[float] = field(default_factory=lambda: [0, 0.0])  # count, sum
    power: list[float] = field(default_factory=lambda: [0, 0.0])
    busy_now: float | None = None
    memory: int | None = None
    own: int | None = None
    others: int | None = None
    temperature: float | None = None
    reasons: int = 0
    throttled: dict[str, int] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Take one more in."""
        self.samples += 1
        self.busy_now = sample.busy_percent
        for total, value in ((self.busy, sample.busy_percent), (self.power, sample.power_w)):
            if value is not None:
                total[0] += 1
                total[1] += value
        self.memory = _most(self.memory, sample.memory_bytes)
        self.own = _most(self.own, sample.own_bytes)
        self.others = _most(self.others, sample.others_bytes)
        self.temperature = _most(self.temperature, sample.temperature_c)
        if sample.throttle is not None:
            self.reasons += 1
            for reason in _reasons(sample.throttle):
                self.throttled[reason] = self.throttled.get(reason, 0) + 1

    def use(self, target: Target) -> CardUse:
        """What they say about a card."""
        return CardUse(
            index=target.card.index,
            visible_as=target.card.visible_as,
            uuid=target.uuid,
            name=target.name,
            capability=target.card.capability,
            samples=self.samples,
            busy_percent=self.busy[1] / self.busy[0] if self.busy[0] else None,
            busy_now_percent=self.busy_now,
            memory_total_bytes=target.memory_bytes,
            memory_peak_bytes=self.memory,
            memory_own_bytes=self.own,
            memory_others_bytes=self.others,
            temperature_peak_c=self.temperature,
            power_mean_w=self.power[1] / self.power[0] if self.power[0] else None,
            power_limit_w=target.limit_w,
            throttled_share={reason: count / self.reasons for reason, count in self.throttled.items()},
            lost=target.lost,
        )


class Target:
    """One card, or the slice of one, that is looked at.

    Args:
        card: The card.
        pids: Whose numbers NVML gives to processes; shared by all cards.
        part: The slice that this process sees of it; None for all of it.

    Attributes:
        lost: It stopped answering; the error in words, empty if it did not.
        closed: NVML itself was shut down by another part of the program: open it again and ``attach``.
        notes: What it does not tell, one sentence each.
    """

    def __init__(self, card: Card, pids: Pids, part: Slice | None = None) -> None:
        self.card = card
        self.uuid = part.uuid if part else card.uuid
        self.name = part.name if part else card.name
        self.memory_bytes = part.memory_bytes if part else card.memory_bytes
        self.limit_w: float | None = None
        self.lost = ""
        self.closed = False
        self.notes: list[str] = []
        self._names = {question: list(names) for question, names in _QUESTIONS.items()}
        self._pids = pids
        self._silent = 0
        self._said = False

    def attach(self, nvml: Nvml) -> None:
        """Use this NVML from now on."""
        self._nvml = nvml
        self.closed = False
        by_uuid = ("DeviceGetHandleByUUID", self.uuid.encode())
        handle = self._asked(*(by_uuid if self.uuid else ("DeviceGetHandleByIndex", self.card.index)))
        if handle.error:
            self.lost = "" if handle.closed else handle.error
            return
        self._handle = handle.value
        limit = self._asked("DeviceGetEnforcedPowerLimit", self._handle).value
        self.limit_w = self.limit_w if limit is None else limit / 1000

    def look(self, at_s: float, *, processes: bool) -> Sample | None:
        """One sample; None if the card does not answer.

        Args:
            at_s: The time.
            processes: Ask for them too; it is the dearest question.
        """
        self._said = False
        rates = self._get("how busy it is")
        memory = self._get("its memory in use")
        own, others = self._memory_by_process(memory) if processes else (None, None)
        power = self._get("its power draw")
        sample = Sample(
            at_s=at_s,
            busy_percent=None if rates is None else float(rates.gpu),
            memory_bytes=None if memory is None else int(memory.used),
            own_bytes=own,
            others_bytes=others,
            temperature_c=self._get("its temperature", 0),
            power_w=None if power is None else power / 1000,
            throttle=self._get("why it is slowed down"),
        )
        self._silent = 0 if self._said or self.closed else self._silent + 1
        if self._silent >= _LOOKS_UNTIL_LOST:
            self.lost = "it answers no question"
        return sample if self._said else None

    def _asked(self, function: str, *arguments: Any) -> Answer:
        answer = self._nvml.ask(function, *arguments)
        self._said = self._said or not answer.error
        self.closed = self.closed or answer.closed
        if answer.lost:
            self.lost = answer.error
        return answer

    def _get(self, question: str, *arguments: Any) -> Any:
        """A value, or None: not asked any more once the answer was that it is never told."""
        names = self._names[question]
        while names and not self.lost and not self.closed:
            answer = self._asked(names[0], self._handle, *arguments)
            if not answer.never:
                if answer.error and not answer.closed and not answer.lost:
                    self._note(question, answer.error)
                return answer.value
            del names[0]
            if not names:
                self._note(question, answer.error)
        return None

    def _note(self, question: str, error: str) -> None:
        note = f"{self.name} (card {self.card.index}) does not tell {question}: {error}"
        if note not in self.notes:
            self.notes.append(note)

    def _memory_by_process(self, memory: Any) -> tuple[int | None, int | None]:
        """What this process and what others use; None where it cannot be told."""
        listed = self._get("which processes use it")
        if listed is None:
            return None, None
        sizes = {int(process.pid): process.usedGpuMemory for process in listed}
        nothing = not sizes and memory is not None and not memory.used
        if not self._pids.are_ours(sizes) and not nothing:
            return None, None
        own = sizes.pop(self._pids.own, 0)
        others = None if any(size is None for size in sizes.values()) else sum(sizes.values())
        return own, others


class Pids:
    """Whose numbers NVML gives to processes.

    In a container they may be those that processes have outside of it, or there may be no processes at all. Then
    nothing is known of who uses a card, which is another thing than that nobody does. Once this process has shown
    up by its own number, the numbers are those of in here.
    """

    def __init__(self) -> None:
        self.own = os.getpid()
        self._ours = _in_initial_pid_namespace()

    def are_ours(self, listed: Collection[int]) -> bool:
        """Whether these are numbers as this process knows them."""
        self._ours = self._ours or self.own in listed
        return self._ours


def targets_of(card: Card, pids: Pids) -> list[Target]:
    """What is to be looked at of a card: what this process sees of it."""
    if card.mig:
        return [Target(card, pids, part) for part in card.slices if part.visible_as is not None]
    return [Target(card, pids)]


def _reasons(mask: int) -> list[str]:
    """Why the clock is slower; "hardware slowdown" only where it is not the thermal one, which sets it too."""
    reasons = ["thermal"] if mask & _THERMAL else []
    reasons += ["power cap"] if mask & _POWER_CAP else []
    return [*reasons, "hardware slowdown"] if mask & _HARDWARE and not mask & _THERMAL else reasons


def _in_initial_pid_namespace() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _most(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else max(a, b)
