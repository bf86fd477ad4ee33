"""What Perdure needs of a hosted image, and what can be done where it is missing. Standard library only."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

NEEDED = {
    "psutil": "psutil",
    "pydantic": "pydantic",
    "pynvml": "nvidia-ml-py",
    "safetensors": "safetensors",
    "xxhash": "xxhash",
}
"""Modules that a session imports, and the packages that bring them. Kaggle's image of 2026 holds all of them, by
its public lists (Kaggle/docker-python); not tried there."""

_PIP_MOST_S = 180.0


def missing() -> list[str]:
    """Packages that are not installed here."""
    return [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]


def provide(order: Path) -> str:
    """Make sure that all is there; install it beside the bundle where there is internet, never over the image's.

    Args:
        order: The order; what is installed goes into its folder.

    Returns:
        What is wrong, in a sentence; empty if nothing is.
    """
    lacking = missing()
    if not lacking:
        return ""
    names = ", ".join(lacking)
    if not _has_internet(order):
        return f"this image lacks {names}, which Perdure needs: with --internet the relay installs it"
    problem = _install(lacking, order.parent / "packages")
    still = ", ".join(missing())
    return (
        f"this image lacks {still}, which Perdure needs, and pip could not install it: {problem}" if still else ""
    )


def _has_internet(order: Path) -> bool:
    try:
        return bool(json.loads(order.read_text(encoding="utf-8")).get("internet"))
    except (OSError, ValueError, AttributeError):
        return False


def _install(packages: list[str], folder: Path) -> str:
    """Install into a folder of their own, found after the image's packages; what pip said if it failed."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run(
            [*command, "--target", str(folder), *packages],
            capture_output=True,
            text=True,
            timeout=_PIP_MOST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    sys.path.append(str(folder))
    # the script's process needs them too; what the image has comes first only by not being installed here
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{before}{os.pathsep}{folder}" if before else str(folder)
    importlib.invalidate_caches()
    return done.stderr.strip()[-500:]
