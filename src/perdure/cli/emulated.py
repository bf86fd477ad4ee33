"""The emulator of Kaggle behind ``--on emulator``: a process of its own, started where it is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from perdure.core.errors import PlatformError
from perdure.platforms.detect import process_started_s

START_WITHIN_S = 30.0

_OURS = "started-by-relay"
_SAME_S = 0.5


def ensure_emulator(folder: Path) -> None:
    """Start the emulator of a folder, if it does not run.

    Raises:
        PlatformError: It does not come up; the end of its log is in the message.
    """
    if running_pid(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "emulator.log"
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure.testing.kaggle", "--folder", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    (folder / _OURS).touch()
    _wait(process, folder, log)


def _wait(process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    until_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < until_s:
        if running_pid(folder):  # ours, or one that another command has started meanwhile
            return
        if process.poll() is not None and not running_pid(folder):
            break
        time.sleep(0.05)
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise PlatformError(f"the emulator of {folder} does not start: {''.join(tail)}", hint=f"see {log}")


def running_pid(folder: Path) -> int:
    """Process id of the emulator of a folder; 0 if none runs."""
    told = _told(folder)
    try:
        pid, started_s = int(told["pid"]), float(told["pid_started_s"])
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return 0
        return pid if abs((process_started_s(pid) or 0.0) - started_s) < _SAME_S else 0
    except (KeyError, ValueError, TypeError, OSError, IndexError, psutil.Error):
        return 0


def end_emulator(folder: Path) -> None:
    """End the emulator of a folder, if it was started for a relay. What it keeps is kept."""
    pid = running_pid(folder)
    if pid and (folder / _OURS).exists():
        os.kill(pid, signal.SIGTERM)


def emulated_period_s(folder: Path) -> float | None:
    """Seconds from one refresh of its quota to the next; None if it does not say."""
    rules = _told(folder).get("rules")
    try:
        return float(rules["refresh_every_s"]) if rules else None
    except (KeyError, TypeError, ValueError):
        return None


def _told(folder: Path) -> Mapping[str, Any]:
    try:
        told = json.loads((folder / "emulator.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, Mapping) else {}
