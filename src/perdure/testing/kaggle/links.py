"""Addresses of files: signed, good for a while, fetched without any credentials, as those of a cloud store are."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from pathlib import Path
from urllib.parse import unquote

from perdure.testing.kaggle.errors import ApiError

ORIGIN = "http://localhost"
"""Whatever host an address names: clients reach the emulator through their proxy."""


class Links:
    """Makes and checks addresses.

    Args:
        secret: File with the key; made if it is not there.
        good_s: How long an address is good.
    """

    def __init__(self, secret: Path, good_s: float) -> None:
        if not secret.exists():
            secret.write_text(secrets.token_hex(16), encoding="utf-8")
        self._key = secret.read_bytes()
        self._good_s = good_s

    def make(self, kind: str, what: str) -> str:
        """The address of something; ``what`` is quoted already."""
        until = f"{time.time() + self._good_s:.3f}"
        return f"{ORIGIN}/{kind}/{what}?until={until}&signature={self._sign(kind, unquote(what), until)}"

    def check(self, kind: str, what: str, query: dict[str, str]) -> None:
        """Raises ``ApiError`` if an address was not made here, or is too old."""
        until, signature = query.get("until", "0"), query.get("signature", "")
        if not hmac.compare_digest(signature, self._sign(kind, what, until)):
            raise ApiError(403, "SignatureDoesNotMatch")
        if float(until) < time.time():
            raise ApiError(400, "ExpiredToken")

    def _sign(self, kind: str, what: str, until: str) -> str:
        return hmac.new(self._key, f"{kind}\n{what}\n{until}".encode(), hashlib.sha256).hexdigest()
