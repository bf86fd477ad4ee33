"""A scenario driven through the public surface only, as a user would write it."""

from __future__ import annotations

from typing import Any

import perdure
import perdure.training.run
from cases.worlds import SCENARIOS, Progress, as_dict, full_digest, seed_all
from training.processes import kill_me


def tracked(w: dict[str, Any]) -> dict[str, Any]:
    """The objects of a world under the names that a user would give them."""
    objects = {"model": w["model"], **w["extra"]}
    for kind in ("optimizer", "scheduler", "scaler"):
        for name, value in as_dict(w[kind]).items():
            objects[f"{kind}_{name}" if name else kind] = value
    return objects


def train(run: perdure.Run, w: dict[str, Any], kill_after: int | None) -> None:
    """The user's loop. The process is killed as the call behind ``kill_after`` begins."""
    data = w["dataset"]()
    if run.resumed_from is not None and w["prime"]:
        w["prime"](next(iter(w["loader"](data, 0))))
    run.track(**tracked(w))
    if w["per_epoch"] is None:
        stream = run.cycle(w["loader"](data, 0))
        for step in run.steps(w["calls"]):
            call(w, next(stream), Progress(step), kill_after)
        return
    for epoch in run.epochs(-(-w["calls"] // w["per_epoch"])):
        for batch in run.batches(w["loader"](data, epoch)):
            call(w, batch, Progress(run.step, epoch, run.batch), kill_after)
            if run.step + 1 == w["calls"] and w["calls"] % w["per_epoch"]:
                break
        else:
            if w["end_epoch"]:
                w["end_epoch"](Progress(run.step, epoch, 0))


def call(w: dict[str, Any], batch: Any, progress: Progress, kill_after: int | None) -> None:
    if progress.step == kill_after:
        kill_me()
    w["train_step"](batch, progress)


def session(name: str, root: str, seed: int, kill_after: int | None) -> tuple[str, int | None]:
    """One session of a scenario; returns the digest of the whole world at its end, and where it resumed."""
    seed_all(seed)
    w = SCENARIOS[name]["build"]()
    with perdure.Run(name.replace("_", "-"), root=root, save_every="1 step") as run:
        train(run, w, kill_after)
    assert run.finished
    return full_digest(w), run.resumed_from
