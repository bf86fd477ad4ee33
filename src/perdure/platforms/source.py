"""The one file that a hosted session is given: the bootstrap, the order, and the cargo where it fits in."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

CARGO_NAME = "perdure-bundle.bin"
"""What the bundle is called in a data set. No archive's name: Kaggle unpacks what is named as one (a maintainer in
Kaggle/kaggle-cli, pull request 111; not tried here)."""

_HEAD = '''"""A session of the relay {relay}, number {session}. Made by Perdure; it runs {target}."""
'''

_TAIL = """

ORDER = {order}
CARGO = {cargo}
DIGEST = {digest}
NAME = {name}

# a notebook's kernel may run this: a SystemExit would count as an error there, so only a failure exits
if _code := main(ORDER, CARGO, NAME, DIGEST):
    sys.exit(_code)
"""


def build_source(order: Mapping[str, Any], cargo: bytes | None, cargo_name: str, cargo_digest: str) -> str:
    """The source of a session: a Python script that needs the standard library only.

    Args:
        order: What the session is to do; JSON-able.
        cargo: The bundle, to travel in the source; None if it lies in an input of the session.
        cargo_name: The bundle's file name there.
        cargo_digest: The bundle's digest: ``sha256:`` and 64 hexadecimal digits.

    Returns:
        ASCII text; its length is its size in bytes.
    """
    text = files("perdure.platforms").joinpath("bootstrap.py").read_text(encoding="utf-8")
    head = _HEAD.format(
        relay=_plain(order.get("relay")), session=_plain(order.get("session")), target=_plain(order.get("target"))
    )
    tail = _TAIL.format(
        order=ascii(json.dumps(order, ensure_ascii=True)),
        cargo=ascii("" if cargo is None else base64.b64encode(cargo).decode()),
        digest=ascii(cargo_digest),
        name=ascii(cargo_name),
    )
    return head + text.rstrip() + "\n" + tail


def _plain(value: Any) -> str:
    """A value that can stand in the head's string: ASCII, no quotes, no backslashes."""
    return "".join(c for c in str(value) if c.isascii() and c.isprintable() and c not in "\"'\\")
