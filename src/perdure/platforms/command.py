"""What a session runs, and what it is told through the environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from perdure.core import settings as names
from perdure.core.errors import ConfigError, MissingExtraError

NOTEBOOK_OUTPUT = "PERDURE_NOTEBOOK_OUTPUT"
"""Where the executed notebook is written; default: ``<name>.executed.ipynb`` beside it."""

_NOTEBOOK_MODULES = ("nbclient", "nbformat", "ipykernel")


def is_notebook(target: str) -> bool:
    """Whether a target is a notebook."""
    return target.endswith(".ipynb")


def session_command(target: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line of a session.

    Args:
        target: A Python script, a notebook, or any other program.
        arguments: Its arguments.

    Raises:
        ConfigError: The script is not there, or a notebook was given arguments.
        MissingExtraError: What runs notebooks is not installed.
    """
    if not (target.endswith(".py") or is_notebook(target)):
        return (target, *arguments)
    path = Path(target).absolute()
    if not path.is_file():
        raise ConfigError(
            f"there is no file {target!r}", hint="give the path of a .py script or an .ipynb notebook"
        )
    if not is_notebook(target):
        return (sys.executable, str(path), *arguments)
    if arguments:
        raise ConfigError(
            f"a notebook takes no arguments, got {' '.join(arguments)!r}", hint="set environment variables instead"
        )
    missing = [name for name in _NOTEBOOK_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"running a notebook needs {', '.join(missing)}", hint="pip install 'perdure[notebook]'"
        )
    return (sys.executable, "-m", "perdure.platforms.notebook", str(path))


def session_environment(
    base: Mapping[str, str],
    *,
    report: Path,
    root: Path | None = None,
    inputs: Sequence[Path] = (),
    window_s: float | None = None,
    disk_bytes: int | None = None,
    started_s: float | None = None,
    platform: str | None = None,
) -> dict[str, str]:
    """The environment of a session: ``base``, and what is given here over it.

    Args:
        base: Variables to begin with.
        report: File to which the session writes how its runs stand.
        root: Folder of runs.
        inputs: Folders in which checkpoints of earlier sessions are looked for.
        window_s: Length of the window in seconds.
        disk_bytes: Disk budget.
        started_s: Start of the session, on the scale of ``SystemClock.monotonic()``.
        platform: Name of the platform, instead of detecting it.
    """
    told = {
        names.REPORT: str(report),
        names.ROOT: str(root) if root else "",
        names.INPUTS: os.pathsep.join(str(path) for path in inputs),
        names.WINDOW: "" if window_s is None else f"{window_s:.3f} s",
        names.DISK: "" if disk_bytes is None else f"{disk_bytes} B",
        names.STARTED: "" if started_s is None else f"{started_s:.3f}",
        names.PLATFORM: platform or "",
    }
    return {**base, **{name: value for name, value in told.items() if value}}


def without_session(base: Mapping[str, str]) -> dict[str, str]:
    """An environment without what an outer session or the user's shell says of limits and folders."""
    ours = {names.REPORT, names.ROOT, names.INPUTS, names.WINDOW, names.DISK, names.MARGIN}
    ours |= {names.STARTED, names.PLATFORM, NOTEBOOK_OUTPUT}
    return {name: value for name, value in base.items() if name not in ours}
