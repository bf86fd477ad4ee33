"""What a framework answered: its build, the devices that it sees, what came of computing on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ProbedDevice:
    """One device as a framework knows it, and what came of computing on it.

    Attributes:
        place: The framework's word for it: ``"cuda:0"``, ``"GPU:0"``, ``"cpu"``.
        name: Its model.
        capability: Compute capability: ``(7, 5)``; None if the framework does not say.
        memory_bytes: What it has; None if the framework does not say.
        seconds: How long the first kernels took, with copying; None if none came back.
        right: Its results are those of the CPU; None if none came back.
        off: Largest difference to the CPU, relative to the largest value.
        speeds: Matrix products in TFLOP/s by dtype.
        error: What went wrong; empty if nothing did.
    """

    place: str
    name: str = ""
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    seconds: float | None = None
    right: bool | None = None
    off: float = 0.0
    speeds: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def works(self) -> bool:
        """A kernel ran on it and computed what the CPU computes."""
        return self.right is True and not self.error

    @property
    def is_cpu(self) -> bool:
        """It is the CPU."""
        return "cpu" in self.place.lower()


@dataclass(frozen=True)
class Probe:
    """What a framework answered.

    Attributes:
        framework: ``"torch"``, ``"tensorflow"``, ``"keras"``.
        installed: It can be found.
        version: Its version.
        build: What it is built for: ``"CUDA 12.8"``; empty for the CPU only.
        backend: Of Keras: the backend's name.
        architectures: What the build has code for: ``("sm_70", "sm_75")``; empty if it does not say.
        devices: What it sees, the CPU not counted except for Keras.
        reason: Why it sees none, in its own words.
        trouble: Why the answer is not whole, in one sentence; empty if it is.
        trouble_code: The same for programs: ``"hung"``, ``"crashed"``, ``"error"``; empty if there is none.
        stage: What it was doing then.
        seconds: How long all of it took.
    """

    framework: str
    installed: bool = False
    version: str = ""
    build: str = ""
    backend: str = ""
    architectures: tuple[str, ...] = ()
    devices: tuple[ProbedDevice, ...] = ()
    reason: str = ""
    trouble: str = ""
    trouble_code: str = ""
    stage: str = ""
    seconds: float = 0.0

    @property
    def works(self) -> bool:
        """At least one card computed what the CPU computes, and nothing went wrong besides."""
        cards = [device for device in self.devices if not device.is_cpu]
        return bool(cards) and not self.trouble and all(device.works for device in cards)


def probe_of(framework: str, answer: Mapping[str, Any], seconds: float) -> Probe:
    """The answer of a framework, from all that its process told."""
    error = str(answer.get("error", ""))
    stage = str(answer.get("stage", "starting"))
    return Probe(
        framework,
        installed=bool(answer.get("installed", False)),
        version=str(answer.get("version", "")),
        build=str(answer.get("build", "")),
        backend=str(answer.get("backend", "")),
        architectures=tuple(map(str, answer.get("architectures", ()))),
        devices=tuple(_device_of(place, facts) for place, facts in answer["devices"].items()),
        reason=str(answer.get("reason", "")),
        trouble=str(answer.get("trouble") or (f"failed while {stage}: {error}" if error else "")),
        trouble_code=str(answer.get("trouble_code") or ("error" if error else "")),
        stage=stage,
        seconds=seconds,
    )


def _device_of(place: str, facts: Mapping[str, Any]) -> ProbedDevice:
    capability = facts.get("capability")
    return ProbedDevice(
        place,
        name=str(facts.get("name", "")),
        capability=(int(capability[0]), int(capability[1])) if capability else None,
        memory_bytes=facts.get("memory_bytes"),
        seconds=facts.get("seconds"),
        right=facts.get("right"),
        off=float(facts.get("off", 0.0)),
        speeds=dict(facts.get("speeds", {})),
        error=str(facts.get("error", "")),
    )
