"""What Kaggle's answers mean, in our errors.

The texts are those that people report (kaggle-cli issues 132, 185, 473, 575, and public logs of pushes); none was
tried against the real Kaggle. A text that is not known is a refusal of the request, never a success.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from perdure.core.errors import (
    CredentialsError,
    MissingExtraError,
    NotThereError,
    PerdureError,
    RefusedError,
    TransientPlatformError,
    UncertainError,
)
from perdure.platforms.kaggle.credentials import LOG_IN

INSTALL = "pip install -U 'perdure[kaggle]'"

_MOST_TEXT = 300

_TEXTS: tuple[tuple[str, str, str], ...] = (
    (r"projected to exceed", "quota-projected", "wait until a session that runs now has ended, or stop it"),
    (r"session count of \d+ reached|session count.*reached", "slots-full", "wait until one of them has ended"),
    (
        r"weekly \w+ quota|(gpu|tpu|accelerator)[^.]*quota[^.]*(reached|exceed|exhaust|used up)",
        "quota-exhausted",
        "`perdure quota` says when the hours refresh; --when-exhausted cpu goes on without an accelerator",
    ),
    (
        r"less than [\d.]+ megabytes?|source[^.]*too (large|big|long)|entity too large",
        "source-size",
        "the limit is 1,000,000 bytes",
    ),
    (r"machine ?shape|accelerator", "accelerator", "see `perdure relay start --help` for the names"),
    (r"(data ?set|kernel|notebook|competition|model)s?[ _](data )?sources?", "sources", "see what it names"),
    (
        r"(notebook|kernel) not found",
        "request",
        "Kaggle says this for a wrong owner or name: check that the credentials are those of this account",
    ),
    (
        r"phone|verif(y|ied|ication)",
        "request",
        "GPUs, TPUs and the internet need an account whose phone number is verified: kaggle.com/settings",
    ),
)


@dataclass(frozen=True)
class Fault:
    """Why a call of the client has no answer.

    Attributes:
        kind: ``"http"``: the server answered with an error. ``"unsent"``: it was not reached. ``"lost"``: it was,
            and then no answer came, or a broken one. ``"credentials"``, ``"import"``, ``"disk"``, ``"local"``: it
            failed on this machine.
        status: The HTTP status of ``"http"``.
        message: What was said.
        retry_after_s: Seconds to wait, if the server asked for that.
    """

    kind: str
    status: int = 0
    message: str = ""
    retry_after_s: float | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Fault:
        """Of an answer of the client's process."""
        return cls(
            str(values.get("kind", "lost")),
            int(values.get("status") or 0),
            said(str(values.get("message") or "")),
            values.get("retry_after_s"),
        )


def said(text: str) -> str:
    """The message in the body of an error, which Kaggle nests: ``{"error": {"code": .., "message": ..}}``."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if isinstance(values, dict):
        inner = values.get("error")
        inner = inner if isinstance(inner, dict) else values
        text = str(inner.get("message") or inner.get("error") or text)
    elif text.lstrip().startswith("<"):  # a page of a gateway
        text = ""
    text = " ".join(text.split())
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


def refusal(text: str, what: str) -> RefusedError:
    """The error for what Kaggle says when it refuses.

    Args:
        text: Its words.
        what: What was asked for, to begin the message with.
    """
    for pattern, code, hint in _TEXTS:
        if re.search(pattern, text, re.IGNORECASE):
            return RefusedError(f"{what}: Kaggle says: {text}", code=code, hint=hint)
    return RefusedError(f"{what}: Kaggle says: {text or 'nothing more than no'}", code="request")


def error_of(fault: Fault, what: str, *, acts: bool) -> PerdureError:
    """The error for a call that has no answer.

    Args:
        fault: What is known.
        what: What was asked for, to begin the message with.
        acts: The call changes something: then without a clear answer nobody knows whether it was carried out.
    """
    if fault.kind == "http":
        return _http(fault, what, acts)
    if fault.kind == "unsent":
        return TransientPlatformError(f"{what}: Kaggle was not reached: {fault.message}", hint="check the network")
    if fault.kind == "credentials":
        return CredentialsError(f"{what}: {fault.message}", hint=LOG_IN)
    if fault.kind == "import":
        return MissingExtraError(f"Kaggle needs its official client: {fault.message}", hint=INSTALL)
    if fault.kind in ("disk", "local"):  # a disk or a memory that is full now may not be so later
        return TransientPlatformError(f"{what}: on this machine: {fault.message}", hint="make room for it")
    return _unanswered(f"{what}: no answer from Kaggle: {fault.message}", acts)


def _http(fault: Fault, what: str, acts: bool) -> PerdureError:
    shown = fault.message or f"HTTP {fault.status}"
    if fault.status == 401:
        return CredentialsError(f"{what}: Kaggle does not accept the credentials", hint=LOG_IN)
    if fault.status in (403, 404):
        return NotThereError(
            f"{what}: not there, or not for this account: {shown}",
            hint="Kaggle gives one answer for both: check owner and name",
        )
    if fault.status == 429:
        return _too_many(fault, what)
    if fault.status == 408 or fault.status >= 500:
        return _unanswered(f"{what}: Kaggle failed: HTTP {fault.status} {fault.message}".rstrip(), acts, fault)
    return refusal("entity too large" if fault.status == 413 else shown, what)


def _too_many(fault: Fault, what: str) -> PerdureError:
    """Too many calls, or, with the same status, no hours left."""
    refused = refusal(fault.message, what)
    if refused.code.startswith("quota"):
        return refused
    shown = fault.message or "too many calls"
    return TransientPlatformError(f"{what}: Kaggle asks to wait: {shown}", retry_after_s=fault.retry_after_s)


def _unanswered(text: str, acts: bool, fault: Fault | None = None) -> TransientPlatformError:
    retry_after_s = fault.retry_after_s if fault else None
    if acts:
        return UncertainError(text, retry_after_s=retry_after_s, hint="it may have been carried out: look first")
    return TransientPlatformError(text, retry_after_s=retry_after_s, hint="try again later")
