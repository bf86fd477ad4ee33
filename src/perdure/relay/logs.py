"""What sessions have printed: kept on this machine when they have ended, asked of the platform while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from perdure.core.errors import PlatformError, TransientPlatformError
from perdure.core.files import write_atomic
from perdure.platforms.protocol import Handle, Log, Platform

LOG = "log.txt"
"""Its name in the folder of a session."""


def read_log(platform: Platform, handle: Handle, folder: Path) -> Log:
    """The log of a session, from this machine if it is here.

    Args:
        platform: Where the session is.
        handle: Which one.
        folder: Where its small files are kept, ``<home>/relays/<id>/sessions/<number>``.

    Raises:
        PlatformError: As the platform says.
        OSError: The file is there and cannot be read.
    """
    path = folder / LOG
    if path.is_file():
        return Log(tuple(path.read_text(encoding="utf-8", errors="replace").splitlines()), complete=True)
    return platform.logs(handle)


def keep_log(platform: Platform, handle: Handle, folder: Path) -> tuple[str, ...]:
    """Keep the log of a session that has ended, so that it outlives the session on the platform.

    A log is never worth the output: whatever goes wrong with it, the caller goes on.

    Returns:
        Its lines; none if there are none, or if they cannot be had now.
    """
    try:
        log = read_log(platform, handle, folder)
        if log.complete and log.lines:
            text = "\n".join(log.lines) + "\n"
            write_atomic(folder / LOG, text.encode("utf-8", errors="backslashreplace"))
    except (PlatformError, OSError):
        return ()
    return log.lines


def follow_log(
    platform: Platform, handle: Handle, folder: Path, *, sleep: Callable[[float], object] = time.sleep
) -> Iterator[str]:
    """The lines of a session's log, as they come, until it is complete.

    Args:
        platform: Where the session is.
        handle: Which one.
        folder: Where its small files are kept.
        sleep: How to wait, in seconds; a third of ``pace.poll_s`` between two looks.

    Raises:
        PlatformError: As the platform says; errors that may pass are waited for.
    """
    shown = 0
    while True:
        try:
            log = read_log(platform, handle, folder)
        except TransientPlatformError:
            log = Log((), complete=False)
        yield from log.lines[shown:]
        shown = max(shown, len(log.lines))
        if log.complete:
            return
        sleep(platform.pace.poll_s / 3)
