"""The look at this machine: everything is asked at the same time, then said line by line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from perdure.checkup.accelerator import Asked, asked_in_metadata, check_required
from perdure.checkup.checks import Check, Checkup
from perdure.checkup.gather import Question, Unknown, gather
from perdure.checkup.gpu import gpu_checks
from perdure.checkup.inputs import checkpoints_check, inputs_check, look_at_inputs
from perdure.checkup.internet import Reached, address_of, internet_check, reach
from perdure.checkup.machine import cores_check, look_at_disk, memory_check, shared_memory_check, unknown_check
from perdure.checkup.quota import ASK_S, START_S, look_at_quota, quota_checks
from perdure.checkup.session import Instant, clock_check, platform_check, python_check, window_check
from perdure.core.clock import SystemClock
from perdure.core.limits import Window
from perdure.core.settings import Settings
from perdure.hardware import host
from perdure.hardware.cards import read_cards
from perdure.hardware.probe import FRAMEWORKS, IMPORT_LIMIT_S, STAGE_LIMIT_S, probe
from perdure.hardware.probed import Probe
from perdure.platforms.detect import detect, session_started_s
from perdure.platforms.place import Place

LOOK_LIMIT_S = 20.0
"""How long anything but a framework may take: a broken driver or a mount that is gone may never answer."""

SPARE_MEMORY_BYTES = 4_000_000_000
"""Free memory above which all frameworks are loaded at the same time; together they take about half of that."""


@dataclass(frozen=True)
class Look:
    """How to look.

    Attributes:
        required: What has to be here, from ``check_required``.
        environment: Environment variables.
        frameworks: Which are asked.
        command: The program that asks; the usual one if None.
        stage_limit_s: How long a framework may take for a stage.
        limit_s: How long anything else may take.
    """

    required: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    frameworks: Sequence[str] = FRAMEWORKS
    command: Sequence[str] | None = None
    stage_limit_s: float = STAGE_LIMIT_S
    limit_s: float = LOOK_LIMIT_S


def doctor(*, require: str | None = None) -> Checkup:
    """Look at this machine: session, cards, frameworks, memory, disk, inputs, internet; nothing is changed.

    Frameworks are asked in child processes, so that neither CUDA nor a framework is loaded here.

    Args:
        require: ``"gpu"``: without a card that works the checkup is not ``ok``. Or the name of an accelerator of
            Kaggle, such as ``"NvidiaTeslaT4"``, that has to be here.

    Returns:
        The checks. A notebook shows them as a table, ``print`` as lines.

    Raises:
        ConfigError: ``require`` or an environment variable is nonsense.
    """
    return look(Look(check_required(require)))


def look(how: Look) -> Checkup:
    """Ask everything, and say it."""
    clock, settings = SystemClock(), Settings.from_environment(how.environment)
    place = detect(how.environment)
    limits, root = settings.limits.over(place.limits), settings.root or place.root
    folders = (*settings.inputs, *place.inputs)
    address_of(how.environment)  # nonsense in it is the user's error and no line
    begun = Instant.now(clock)
    with _stopped_at_the_end() as stop:
        answers = gather(
            {
                "cards": Question(partial(read_cards, how.environment), how.limit_s),
                "inputs": Question(partial(look_at_inputs, root, folders), how.limit_s),
                "disk": Question(partial(look_at_disk, root, place.output, limits), how.limit_s),
                "cores": Question(host.usable_cores, how.limit_s),
                "memory": Question(host.memory, how.limit_s),
                "shared memory": Question(host.shared_memory, how.limit_s),
                "internet": Question(partial(_try_internet, how), how.limit_s),
                "quota": Question(partial(look_at_quota, how.environment, place.platform), ASK_S + START_S + 5),
                "asked": Question(asked_in_metadata, how.limit_s),
                "probes": Question(partial(ask_frameworks, how, stop), 10 * IMPORT_LIMIT_S),
            }
        )
    checks = [
        platform_check(place),
        python_check(),
        window_check(Window(clock, session_started_s(place, settings), _length_s(limits.window_s))),
        clock_check(begun, Instant.now(clock)),
        *_gpu_checks(how, answers, place),
        *_machine_checks(answers),
        *_input_checks(answers, folders),
        internet_check(answers["internet"], place.platform),
        *quota_checks(answers["quota"]),
    ]
    return Checkup(tuple(checks), how.required)


def _try_internet(how: Look) -> Reached | None:
    address = address_of(how.environment)
    return None if address is None else reach(address, how.environment)


def ask_frameworks(how: Look, stop: threading.Event) -> dict[str, Probe]:
    """All frameworks, each in a process of its own; at the same time where the memory is large enough."""
    questions = {name: Question(partial(_ask, how, name, stop), 9 * IMPORT_LIMIT_S) for name in how.frameworks}
    if host.memory().available_bytes > SPARE_MEMORY_BYTES:
        answers = gather(questions)
    else:
        answers = {}
        for name, question in questions.items():
            answers |= gather({name: question})
    return {
        name: Probe(name, trouble=answer.why, trouble_code="error") if isinstance(answer, Unknown) else answer
        for name, answer in answers.items()
    }


def _ask(how: Look, name: str, stop: threading.Event) -> Probe:
    return probe(name, environment=how.environment, command=how.command, limit_s=how.stage_limit_s, stop=stop)


@contextmanager
def _stopped_at_the_end() -> Iterator[threading.Event]:
    """An event that is set at the end, also after Ctrl-C: children that still run are then killed."""
    stop = threading.Event()
    try:
        yield stop
    finally:
        stop.set()


def _gpu_checks(how: Look, answers: Mapping[str, Any], place: Place) -> list[Check]:
    asked, probes = answers["asked"], answers["probes"]
    if isinstance(asked, Unknown):
        asked = Asked()
    if isinstance(probes, Unknown):
        probes = {name: Probe(name, trouble=probes.why, trouble_code="error") for name in how.frameworks}
    return gpu_checks(how.required, how.environment, place, asked, answers["cards"], probes)


def _machine_checks(answers: Mapping[str, Any]) -> list[Check]:
    say: dict[str, Callable[[Any], Check]] = {
        "cores": cores_check,
        "memory": memory_check,
        "shared memory": shared_memory_check,
        "disk": lambda check: check,
    }
    return [
        unknown_check(name, answers[name]) if isinstance(answers[name], Unknown) else check(answers[name])
        for name, check in say.items()
    ]


def _input_checks(answers: Mapping[str, Any], folders: Sequence[Any]) -> list[Check]:
    inputs = answers["inputs"]
    if isinstance(inputs, Unknown):
        return [unknown_check("inputs", inputs)]
    return [inputs_check(inputs, folders), checkpoints_check(inputs)]


def _length_s(window_s: float | None) -> float:
    return float("inf") if window_s is None else window_s
