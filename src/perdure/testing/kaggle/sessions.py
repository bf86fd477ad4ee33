"""Runs what was pushed: sessions as real processes, from the queue to their end."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from perdure.core.errors import PlatformError
from perdure.platforms import host
from perdure.platforms.host import HostFolder, HostSpec, HostState
from perdure.testing.kaggle.hours import hours, window_s
from perdure.testing.kaggle.logs import LogKeeper
from perdure.testing.kaggle.machines import MACHINES, Scenery
from perdure.testing.kaggle.world import ENDED, QUEUED, RUNNING, EmulatedSession, Store

TIMED_OUT = "Your notebook was stopped because it exceeded the max allowed execution duration."
"""What Kaggle says then: code that matches on it (third-party)."""

_TICK_S = 0.1
_KEPT_VARIABLES = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_NOWHERE = "http://127.0.0.1:9"
_START = 'KAGGLE_CACHE_MOUNT_FOLDER="$PERDURE_INPUTS" exec "$@"'
"""kagglehub looks for what it attaches below the input root, wherever that is on this machine."""


class Sessions(threading.Thread):
    """The thread that moves all sessions on.

    Args:
        store: The world.
        scenery: The cards.
        network: Variables with which a session reaches the emulator, where it has internet.

    Attributes:
        scenery: The cards.
        logs: What sessions printed.
    """

    def __init__(self, store: Store, scenery: Scenery, network: Mapping[str, str]) -> None:
        super().__init__(name="emulated sessions", daemon=True)
        self._store = store
        self.scenery = scenery
        self._network = dict(network)
        self._stopping = threading.Event()
        self.logs = LogKeeper(store)

    def run(self) -> None:
        """Until ``stop``."""
        while not self._stopping.wait(_TICK_S):
            try:
                self.tick()
            except Exception:  # noqa: BLE001  one session's trouble is not that of the others, nor of the next tick
                self._store.trouble(traceback.format_exc())

    def stop(self, *, kill: bool) -> None:
        """Stop moving them on; with ``kill``, end those that run."""
        self._stopping.set()
        if self.is_alive():
            self.join()
        if kill:
            for session in self._in_stage(RUNNING):
                host.kill(self.host(session).folder)

    def host(self, session: EmulatedSession) -> HostFolder:
        """Where a session runs."""
        return HostFolder(self._store.session_folder(session) / "host")

    def tick(self) -> None:
        """Move every session on that can be."""
        for session in self._in_stage(QUEUED):
            if self._is_due(session):
                self._start(session)
        for session in self._in_stage(RUNNING):
            self._follow(session)

    def end(self, session: EmulatedSession) -> None:
        """Cancel a session; called with the store's lock."""
        session.deleted = True
        if session.stage == QUEUED:
            session.stage, session.ended_s = ENDED, time.time()
            session.say(time.time(), "CANCEL_ACKNOWLEDGED")
        elif session.stage == RUNNING:
            session.say(time.time(), "CANCEL_REQUESTED")
            self._ask_kill(session)

    def _in_stage(self, stage: str) -> list[EmulatedSession]:
        with self._store.lock:
            return [each for each in self._store.world.sessions.values() if each.stage == stage]

    def _is_due(self, session: EmulatedSession) -> bool:
        waited_s = time.time() - session.pushed_s
        return not self._store.switches.never_start and waited_s >= self._store.rules.queue_s

    def _start(self, session: EmulatedSession) -> None:
        folder = self._store.session_folder(session)
        try:
            host.start(self.host(session).folder, self._spec(session, folder), self._base(session, folder))
        except PlatformError as error:
            if not self.host(session).spec.exists():
                self._finish(session, HostState("ended", "failed", 1, ended_s=time.time()), str(error))
                return
            # the emulator died between the start and the note of it, and is here again
        with self._store.lock:
            session.stage, session.started_s = RUNNING, time.time()
            session.say(session.started_s, "RUNNING")
            if session.deleted:
                self._ask_kill(session)
            self._store.save()

    def _follow(self, session: EmulatedSession) -> None:
        state = host.read(self.host(session).folder)
        self.logs.follow(session, self.host(session).log)
        if state.state == "dead":
            state = host.settle(self.host(session).folder)
        if state.state in ("ended", "dead"):
            self.logs.close(session, self.host(session).log)
            self._finish(session, state)
        elif self._store.switches.quota_kills and session.resource != "cpu" and self._is_out_of_hours(session):
            self._ask_kill(session)

    def _is_out_of_hours(self, session: EmulatedSession) -> bool:
        store, now_s = self._store, time.time()
        with store.lock:
            sessions = list(store.world.sessions.values())
        stand = hours(session.resource, sessions, store.rules, store.switches, store.world.born_s, now_s)
        return stand.used_s >= stand.allowed_s

    def _finish(self, session: EmulatedSession, state: HostState, message: str = "") -> None:
        switches = self._store.switches
        word = "COMPLETE" if state.code == 0 else "ERROR"
        if state.how == "window":
            word, message = switches.timeout_word, TIMED_OUT
        elif state.how == "killed":
            word = "CANCEL_ACKNOWLEDGED"
        is_hard = state.how in ("window", "killed") or state.state == "dead"
        is_lost = is_hard and switches.output_after_kill == "lost"
        output = self.host(session).output
        if is_lost:
            shutil.rmtree(output, ignore_errors=True)
        for part, size in (switches.cut_outputs or {}).items():
            _cut(output, part, size)
        with self._store.lock:
            session.stage, session.how, session.code, session.lost = ENDED, state.how, state.code, is_lost
            session.ended_s = state.ended_s or time.time()
            session.say(time.time(), word, message)
            self._store.save()

    def _ask_kill(self, session: EmulatedSession) -> None:
        (self.host(session).folder / "kill").touch()

    def _spec(self, session: EmulatedSession, folder: Path) -> HostSpec:
        switches, rules = self._store.switches, self._store.rules
        ends_s = []
        if not switches.ignore_window:
            ends_s.append(window_s(session, rules))
        if session.timeout_s is not None and not switches.ignore_timeout:
            ends_s.append(session.timeout_s)
        return HostSpec(
            ("sh", "-c", _START, "session", *self._command(folder)),
            window_s=min(ends_s) if ends_s else None,
            disk_bytes=rules.disk_bytes,
            inputs=session.mounts,
            inputs_after_s=switches.mount_late_s,
            platform="kaggle",
        )

    def _command(self, folder: Path) -> tuple[str, ...]:
        notebook = folder / "notebook.ipynb"
        if not notebook.exists():
            return (sys.executable, str(folder / "script.py"))
        if not json.loads(notebook.read_text(encoding="utf-8")).get("metadata", {}).get("kernelspec"):
            return (sys.executable, "-c", "raise SystemExit('No kernel name found in notebook')")
        return (sys.executable, "-m", "perdure.platforms.notebook", str(notebook))

    def _base(self, session: EmulatedSession, folder: Path) -> dict[str, str]:
        """The environment of a batch session, as far as it is known from docker-python and third-party probes."""
        (folder / "home").mkdir(exist_ok=True)
        secret = (folder / "token").read_text(encoding="utf-8")
        path = os.environ.get("PATH", os.defpath)
        told = {
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "KAGGLE_KERNEL_INTEGRATIONS": "",
            "KAGGLE_URL_BASE": "https://www.kaggle.com",
            "KAGGLE_DATA_PROXY_URL": "http://localhost",
            "KAGGLE_DATA_PROXY_TOKEN": secret,
            "KAGGLE_USER_SECRETS_TOKEN": secret,
            "KAGGLE_API_V1_TOKEN": str(folder / "token"),
            "KAGGLE_CONTAINER_NAME": f"kaggle_{_letters(session.id)}-{session.id}-webtier",
            "KAGGLE_DOCKER_IMAGE": "gcr.io/kaggle-images/python@sha256:" + "0" * 64,
            "PERDURE_NOTEBOOK_OUTPUT": str(self.host(session).working / "__notebook__.ipynb"),
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "HTTP_PROXY": _NOWHERE,
            "http_proxy": _NOWHERE,
            "HTTPS_PROXY": _NOWHERE,
            "https_proxy": _NOWHERE,
        }
        told |= self._network if session.internet else {}
        told |= {"TPU_ACCELERATOR_TYPE": "v5e-8"} if MACHINES[session.machine].resource == "tpu" else {}
        told |= {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        scene = folder / "scene.txt"
        return told | self.scenery.environment(
            MACHINES[session.machine], scene, path, nvidia_smi=self._store.switches.nvidia_smi
        )


def _letters(seed: int) -> str:
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=12))


def _cut(output: Path, part: str, size: int) -> None:
    """Shorten every file whose name has this part."""
    for path in sorted(output.rglob("*")):
        if part in path.relative_to(output).as_posix() and path.is_file() and path.stat().st_size > size:
            os.truncate(path, size)
