"""Who is asking: the account's key or token, or a session's own token."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.core.files import write_json
from perdure.testing.kaggle.answers import Json
from perdure.testing.kaggle.errors import ApiError
from perdure.testing.kaggle.world import RUNNING, Store


@dataclass(frozen=True)
class Account:
    """The one account.

    Attributes:
        owner: Its name.
        key: What ``kaggle.json`` holds.
        token: What ``access_token`` holds.
    """

    owner: str
    key: str
    token: str


def open_account(path: Path, owner: str) -> Account:
    """The account of a folder, made at the first time."""
    if not path.exists():
        write_json(path, {"owner": owner, "key": secrets.token_hex(16), "token": f"KGAT_{secrets.token_hex(16)}"})
    return Account(**json.loads(path.read_text(encoding="utf-8")))


class Doorkeeper:
    """Lets requests in.

    Args:
        store: The world.
        account: The account.
    """

    def __init__(self, store: Store, account: Account) -> None:
        self._store = store
        self._account = account

    def check(self, authorization: str) -> None:
        """Raises ``ApiError`` 401 for a request without credentials that are good."""
        kind, _, value = authorization.partition(" ")
        if kind == "Bearer" and self._is_token(value):
            return
        if kind == "Basic" and _decode(value) == f"{self._account.owner}:{self._account.key}":
            return
        raise ApiError(401, "Unauthenticated")

    def introspect(self, request: dict[str, Any]) -> Json:
        """``IntrospectToken``."""
        if not self._is_token(str(request.get("token") or "")):
            raise ApiError(403, "Token is not active")
        return Json({"active": True, "username": self._account.owner})

    def hello(self, _: dict[str, Any]) -> Json:
        """``Hello``: who am I?"""
        return Json({"userName": self._account.owner})

    def session_of(self, token: str) -> int | None:
        """Number of the running session whose token this is."""
        number = token.removeprefix("session-").partition("-")[0]
        session = self._store.world.sessions.get(int(number)) if number.isdigit() else None
        if session is None or session.stage != RUNNING:
            return None
        kept = (self._store.session_folder(session) / "token").read_text(encoding="utf-8")
        return session.id if secrets.compare_digest(kept, token) else None

    def _is_token(self, token: str) -> bool:
        if token == self._account.token:
            return True
        return self._store.switches.inside_token and self.session_of(token) is not None


def _decode(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
