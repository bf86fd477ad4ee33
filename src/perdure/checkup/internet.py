"""Whether the internet can be reached from here."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from perdure.checkup.checks import Check
from perdure.checkup.gather import Unknown
from perdure.core.errors import ConfigError
from perdure.core.settings import REACH

HOST = "www.kaggle.com:443"
"""Stands for the internet where ``PERDURE_REACH`` names no other."""

TRY_S = 3.0
"""How long a connection may take."""


@dataclass(frozen=True)
class Reached:
    """What came of trying.

    Attributes:
        address: Whom: ``"www.kaggle.com:443"``, or the proxy that stands before it.
        seconds: How long it took; None if it did not work.
        error: Why it did not.
        proxy: It is a proxy.
    """

    address: str
    seconds: float | None = None
    error: str = ""
    proxy: bool = False


def address_of(environment: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Host and port that stand for the internet; None if nobody is to be asked.

    Raises:
        ConfigError: ``PERDURE_REACH`` is no host and port.
    """
    env = os.environ if environment is None else environment
    text = env.get(REACH) or HOST
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{REACH} must be a host and a port, got {text!r}", hint=f'"{HOST}", or "off"')
    return host.strip("[]"), int(port)


def reach(address: tuple[str, int], environment: Mapping[str, str] | None = None) -> Reached:
    """Look up the name and open one connection, by the proxy if there is one. Nothing is sent."""
    env = os.environ if environment is None else environment
    proxy = _proxy(env)
    host, port = proxy or address
    shown = f"{host}:{port}"
    begun_s = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=TRY_S).close()
    except OSError as error:
        return Reached(shown, error=error.strerror or str(error), proxy=proxy is not None)
    return Reached(shown, time.monotonic() - begun_s, proxy=proxy is not None)


def _proxy(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port of the proxy for https; its name and password are never shown."""
    text = env.get("https_proxy") or env.get("HTTPS_PROXY") or ""
    try:
        parts = urlsplit(text if "//" in text else f"//{text}")
        return (parts.hostname, parts.port or 80) if parts.hostname else None
    except ValueError:
        return None


def internet_check(answer: Reached | Unknown | None, platform: str) -> Check:
    """The line.

    Args:
        answer: What came of trying; None if nobody was to be asked.
        platform: Where this is.
    """
    if answer is None:
        return Check("internet", "note", f"not looked at: {REACH} is off")
    if isinstance(answer, Reached) and answer.seconds is not None:
        by = "the proxy " if answer.proxy else ""
        fact = f"on: {by}{answer.address} answers in {answer.seconds * 1000:.0f} ms"
        return Check("internet", "ok", fact, details={"address": answer.address, "seconds": answer.seconds})
    why = answer.why if isinstance(answer, Unknown) else f"{answer.address}: {answer.error}"
    fix = "switch it on: Notebook options > Internet (the account's phone number must be verified)"
    return Check("internet", "note", f"off: {why}", fix if platform == "kaggle" else "")
