"""Asks many things at once, each for a limited time: one that hangs or fails does not cost the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Unknown:
    """No answer.

    Attributes:
        why: Why there is none, in words.
    """

    why: str


@dataclass(frozen=True)
class Question:
    """Something to be asked.

    Attributes:
        ask: Gives the answer.
        limit_s: How long it may take.
    """

    ask: Callable[[], Any]
    limit_s: float


def gather(questions: Mapping[str, Question]) -> dict[str, Any]:
    """Ask everything at the same time.

    Args:
        questions: By name.

    Returns:
        The answers by name; ``Unknown`` where there is none. A question that hangs is left behind in its thread.
    """
    answers: dict[str, Any] = {}
    threads = {
        name: threading.Thread(target=_ask, args=(name, question, answers), name=f"perdure-{name}", daemon=True)
        for name, question in questions.items()
    }
    begun_s = time.monotonic()
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(max(0.0, begun_s + questions[name].limit_s - time.monotonic()))
    late = {name: Unknown(f"no answer within {question.limit_s:.0f} s") for name, question in questions.items()}
    return {**late, **answers}


def _ask(name: str, question: Question, answers: dict[str, Any]) -> None:
    try:
        answers[name] = question.ask()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is said in the line)
        answers[name] = Unknown(f"{type(error).__name__}: {error}")
