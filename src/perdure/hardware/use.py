"""What cards did and where the time of a loop went: the figures that verdicts are given on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CardUse:
    """What one card did over a stretch of time; a field is None where NVML did not say.

    Attributes:
        index: Its number in NVML.
        visible_as: Its number for a framework in this process (``cuda:N``); None if it is hidden.
        uuid: Its own name.
        name: Its model.
        capability: Its compute capability.
        samples: How often it was looked at.
        busy_percent: Mean share of time in which a kernel ran.
        busy_now_percent: The same in the newest sample.
        memory_total_bytes: What it has.
        memory_peak_bytes: Most that was in use, by anyone.
        memory_own_bytes: Most that this process used.
        memory_others_bytes: Most that other processes used.
        temperature_peak_c: Hottest.
        power_mean_w: Mean draw.
        power_limit_w: What it may draw.
        throttled_share: Share of samples in which it was slowed down, by reason
            (``"thermal"``, ``"power cap"``, ``"hardware slowdown"``).
        lost: It stopped answering; the error in words, empty if it did not.
    """

    index: int
    visible_as: int | None
    uuid: str
    name: str
    capability: tuple[int, int] | None = None
    samples: int = 0
    busy_percent: float | None = None
    busy_now_percent: float | None = None
    memory_total_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_own_bytes: int | None = None
    memory_others_bytes: int | None = None
    temperature_peak_c: float | None = None
    power_mean_w: float | None = None
    power_limit_w: float | None = None
    throttled_share: Mapping[str, float] = field(default_factory=dict)
    lost: str = ""


@dataclass(frozen=True)
class LoopTimes:
    """Where the wall time of a loop went, over one stretch of it.

    Attributes:
        steps: Steps in the stretch.
        wait_s: Waiting for the next batch.
        copy_s: Bringing batches to the device; None where it was not measured.
        save_s: Saving.
        total_s: All of it.
    """

    steps: int = 0
    wait_s: float = 0.0
    copy_s: float | None = None
    save_s: float = 0.0
    total_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """What is left for the steps themselves."""
        return max(0.0, self.total_s - self.wait_s - self.save_s - (self.copy_s or 0.0))


@dataclass(frozen=True)
class Circumstances:
    """What else a verdict needs to know about the training.

    Attributes:
        device: Where it trains: ``"cpu"``, ``"cuda:0"``.
        workers: Workers of the leading loader; None if it is no DataLoader.
        pinned: Its ``pin_memory``; None if it is no DataLoader.
        cores: Cores that this process may use.
        parameter_dtypes: Bytes of tracked parameters by dtype: ``{"float32": 44_000_000}``.
        autocast: Mixed precision was seen: an autocast context, a GradScaler, or half-precision parameters.
        mode: ``"batch"``, ``"interactive"`` or ``"process"``.
        platform: ``"local"``, ``"kaggle"`` or ``"colab"``, for remedies.
        tf32: Products of float32 matrices may be computed in TF32, where the card has it.
    """

    device: str = "cpu"
    workers: int | None = None
    pinned: bool | None = None
    cores: int = 1
    parameter_dtypes: Mapping[str, int] = field(default_factory=dict)
    autocast: bool = False
    mode: str = "process"
    platform: str = "local"
    tf32: bool = False


@dataclass(frozen=True)
class Verdict:
    """One thing that is wrong, why it is said, and the first remedy.

    Attributes:
        code: Stable word for programs: ``"card-idle"``, ``"starved"``, ...
        sentence: What is wrong, in plain words with numbers.
        remedy: What to do first.
        evidence: The figures that it was given on.
    """

    code: str
    sentence: str
    remedy: str
    evidence: Mapping[str, float] = field(default_factory=dict)
