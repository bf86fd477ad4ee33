"""A training that keeps its state with Perdure's store and reports as a run does, without torch: it starts in no time.

Arguments: steps, and faults put in on purpose: ``forgets`` (the resume loses half of the state), ``unseeded``,
``hungry`` (a checkpoint is of a megabyte), ``stuck`` (never saves), ``odd-generator`` (one that nothing uses).
``pauses`` is no fault: the session ends by itself after some steps, whatever the load of the machine.
"""

import json
import os
import random
import sys
import time
import zlib
from pathlib import Path

from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Store
from perdure.core.clock import SystemClock
from perdure.core.files import write_json
from perdure.core.paths import RunPaths
from perdure.core.progress import Position
from perdure.core.settings import Settings

STEPS, FAULTS = int(sys.argv[1]), sys.argv[2:]
EVERY, SESSION_STEPS, STEP_S, SIZE = 5, 60, 0.01, 1_000_000 if "hungry" in FAULTS else 1000
settings = Settings.from_environment()
store = Store(RunPaths(settings.root / "steps"), "steps", inputs=settings.inputs)
store.open({})
checkpoint = store.newest()
weights, momentum, step = bytearray(SIZE), 1, 0
if checkpoint is not None:
    weights[:] = checkpoint.buffer("model/weight")
    step = checkpoint.manifest.position.step
    momentum = 1 if "forgets" in FAULTS else checkpoint.manifest.values["momentum"]
resumed_from = step if checkpoint is not None else None
noise = random.Random(os.urandom(8) if "unseeded" in FAULTS else 0).randrange(1 << 30)
window_s = settings.limits.window_s


def report(status):
    run = {"name": "steps", "folder": str(store.paths.folder), "status": status, "reason": "", "step": saved}
    run |= {"resumed_from": resumed_from, "checkpoint": "some" if saved else None, "session": 1}
    write_json(settings.report, {"version": 1, "status": status, "runs": [run]})
    plan, speeds = {"unit": "steps", "count": STEPS}, {"steps_per_s": 1 / STEP_S}
    write_json(store.paths.session_json, {"step": saved, "plan": plan, "speeds": speeds})


def save(finished=False):
    if "stuck" in FAULTS and not finished:
        return saved
    buffers = [Buffer("model/weight", "tensor", "U8", (SIZE,), memoryview(weights))]
    if "odd-generator" in FAULTS:
        buffers.append(Buffer("generators/python", "tensor", "U8", (8,), memoryview(os.urandom(8))))
    store.save(Snapshot(Position(step, finished=finished), {"momentum": momentum}, buffers))
    return step


saved = step
report("running")
while step < STEPS:
    tired = "pauses" in FAULTS and window_s < 86400 and step - (resumed_from or 0) == SESSION_STEPS
    if tired or (window_s and SystemClock().monotonic() - settings.started_s > window_s - 0.3):
        saved = save()
        report("paused")
        sys.exit(75)
    time.sleep(STEP_S)
    step += 1
    momentum = zlib.crc32(json.dumps([momentum, step, noise]).encode())
    weights[step % SIZE] = momentum & 0xFF
    if step % EVERY == 0:
        saved = save()
        report("running")
saved = save(finished=True)
report("finished")
Path("result.txt").write_text(f"{momentum}\n")
