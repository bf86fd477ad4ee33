"""What each framework makes of the cards, a line each, with the trap that it fell into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from perdure.checkup.cards import FREE_MEMORY
from perdure.checkup.checks import Check, counted
from perdure.core.intervals import format_duration
from perdure.hardware.architectures import has_code_for
from perdure.hardware.cards import Card
from perdure.hardware.fixes import fix
from perdure.hardware.probed import Probe, ProbedDevice

_NAMES = {"torch": "torch", "tensorflow": "TensorFlow", "keras": "Keras"}
_NO_CODE = ("no kernel image", "NoKernelImage", "not compatible with the current PyTorch")
_NO_MEMORY = ("out of memory", "OutOfMemory", "ResourceExhausted")


def framework_checks(probes: Mapping[str, Probe], cards: Sequence[Card], platform: str) -> list[Check]:
    """A line for each framework.

    A framework that does not work is a failure if no other does; beside one that is fine it is a warning. torch is
    what ``perdure.Run`` trains with, so it always counts.

    Args:
        probes: The answers, by framework.
        cards: The cards that should be seen.
        platform: Where this is.
    """
    checks = {
        name: _keras_check(probe, probes, cards, platform) if name == "keras" else _check(probe, cards, platform)
        for name, probe in probes.items()
    }
    fine = {name for name, check in checks.items() if check.state == "ok" and name != "keras"}
    return [
        replace(check, state="warning") if check.state == "failed" and name != "torch" and fine else check
        for name, check in checks.items()
    ]


def _check(probe: Probe, cards: Sequence[Card], platform: str) -> Check:
    details = _details(probe)
    if probe.trouble:
        return Check(probe.framework, "failed", *_trouble(probe, cards, platform), details)
    if not probe.installed:
        return Check(probe.framework, "note", "not installed", details=details)
    broken = [device for device in probe.devices if not device.works]
    if broken:
        return Check(probe.framework, "failed", *_broken(broken[0], probe, platform), details)
    if not probe.devices:
        return _blind(probe, cards, platform, details)
    names = counted([device.name or device.place for device in probe.devices])
    seconds = format_duration(max(device.seconds or 0.0 for device in probe.devices))
    fact = f"{_version(probe)}: computes on {names} what the CPU computes (first kernels {seconds})"
    if len(probe.devices) < len(cards):
        fact = f"{fact}, but sees {len(probe.devices)} of {len(cards)} cards"
        return Check(probe.framework, "warning", fact, fix("framework-blind", platform), details)
    return Check(probe.framework, "ok", fact, details=details)


def _trouble(probe: Probe, cards: Sequence[Card], platform: str) -> tuple[str, str]:
    """What became of a probe that did not come to its end, and the fix."""
    fact = f"{_version(probe)}: {probe.trouble}" if probe.version else probe.trouble
    without = _without_code(probe, cards)
    if without is not None:
        return f"{fact}. {_no_code(without.name, without.capability, probe)}", fix("no-kernels", platform)
    if "SIGILL" in probe.trouble:
        return fact, f"this build of {_NAMES[probe.framework]} needs a newer processor: install another version"
    if "SIGKILL" in probe.trouble:
        return fact, "the system killed it, most often for want of memory: see the line memory"
    if probe.trouble_code == "hung" and not probe.stage.startswith("importing"):
        return fact, fix("hung-kernel", platform)
    if probe.stage.startswith(("running", "timing", "looking")):
        return fact, fix("crashed-kernel", platform)
    return fact, f"`python -c 'import {probe.framework}'` shows all of it; reinstall {probe.framework}"


def _without_code(probe: Probe, cards: Sequence[Card]) -> Card | None:
    """A card that the build has no code for."""
    known = [each for each in cards if each.capability is not None]
    return next((each for each in known if not has_code_for(each.capability or (0, 0), probe.architectures)), None)


def _no_code(name: str, capability: tuple[int, int] | None, probe: Probe) -> str:
    arch = "sm_{}{}".format(*capability) if capability else "unknown architecture"
    built = f" (it has {', '.join(probe.architectures)})" if probe.architectures else ""
    return f"this build has no code for {name} ({arch}){built}"


def _broken(device: ProbedDevice, probe: Probe, platform: str) -> tuple[str, str]:
    """What is wrong with a device that does not compute, and the fix."""
    start = f"{_version(probe)}: "
    no_code = device.capability is not None and not has_code_for(device.capability, probe.architectures)
    if device.error and (no_code or any(text in device.error for text in _NO_CODE)):
        fact = f"{start}{_no_code(device.name, device.capability, probe)}: {device.error}"
        return fact, fix("no-kernels", platform)
    if any(text in device.error for text in _NO_MEMORY):
        return f"{start}{device.place} ({device.name}) has no memory left: {device.error}", FREE_MEMORY
    if device.error:
        return f"{start}{device.place} ({device.name}) fails: {device.error}", fix("crashed-kernel", platform)
    if device.right is False:
        fact = f"{start}{device.place} ({device.name}) computes wrong results, {device.off:.1g} off"
        return fact, fix("wrong-results", platform)
    return f"{start}{device.place} ({device.name}) gave no result", fix("crashed-kernel", platform)


def _blind(probe: Probe, cards: Sequence[Card], platform: str, details: Mapping[str, Any]) -> Check:
    """It sees no card."""
    if not cards:
        return Check(probe.framework, "ok", f"{_version(probe)}: sees no card", details=details)
    there = _count_cards(cards)
    if not probe.build:
        fact = f"{_version(probe)}: cannot use {there}"
        return Check(probe.framework, "failed", fact, fix(f"cpu-{probe.framework}", platform), details)
    reason = f": {probe.reason}" if probe.reason else ""
    fact = f"{_version(probe)}: does not see {there}{reason}"
    return Check(probe.framework, "failed", fact, fix("framework-blind", platform), details)


def _keras_check(probe: Probe, probes: Mapping[str, Probe], cards: Sequence[Card], platform: str) -> Check:
    """Keras computes where its backend does: the fault is then the backend's, and said there."""
    details = _details(probe)
    if probe.trouble:
        return Check("keras", "failed", *_trouble(probe, cards, platform), details)
    if not probe.installed:
        return Check("keras", "note", "not installed", details=details)
    device = probe.devices[0] if probe.devices else None
    start = f"{probe.version} on {probe.backend}"
    if device is None or not device.works:
        what = _broken(device, probe, platform)[0] if device else f"{start} gave no result"
        return Check("keras", "failed", what, fix("crashed-kernel", platform), details)
    fact = f"{start}: computes on {device.place}"
    if not device.is_cpu or not cards:
        return Check("keras", "ok", fact, details=details)
    others = [name for name in ("torch", "tensorflow") if name in probes and probes[name].works]
    remedy = f"see the line {probe.backend}"
    if others and probe.backend not in others:
        remedy = f"KERAS_BACKEND={others[0]} before the first import of keras, or {remedy}"
    there = f"there {'is' if len(cards) == 1 else 'are'} {_count_cards(cards)}"
    return Check("keras", "failed", f"{fact} although {there}", remedy, details)


def _version(probe: Probe) -> str:
    build = f"built for {probe.build}" if probe.build else "built for the CPU only"
    return f"{probe.version}, {build}" if probe.framework != "keras" else f"{probe.version} on {probe.backend}"


def _count_cards(cards: Sequence[Card]) -> str:
    return counted([card.name or f"card {card.index}" for card in cards])


def _details(probe: Probe) -> dict[str, Any]:
    return {**asdict(probe), "works": probe.works}
