"""Real processes for tests: forked after the imports, so that one costs milliseconds; killed for real."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
import traceback
from typing import Any

import perdure


class Died(AssertionError):
    """A process did not end as the test expects."""


def in_new_process(work, *args: Any, expect_kill: bool = False) -> Any:
    """Result of ``work(*args)`` in a process of its own, whose whole group is ended after it.

    With ``expect_kill`` the process must have been ended by SIGKILL, and there is no result.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        gc.freeze()  # what was there before the fork is nobody's garbage here, and is not to be copied
        os.close(read_end)
        code = 1
        try:
            result = work(*args)
            with os.fdopen(write_end, "wb") as pipe:
                pickle.dump(result, pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read() if not expect_kill else b""
        _, status = os.waitpid(pid, 0)
    _end_group(pid)
    if expect_kill:
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise Died(f"the process was to be killed, but ended with status {status}")
        return None
    if status != 0:
        raise Died(f"the process ended with status {status}")
    return pickle.loads(data)  # from our own child


def kill_me() -> None:
    """End this process the way a platform does, at once and with no notice; a save that was begun may end before.

    So a test knows which checkpoint its next process begins with. What is lost of a save that is under way is the
    subject of other tests.
    """
    let_land(perdure.current())
    os.kill(os.getpid(), signal.SIGKILL)


def let_land(run: perdure.Run) -> None:
    """Wait until the save that is under way beside the training, if there is one, is on disk."""
    saver = run._engine._saver
    while saver.busy and not saver._overlap.flight.landed:
        time.sleep(0.001)


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)  # loader workers of a killed trainer can linger
    except ProcessLookupError:
        pass
