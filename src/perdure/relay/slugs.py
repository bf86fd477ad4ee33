"""Names of relays and of their sessions on a platform."""

from __future__ import annotations

import re
import secrets

SLUG_MOST = 50
"""Characters of a slug: what Kaggle's client allows a data set; a kernel's own limit is not known."""


def new_relay_id() -> str:
    """A name that no other relay has: eight characters of ``0-9a-f``."""
    return secrets.token_hex(4)


def session_slug(name: str, relay_id: str, number: int) -> str:
    """The name of a session on the platform, as ``perdure-digits-1a2b3c4d-7``.

    Args:
        name: Name of the relay; what a slug cannot hold is left out, and it is cut to fit.
        relay_id: Id of the relay.
        number: Number of the session.
    """
    end = f"-{relay_id}-{number}"
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    start = f"perdure-{plain}"[: SLUG_MOST - len(end)].strip("-")
    return start + end
