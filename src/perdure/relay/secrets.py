"""Secrets that must not travel: known by their file's name, or by how they look.

What is found is named by its place and kind; the secret itself is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

MOST_BYTES = 5_000_000
"""Larger files are known by their name only."""

NOT_ONE = "perdure: not a secret"
"""In a line that only looks like a secret."""

_NAMES = {
    "kaggle.json": "credentials of Kaggle",
    "access_token": "a token of Kaggle",
    "access_token.txt": "a token of Kaggle",
    "credentials.json": "credentials",
    ".netrc": "passwords",
    "_netrc": "passwords",
    ".git-credentials": "passwords of git",
    ".pypirc": "passwords of package indexes",
    ".pgpass": "passwords of databases",
    ".htpasswd": "passwords",
    "application_default_credentials.json": "credentials of Google's cloud",
    ".s3cfg": "credentials",
    ".boto": "credentials",
    "rclone.conf": "credentials",
    ".envrc": "an environment with secrets",
    **{f"secrets.{ending}": "secrets" for ending in ("env", "ini", "json", "toml", "yaml", "yml")},
    "id_rsa": "a private key",
    "id_dsa": "a private key",
    "id_ecdsa": "a private key",
    "id_ed25519": "a private key",
}
_ENDINGS = {".ppk": "a private key", ".pfx": "a private key", ".p12": "a private key", ".kdbx": "passwords"}
_EXAMPLES = ("example", "sample", "template", "dist", "defaults")

_HEX32 = r"[0-9a-fA-F]{32}"
_PATTERNS = [
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY", "a private key"),
        (rf"\bKGAT_{_HEX32}\b", "a token of Kaggle"),
        (rf"""["']?\bkey\\?["']\s*:\s*\\?["']{_HEX32}\\?["']""", "a key of Kaggle"),
        (rf"""\bKAGGLE_KEY\b\W{{1,12}}{_HEX32}\b""", "a key of Kaggle"),
        (r"\bhf_[A-Za-z0-9]{34,}\b", "a token of Hugging Face"),
        (r"\bgh[pousr]_[A-Za-z0-9]{36,}\b", "a token of GitHub"),
        (r"\bgithub_pat_[A-Za-z0-9_]{40,}\b", "a token of GitHub"),
        (r"\bglpat-[A-Za-z0-9_-]{20,}", "a token of GitLab"),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", "a key of Amazon's cloud"),
        (r"\bAIza[0-9A-Za-z_-]{35}", "a key of Google's cloud"),
        # with a digit and a capital: style sheets have long names that begin with sk-
        (r"\bsk-(?=[\w-]*\d)(?=[\w-]*[A-Z])[A-Za-z0-9_-]{32,}", "a key of a model's provider"),
        (r"\bxox[abposr]-[A-Za-z0-9-]{20,}", "a token of Slack"),
        (r"\bhooks\.slack\.com/services/T[A-Za-z0-9_/]{20,}", "an address of Slack"),
        (r"\b\d{8,10}:AA[A-Za-z0-9_-]{33}\b", "a token of Telegram"),
        (r"\bpypi-AgEI[A-Za-z0-9_-]{40,}", "a token of PyPI"),
        (r"\bWANDB_API_KEY\b\W{1,12}[0-9a-f]{40}\b", "a key of Weights & Biases"),
    )
]


def kind_by_name(name: str) -> str:
    """What a file holds that is named like this: ``"a private key"``; empty if the name says nothing.

    Args:
        name: Path with ``/``.
    """
    path = PurePosixPath(name)
    last = path.name.lower()
    if last in _NAMES:
        return _NAMES[last]
    if last == ".env" or (last.startswith(".env.") and not last.endswith(_EXAMPLES)):
        return "an environment with secrets"
    if (path.parent.name, last) in ((".aws", "credentials"), (".huggingface", "token"), (".docker", "config.json")):
        return "credentials"
    return _ENDINGS.get(path.suffix.lower(), "")


def kinds_in(data: bytes) -> Iterator[tuple[int, str]]:
    """What a file's content holds: number of the line, and kind; nothing for a large or a binary file."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # as Windows' PowerShell writes text
    if len(data) > MOST_BYTES or (b"\0" in data[:8192] and not wide):
        return
    for number, line in enumerate(data.decode("utf-16" if wide else "utf-8", "replace").splitlines(), 1):
        kind = kind_of(line)
        if kind:
            yield number, kind


def kind_of(text: str) -> str:
    """What secret a line, or the value of a variable, looks like; empty for none."""
    if NOT_ONE in text:
        return ""
    return next((kind for pattern, kind in _PATTERNS if pattern.search(text)), "")
