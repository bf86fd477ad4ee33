"""Ways that the tests of this folder go: through a checkpoint's bytes, and from one world into another."""

from __future__ import annotations

import json
from typing import Any

from cases.worlds import as_dict
from perdure.tensors.encoding import flatten, to_buffers, unflatten
from perdure.training.world.world import World


def through_bytes(tree: Any) -> Any:
    """The tree as it comes back from a checkpoint."""
    document, leaves = flatten(tree)
    buffers = {buffer.name: bytes(buffer.data) for buffer in to_buffers(leaves)}
    assert len(buffers) == len(leaves), "names are not unique"
    return unflatten(json.loads(json.dumps(document, allow_nan=False)), buffers.__getitem__)


def tracking(**objects: Any) -> World:
    """A world that tracks these."""
    world = World()
    world.track(objects)
    return world


def world_of(w: dict[str, Any]) -> World:
    """A scenario's objects, tracked as a user would."""
    objects = {"model": w["model"], "optimizer": w["optimizer"], **w["extra"]}
    for name in ("scheduler", "scaler"):
        if w[name] is not None:
            objects[name] = w[name]
    assert as_dict(w["optimizer"])
    return tracking(**objects)
