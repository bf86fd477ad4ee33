"""What goes wrong on the emulated platform: every switch is off until it is set, and may be set at any time.

They lie in ``switches.json`` in the emulator's folder and are read again whenever that file changes, so that an
emulator in a process of its own can be switched as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from perdure.core.files import write_json
from perdure.testing.kaggle.rules import known


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong with calls.

    Attributes:
        call: Which: a method (``"SaveKernel"``), ``"output"`` for files, ``"log"`` for the stream, ``"upload"``,
            or ``"*"`` for any.
        what: ``"error"``: an answer with ``status``. ``"drop"``: the connection is closed without an answer.
            ``"stall"``: no answer for ``stall_s``. ``"cut"``: a file or stream ends after ``after_bytes``.
        when: Before the call is carried out, or after it.
        status: Of the answer.
        retry_after: Header of the answer: seconds or an HTTP date; empty for none.
        stall_s: Seconds without an answer; then the connection is closed.
        after_bytes: Where a file is cut; how much of an upload is kept when it fails.
        skip: Calls that go well first.
        times: How often it goes wrong then; 0 for ever.
    """

    call: str
    what: Literal["error", "drop", "stall", "cut"] = "error"
    when: Literal["before", "after"] = "before"
    status: int = 503
    retry_after: str = ""
    stall_s: float = 60.0
    after_bytes: int = 0
    skip: int = 0
    times: int = 1


@dataclass(frozen=True)
class Switches:
    """What goes wrong.

    Attributes:
        faults: Calls that fail.
        refusals: One for each of the next pushes: ``"gpu-slots"``, ``"cpu-slots"``, ``"quota"``, ``"projected"``,
            ``"not-found"``, any other text as it is; empty for one that goes well.
        invalid_sources: Sources that an accepted push reports as not valid, and leaves out.
        status_word: Said instead of the true status; empty for the truth.
        missing_status: HTTP status for a kernel that is not there: Kaggle says 403, as for one of others.
        visible_after_s: How long a new kernel cannot be seen.
        status_lag_s: How old the status is that is told.
        log_lag_s: How long after its end the log of a session is still empty.
        output_lag_s: How long after its end its files are not listed.
        page_most: Entries on a page, whatever was asked for.
        cut_outputs: Files that are shorter in the output than they were: ``{"part of the name": bytes}``.
        output_after_kill: What becomes of the output of a session that was killed at its window, or by somebody.
        give_machine: The machine that every session gets, whatever was asked for; empty for the right one.
        dataset_forbidden_s: How long after its creation a data set answers 403.
        dataset_stuck: Data sets never become ready.
        unpack: Endings of files that a data set unpacks.
        never_start: Sessions stay in the queue.
        ignore_timeout: The time-out that a push asked for does not fire; the window does.
        ignore_window: Neither does the window.
        start_twice: How many of the next pushes start two sessions.
        clock_offset_s: By how much the platform's clock is ahead.
        latency_s: How long every answer takes.
        timeout_reserves: A session with a time-out reserves no more than that; otherwise the rest of its window.
        quota_kills: A session is ended when the hours are used up.
        slot_lag_s: How long a slot stays taken after a session.
        mount_late_s: How long after its start a session does not see its inputs.
        old_layout: Inputs are mounted as ``/kaggle/input/<slug>``.
        mount_failed: The output of a session that did not complete may be an input.
        cancel: What cancelling by session number does: ``"works"``, ``"forbidden"``, ``"missing"``.
        timeout_word: Status of a session that was killed at its window.
        log_chunk_bytes: Records of the log are cut at this size, lines or not; 0: as they come.
        nvidia_smi: A GPU session finds ``nvidia-smi``. Perdure then expects cards that compute, and emulated ones
            do not.
        inside_token: Whether the session's own token is accepted.
    """

    faults: tuple[Fault, ...] = ()
    refusals: tuple[str, ...] = ()
    invalid_sources: tuple[str, ...] = ()
    status_word: str = ""
    missing_status: int = 403
    visible_after_s: float = 0.0
    status_lag_s: float = 0.0
    log_lag_s: float = 0.0
    output_lag_s: float = 0.0
    page_most: int = 200
    cut_outputs: Mapping[str, int] | None = None
    output_after_kill: Literal["lost", "kept"] = "lost"
    give_machine: str = ""
    dataset_forbidden_s: float = 0.0
    dataset_stuck: bool = False
    unpack: tuple[str, ...] = (".zip", ".tar", ".tar.gz", ".tgz")
    never_start: bool = False
    ignore_timeout: bool = False
    ignore_window: bool = False
    start_twice: int = 0
    clock_offset_s: float = 0.0
    latency_s: float = 0.0
    timeout_reserves: bool = True
    quota_kills: bool = False
    slot_lag_s: float = 0.0
    mount_late_s: float = 0.0
    old_layout: bool = False
    mount_failed: bool = True
    cancel: Literal["works", "forbidden", "missing"] = "works"
    timeout_word: str = "ERROR"
    log_chunk_bytes: int = 0
    nvidia_smi: bool = False
    inside_token: bool = True


class SwitchBoard:
    """The switches in force, and how often each of them has acted since it was set.

    Args:
        path: Where they lie.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._now = Switches()
        self._counts: dict[str, int] = {}

    def set(self, switches: Switches) -> None:
        """Put others in force; what was counted begins anew."""
        write_json(self._path, asdict(switches))

    @property
    def now(self) -> Switches:
        """Those in force."""
        with self._lock:
            try:
                stat = self._path.stat()
            except FileNotFoundError:
                return self._now
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._stamp:
                self._stamp = stamp
                self._now = _switches(json.loads(self._path.read_text(encoding="utf-8")))
                self._counts = {}
            return self._now

    def take(self, what: str) -> int:
        """How often this was asked before, since the switches were set; counts it."""
        with self._lock:
            count = self._counts.get(what, 0)
            self._counts[what] = count + 1
            return count

    def refusal(self) -> str:
        """What the next push is refused with; empty if it is not."""
        refusals = self.now.refusals
        count = self.take("refusal") if refusals else 0
        return refusals[count] if count < len(refusals) else ""

    def fault(self, call: str, when: str) -> Fault | None:
        """What goes wrong with a call now."""
        for number, fault in enumerate(self.now.faults):
            if fault.when == when and fault.call in (call, "*"):
                count = self.take(f"fault {number}") - fault.skip
                if count >= 0 and (fault.times == 0 or count < fault.times):
                    return fault
        return None


def _switches(values: dict[str, Any]) -> Switches:
    kept = known(Switches, values)
    for name, value in kept.items():
        if isinstance(value, list):
            kept[name] = tuple(Fault(**known(Fault, each)) if isinstance(each, dict) else each for each in value)
    return Switches(**kept)
