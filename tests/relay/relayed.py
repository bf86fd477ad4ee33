"""A relay in small: a project without torch, the emulator, the real client, the real controller."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from perdure.platforms.protocol import Platform
from perdure.platforms.reach import reach
from perdure.relay.bundle import make_bundle
from perdure.relay.controller import Controller
from perdure.relay.home import Home
from perdure.relay.records import Relay, RelayOrder
from perdure.relay.slugs import new_relay_id
from perdure.relay.store import Store
from perdure.testing.kaggle import Emulator, Rules

PACE = {"poll_s": 0.2, "settle_s": 2.0, "lag_s": 3.0, "retry_s": 0.2, "retry_most_s": 1.0}

TRAIN = """
import os, sys, time
from pathlib import Path

from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Store
from perdure.core.files import write_json
from perdure.core.paths import RunPaths
from perdure.core.progress import Position
from perdure.core.settings import Settings

END, EACH = int(os.environ["END"]), int(os.environ["EACH"])
settings = Settings.from_environment()
store = Store(RunPaths(settings.root / "digits"), "digits", inputs=settings.inputs)
store.open({})
newest = store.newest()
step = began = newest.manifest.step if newest else 0


def tell(status, reason=""):
    run = {"name": "digits", "folder": str(store.paths.folder), "status": status, "reason": reason, "step": step,
           "epoch": 0, "session": 1, "checkpoint": f"step-{step:09d}" if step else None,
           "resumed_from": began or None, "updated": time.time()}
    plan = {"plan": {"unit": "steps", "count": END}, "speeds": {"steps_per_s": 10.0}}
    write_json(store.paths.session_json, {"format_version": 1, "run": "digits", **run, **plan})
    write_json(settings.report, {"version": 1, "pid": os.getpid(), "status": status, "runs": [run]})


def save():
    data = memoryview(bytes(str(step), "ascii") * 1000)
    position = Position(step=step, finished=step >= END)
    store.save(Snapshot(position, {"step": step}, [Buffer("w", "tensor", "U8", (len(data),), data)]))


tell("running")
exec(os.environ.get("FIRST", ""))
goal = min(END, step + EACH)
while step < goal:
    step += 1
    time.sleep(0.01)
save()
exec(os.environ.get("LAST", ""))
tell("finished" if step >= END else "paused", "" if step >= END else "enough for one session")
sys.exit(0 if step >= END else 75)
"""


@dataclass
class Relaying:
    """A relay that a test drives.

    Attributes:
        emulator: The emulator.
        platform: It, through the official client.
        store: The database.
        relay_id: The relay.
    """

    emulator: Emulator
    platform: Platform
    store: Store
    relay_id: str

    @property
    def relay(self) -> Relay:
        return self.store.load(self.relay_id)

    def tick(self) -> float | None:
        return Controller(self.store, self.platform).tick(self.relay_id)

    def drive(self, until=lambda relay: False, within_s: float = 60.0) -> Relay:
        """Tick until it is at its end, or something holds."""
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            wake_s = self.tick()
            if wake_s is None or until(self.relay):
                return self.relay
            time.sleep(max(0.02, min(0.3, wake_s - time.time())))
        raise AssertionError(f"not at its end: {self.relay}")


class Bench:
    """Makes relays on one emulator."""

    def __init__(self, folder: Path, bundle: Path, digest: str, rules: Rules) -> None:
        self.folder, self._bundle, self._digest = folder, bundle, digest
        self.emulator = Emulator(folder / "emulator", rules)
        self.emulator.__enter__()
        self.platform = reach("emulator", {"folder": str(self.emulator.folder)})
        self.store = Store(Home(folder / "home"))

    def start(self, **more) -> Relaying:
        environment = {"END": "20", "EACH": "10", **more.pop("environment", {})}
        order = RelayOrder(
            name="digits",
            target="train.py",
            project=self.folder,
            platform="emulator",
            accelerator="none",
            window_s=30.0,
            out=self.folder / "out",
            bundle=self._bundle,
            bundle_digest=self._digest,
            environment=environment,
            place={"folder": str(self.emulator.folder)},
        )
        relay_id = new_relay_id()
        self.store.create(relay_id, replace(order, **more), time.time())
        return Relaying(self.emulator, self.platform, self.store, relay_id)

    def close(self) -> None:
        self.store.close()
        self.platform.close()
        self.emulator.close()


def pack(folder: Path) -> tuple[Path, str]:
    """The bundle of the project, and its digest."""
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    bundle = make_bundle(project, "train.py", folder / "bundle.tar.xz")
    return bundle.path, bundle.digest
