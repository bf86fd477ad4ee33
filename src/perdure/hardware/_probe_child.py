"""Asks one framework what it sees and lets it compute: ``python _probe_child.py torch|tensorflow|keras``.

A program of its own that needs nothing but that framework. It says what it is about to do, one JSON document a
line, so that a crash or a hang has a place. ``perdure.hardware.probe`` starts it, reads along, and ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

SIZE = 1024
"""Rows of the matrices whose product is checked."""

FAST_SIZE = 4096
"""Rows of the matrices whose product is timed, in each precision."""

TOLERANCE = 1e-2
"""Largest difference to the CPU, relative to the largest value: TF32 (10 bits) and bfloat16 (7) are right."""

_PR_SET_PDEATHSIG = 1


def main(framework: str) -> int:
    """Tell everything about one framework."""
    out = _claim_stdout()
    _die_first()

    def tell(**facts: Any) -> None:
        out.write(json.dumps(facts) + "\n")
        out.flush()

    if importlib.util.find_spec(framework) is None:
        tell(installed=False, done=True)
        return 0
    tell(installed=True, stage=f"importing {framework}")
    try:
        for facts in ASK[framework]():
            tell(**facts)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
        tell(error=_words(error))
    tell(done=True)
    return 0


def ask_torch() -> Iterator[dict[str, Any]]:
    """What torch is built for, what it sees, and whether it computes."""
    import torch

    hip = getattr(torch.version, "hip", None)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {hip}" if hip else ""
    yield {"version": str(torch.__version__), "build": build, "stage": "looking for cards"}
    count = torch.cuda.device_count() if build and torch.cuda.is_available() else 0
    if build and not count:
        yield {"reason": _why_no_cuda(torch)}
    if count:
        yield {"architectures": torch.cuda.get_arch_list()}
    for index in range(count):
        known = torch.cuda.get_device_properties(index)
        place = f"cuda:{index}"
        yield {
            "device": place,
            "name": known.name,
            "capability": [known.major, known.minor],
            "memory_bytes": known.total_memory,
            "stage": f"running a kernel on {place} ({known.name})",
        }
        outcome = _outcome(place, partial(_compute_torch, torch, place))
        yield outcome
        if outcome.get("right"):
            yield {"stage": f"timing {place} ({known.name})"}
            yield _outcome(place, partial(_torch_speeds, torch, place), "untimed")


def _why_no_cuda(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001  (its text is the reason)
        return _words(error)
    return ""


def _compute_torch(torch: Any, place: str) -> dict[str, Any]:
    """A matrix product, and a convolution, which goes through cuDNN."""
    torch.manual_seed(0)
    x_MK, w_KN = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    images_BCHW, w_OCHW = torch.randn(4, 3, 32, 32), torch.randn(8, 3, 3, 3)
    begun = time.perf_counter()
    product_MN = (x_MK.to(place) @ w_KN.to(place)).cpu()
    seconds = time.perf_counter() - begun
    maps_BOHW = torch.conv2d(images_BCHW.to(place), w_OCHW.to(place)).cpu()
    off = max(
        _off(product_MN - x_MK @ w_KN, product_MN),
        _off(maps_BOHW - torch.conv2d(images_BCHW, w_OCHW), maps_BOHW),
    )
    return {"seconds": seconds, "right": off <= TOLERANCE, "off": off}


def _off(difference: Any, value: Any) -> float:
    """Largest difference relative to the largest value; infinite for NaN."""
    off = float(abs(difference).max()) / max(float(abs(value).max()), 1e-9)
    return off if math.isfinite(off) else 1e9


def _torch_speeds(torch: Any, place: str) -> dict[str, dict[str, float]]:
    """Matrix products in TFLOP/s, by precision: the best of a few."""
    speeds = {}
    for dtype in ("float32", "float16", "bfloat16"):
        x_MM = torch.ones(FAST_SIZE, FAST_SIZE, device=place, dtype=getattr(torch, dtype))
        taken = []
        for _ in range(4):
            torch.cuda.synchronize(place)
            begun = time.perf_counter()
            x_MM @ x_MM
            torch.cuda.synchronize(place)
            taken.append(time.perf_counter() - begun)
        speeds[dtype] = 2 * FAST_SIZE**3 / min(taken) / 1e12
    return {"speeds": speeds}


def ask_tensorflow() -> Iterator[dict[str, Any]]:
    """What TensorFlow is built for, what it sees, and whether it computes."""
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # it takes the whole card otherwise
    import tensorflow as tf

    info = tf.sysconfig.get_build_info()
    cuda = info.get("cuda_version", "unknown version") if info.get("is_cuda_build") else ""
    yield {
        "version": str(tf.__version__),
        "build": f"CUDA {cuda}" if cuda else "ROCm" if info.get("is_rocm_build") else "",
        "architectures": list(info.get("cuda_compute_capabilities", [])),
        "stage": "looking for cards",
    }
    for kind in ("GPU", "TPU"):
        for index, device in enumerate(tf.config.list_physical_devices(kind)):
            known = tf.config.experimental.get_device_details(device) if kind == "GPU" else {}
            name, place = known.get("device_name", device.name), f"{kind}:{index}"
            yield {
                "device": place,
                "name": name,
                "capability": list(known["compute_capability"]) if "compute_capability" in known else None,
                "stage": f"running a kernel on {place} ({name})",
            }
            yield _outcome(place, partial(_compute_tensorflow, tf, place))


def _compute_tensorflow(tf: Any, place: str) -> dict[str, Any]:
    with tf.device("/CPU:0"):
        x_MK = tf.random.stateless_normal((SIZE, SIZE), seed=(0, 1))
        expected_MM = x_MK @ x_MK
    begun = time.perf_counter()
    with tf.device(f"/{place}"):
        product_MM = tf.matmul(x_MK, x_MK)
    product_MM = product_MM.numpy()
    seconds = time.perf_counter() - begun
    off = _off(product_MM - expected_MM.numpy(), product_MM)
    return {"seconds": seconds, "right": off <= TOLERANCE, "off": off}


def ask_keras() -> Iterator[dict[str, Any]]:
    """Which backend Keras has, and where it computes by default."""
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import keras

    backend = keras.backend.backend()
    yield {"version": str(keras.__version__), "backend": backend, "stage": "running a kernel where Keras computes"}
    x_MM = keras.ops.convert_to_numpy(keras.random.normal((SIZE, SIZE), seed=0))
    begun = time.perf_counter()
    product = keras.ops.matmul(keras.ops.convert_to_tensor(x_MM), x_MM)
    place = _place_of(product)
    product_MM = keras.ops.convert_to_numpy(product)
    seconds = time.perf_counter() - begun
    off = _off(product_MM - x_MM @ x_MM, product_MM)
    yield {"device": place, "name": "", "capability": None}
    yield {"device": place, "seconds": seconds, "right": off <= TOLERANCE, "off": off}


def _place_of(tensor: Any) -> str:
    """Where a tensor of any backend is: ``"cuda:0"``, ``"GPU:0"``, ``"cpu"``."""
    devices = getattr(tensor, "devices", None)
    where = str(next(iter(devices())) if callable(devices) else getattr(tensor, "device", "cpu"))
    return where.rpartition("device:")[2] or where


def _outcome(device: str, compute: Callable[[], dict[str, Any]], key: str = "error") -> dict[str, Any]:
    """What came of computing on a device; an error is an answer, and the next device is asked all the same."""
    try:
        return {"device": device, **compute()}
    except Exception as error:  # noqa: BLE001  (a framework raises what it likes)
        return {"device": device, key: _words(error)}


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _claim_stdout() -> Any:
    """The real stdout, for the answer alone; what frameworks print goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def _die_first() -> None:
    """Linux kills this process with the one that asks (prctl(2)), and before it when memory is short (proc(5))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")


ASK: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "torch": ask_torch,
    "tensorflow": ask_tensorflow,
    "keras": ask_keras,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
