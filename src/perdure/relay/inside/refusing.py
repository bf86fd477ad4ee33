"""Why a session ends itself before anything is trained."""

from __future__ import annotations


class Refused(Exception):
    """The session is not what was asked for; the message is a sentence for the marker."""
