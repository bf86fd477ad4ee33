"""Makes the sample run folder of the present format version: ``python tests/legacy/make_sample.py``.

Run once for each released format version, and the result committed; a sample is never made again, since the
test is that what *was* written still loads.
"""

from __future__ import annotations

import math
import shutil
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

from perdure.checkpoint.manifest import FORMAT_VERSION
from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Store
from perdure.checkpoint.tensorfile import ITEM_BYTES
from perdure.checkpoint.values import encode
from perdure.core.clock import SystemClock
from perdure.core.paths import RunPaths
from perdure.core.progress import Position

HERE = Path(__file__).parent

VALUES = {
    "nothing": None,
    "yes": True,
    "count": 7,
    "beyond 64 bits": 2**100,
    "rate": 0.1,
    "signed zero": -0.0,
    "not finite": [math.inf, -math.inf, math.nan],
    "odd nan": struct.unpack(">d", bytes.fromhex("7ff4000000000001"))[0],
    "complex": complex(1.5, -0.0),
    "text": "größer ☃",
    "undecodable": "\udcff",
    "bytes": b"\x00\xff",
    "range": range(0, 10, 3),
    "list": [1, [2]],
    "tuple": (1, (2,)),
    "dict": {1: "one", (2, "b"): "two", None: "three", "$": "four"},
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "default": defaultdict(None, {"a": [1]}),
    "counter": Counter({"a": 3}),
    "deque": deque([1, 2], maxlen=3),
    "set": {3},
    "frozenset": frozenset({"a"}),
}
"""One of each kind of value."""


class Noon(SystemClock):
    """The same label in every sample."""

    def time(self) -> float:
        return 1_700_000_000.0


def buffers(step: int) -> list[Buffer]:
    """One of each dtype, one empty, one without dimensions, and one that moves with the step."""
    made = [
        Buffer(f"model/{dtype}", "tensor", dtype, (2, 3), memoryview(bytes(i % 251 for i in range(6 * size))))
        for dtype, size in ITEM_BYTES.items()
    ]
    made.append(Buffer("model/backbone", "tensor", "U8", (8000,), memoryview(bytes(i % 256 for i in range(8000)))))
    made.append(Buffer("model/empty", "tensor", "F32", (0, 4), memoryview(b"")))
    made.append(Buffer("model/moving", "array", "F64", (), memoryview(struct.pack("<d", step / 8))))
    return made


def snapshot(step: int) -> Snapshot:
    """The state at a step."""
    return Snapshot(
        Position(step, epoch=1, call=0, batch=step, finished=False),
        encode(VALUES, lambda *_: None),
        buffers(step),
        metrics={"loss": math.nan, "accuracy": step / 100},
        healthy=step != 20,
        session=2,
        reason="stop",
        training_s=1.5 * step,
        libraries={"python": "3.11.7"},
    )


def main() -> None:
    """Write the sample of the present format version beside this file."""
    folder = HERE / f"v{FORMAT_VERSION}" / "sample"
    shutil.rmtree(folder, ignore_errors=True)
    store = Store(RunPaths(folder), "sample", clock=Noon())
    store.open({"made by": "make_sample.py"})
    store.save(snapshot(10))
    store.save(snapshot(20))
    store.close()
    (folder / "lock").unlink()


if __name__ == "__main__":
    main()
