"""Whether there are credentials for Kaggle, and where; they are never read further than that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.core.errors import ConfigError

LOG_IN = (
    "make a token at kaggle.com/settings/api and put it into ~/.kaggle/access_token, "
    "or put kaggle.json into ~/.kaggle, readable for you alone"
)
"""The two ways that need no browser on this machine."""


def credentials_source(environment: Mapping[str, str]) -> str | None:
    """Where the official client would take credentials from: a variable's name or a file; None if from nowhere.

    The order is that of ``KaggleApi.authenticate`` (kaggle 2.2.5). Whether Kaggle accepts them is not asked.

    Args:
        environment: Environment variables, of which ``HOME`` says where the files are.
    """
    home = Path(environment.get("HOME") or Path.home())
    own = environment.get("KAGGLE_API_V1_TOKEN", "")
    if own and environment.get("KAGGLE_KERNEL_RUN_TYPE") and _has_text(Path(own)):
        return "KAGGLE_API_V1_TOKEN"
    if environment.get("KAGGLE_API_TOKEN"):
        return "KAGGLE_API_TOKEN"
    for path in (home / ".kaggle/access_token", home / ".kaggle/access_token.txt"):
        if _has_text(path):
            return str(path)
    path = _config_folder(environment, home) / "kaggle.json"
    stored = _json(path)
    if environment.get("KAGGLE_USERNAME", stored.get("username")) and environment.get(
        "KAGGLE_KEY", stored.get("key")
    ):
        return "KAGGLE_KEY" if environment.get("KAGGLE_KEY") else str(path)
    path = home / ".kaggle/credentials.json"
    return str(path) if _json(path) else None


def check_endpoint(environment: Mapping[str, str]) -> None:
    """Refuse a setting with which the client would silently talk to the real Kaggle.

    Raises:
        ConfigError: ``KAGGLE_API_ENVIRONMENT`` is neither unset, ``PROD`` nor ``LOCALHOST``: anything else is
            ignored by ``KaggleApi`` (kaggle 2.2.5, ``build_kaggle_client_with_params``).
    """
    name = environment.get("KAGGLE_API_ENVIRONMENT", "")
    if name not in ("", "PROD", "LOCALHOST"):
        raise ConfigError(
            f"KAGGLE_API_ENVIRONMENT={name} would be ignored by the client, which would talk to the real Kaggle",
            hint="unset it, or LOCALHOST for the emulator",
        )


def _config_folder(environment: Mapping[str, str], home: Path) -> Path:
    if environment.get("KAGGLE_CONFIG_DIR"):
        return Path(environment["KAGGLE_CONFIG_DIR"])
    old = home / ".kaggle"
    if old.exists():
        return old
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "kaggle"


def _has_text(path: Path) -> bool:
    try:
        return bool(path.read_text(encoding="utf-8", errors="replace").strip())
    except OSError:
        return False


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
