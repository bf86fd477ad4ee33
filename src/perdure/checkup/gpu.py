"""All lines about cards, accelerators and frameworks, and the sum of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.checkup.accelerator import GPU, Asked, accelerator_check, is_card, tpu
from perdure.checkup.cards import card_checks, driver_check, precision_checks, unwatched, usable
from perdure.checkup.checks import Check
from perdure.checkup.frameworks import framework_checks
from perdure.checkup.gather import Unknown
from perdure.hardware.cards import Card, Cards
from perdure.hardware.fixes import fix
from perdure.hardware.probed import Probe
from perdure.platforms.place import Place


def gpu_checks(
    required: str,
    environment: Mapping[str, str],
    place: Place,
    asked: Asked,
    cards: Cards | Unknown,
    probes: Mapping[str, Probe],
) -> list[Check]:
    """The lines.

    Args:
        required: What has to be here, from ``check_required``.
        environment: Where a TPU shows itself.
        place: Where this is.
        asked: What the description of the session asks for.
        cards: What NVML says.
        probes: What frameworks answered.
    """
    platform, there = place.platform, usable(cards)
    expected = _why_expected(required, asked, place)
    # a hosted session without a card is lent to those who forgot the switch, too
    may_lack = platform == "local" or bool(tpu(environment))
    driver = driver_check(cards, expected, platform, may_lack=may_lack)
    works = [probe for probe in probes.values() if probe.works]
    if works and driver.state in ("failed", "warning"):
        driver = unwatched(driver, rocm=any(probe.build.startswith("ROCm") for probe in works))
    code = "nvml" if isinstance(cards, Unknown) else cards.trouble_code or "no-cards"
    named = "" if required == GPU else required
    given = accelerator_check(named, asked, there, environment, platform, code)
    checks = [driver, *card_checks(cards, platform), *([given] if given else [])]
    checks += framework_checks(probes, there, platform)
    checks.append(gpu_check(checks, probes, there, expected, platform))
    return checks + (precision_checks(cards, probes.get("torch")) if works else [])


def _why_expected(required: str, asked: Asked, place: Place) -> str:
    """Why a card is expected here; empty if none is."""
    if is_card(required):
        return "it is required"
    if place.gpu_promised or place.platform != "kaggle" or not is_card(asked.name):
        return place.gpu_promised
    return f"asked for in {asked.where}"


def gpu_check(
    checks: Sequence[Check], probes: Mapping[str, Probe], cards: Sequence[Card], expected: str, platform: str
) -> Check:
    """The sum of it: whether a training can use a card.

    Args:
        checks: The lines so far; the fix of the first that failed is the fix.
        probes: What frameworks answered.
        cards: The cards that should be seen.
        expected: Why a card is expected here; empty if none is.
        platform: Where this is.
    """
    works = [name for name, each in probes.items() if each.works]
    details = {"works": works, "expected": expected}
    if works:
        return Check("gpu", "ok", f"works in {', '.join(works)}", details=details)
    if not cards and not expected:
        return Check("gpu", "note", "none: training runs on the CPU", details=details)
    if cards and not any(each.installed or each.trouble for each in probes.values()):
        fact = "there is a card and no framework that could use it"
        remedy = "install PyTorch: pytorch.org/get-started"
        return Check("gpu", "failed" if expected else "warning", fact, remedy, details)
    why = f" ({expected})" if expected else ""
    fact = f"no framework computes on a card{why}: training would run on the CPU"
    remedies = [check.fix for check in checks if check.state == "failed" and check.fix]
    return Check("gpu", "failed", fact, remedies[0] if remedies else fix("no-cards", platform), details)
