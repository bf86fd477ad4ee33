"""The first remedy of each verdict, with numbers where there are any."""

from __future__ import annotations

import math

from perdure.hardware.known import Precision
from perdure.hardware.use import Circumstances, LoopTimes

HELD_BYTES = 256_000_000
"""Memory of a card that is worth a word when nothing else is lost by holding it."""

QUOTA = {"kaggle": "your weekly GPU quota", "colab": "your compute units"}
"""What a session costs by the minute, by platform."""

ON_THE_CPU = (
    'Run(..., accelerator="gpu") says why the card cannot be used, and so does perdure doctor; if the CPU is '
    'meant, say accelerator="cpu" and switch the accelerator off, it costs quota'
)
MOVE_TO_THE_CARD = "put the model and each batch there: model.to(run.device), x.to(run.device)"
LESS_ON_THE_CPU = (
    "make each step larger: a larger batch; and look for what the CPU does in a step (.item(), print, metrics, "
    "work on the data that the loader's workers could do)"
)
LESS_MEMORY = (
    "take a smaller batch, with gradients gathered over several, or mixed precision, before a longer batch does "
    "not fit; what the framework keeps in reserve counts as in use"
)
OTHERS_MEMORY = (
    "end the other processes (nvidia-smi shows them; often it is another notebook's kernel, or an earlier run of "
    "this one)"
)


def feed_faster(loop: LoopTimes, around: Circumstances) -> str:
    """For a loop that waits for its next batch.

    With n workers that load at once, a batch comes every ``load_s / n``. So the workers needed are the time of
    loading over the time of the step that it hides behind.
    """
    wait_s, step_s = loop.wait_s / loop.steps, max(loop.compute_s / loop.steps, 1e-6)
    cores = f"{around.cores} core{'s' if around.cores != 1 else ''}"
    if around.workers is None:
        return f"load in the background: torch.utils.data.DataLoader with num_workers={around.cores} ({cores} here)"
    if around.workers >= around.cores:
        fewer = "" if around.workers == around.cores else f"num_workers={around.cores} is enough for {cores}; "
        return (
            f"{fewer}make an item cheaper, its {around.workers} workers have all {cores}: decode and resize once "
            "and store the result, smaller images, augmentation on the card"
        )
    load_s = wait_s if around.workers == 0 else (wait_s + step_s) * around.workers
    needed = max(around.workers + 1, math.ceil(load_s / step_s))
    workers = min(needed, around.cores)
    pinned = "" if around.pinned else " and pin_memory=True"
    now = "none" if around.workers == 0 else str(around.workers)
    remedy = f"give the DataLoader num_workers={workers}{pinned} (it has {now}; {cores} here)"
    if needed <= around.cores:
        return remedy
    return f"{remedy}; that is still not enough, so then make an item cheaper: decode once, smaller images"


def copy_faster(around: Circumstances) -> str:
    """For a loop in which copying to the card takes long."""
    if not around.pinned:
        return "pin_memory=True in the DataLoader, and x.to(run.device, non_blocking=True)"
    return (
        "copy with x.to(run.device, non_blocking=True) and send less: uint8 images, made float32 and augmented on "
        "the card"
    )


def use_more(cards: int, idle: str) -> str:
    """For a card that nobody uses.

    Args:
        cards: How many there are.
        idle: What ``CUDA_VISIBLE_DEVICES`` calls the idle one.
    """
    which, times = ("both", "twice") if cards == 2 else ("them all", f"{cards} times")
    return (
        f"use {which} from one process with model = torch.nn.DataParallel(model), in a notebook too, and a batch "
        f"{times} as large in a new run (DistributedDataParallel needs a script, not a cell, started with torchrun "
        f"--standalone --nproc-per-node {cards}, which finds a free port); or train another "
        f"fold on it: CUDA_VISIBLE_DEVICES={idle} for a second process"
    )


def cooler(reason: str) -> str:
    """For a card that is slowed down."""
    if reason == "thermal":
        return (
            "a hosted machine: another session may get a cooler one; your own: free its fans and filters, or lower "
            "the power limit (nvidia-smi -pl)"
        )
    return "a hosted machine: another session may get a better one; your own: check its power supply and cables"


def faster_numbers(known: Precision) -> str:
    """For a model that trains in numbers that this card computes slowly."""
    if known.bf16:
        return (
            'torch.autocast("cuda", dtype=torch.bfloat16) around forward and loss, no GradScaler; or, for float32 '
            'as it is, torch.set_float32_matmul_precision("high")'
        )
    return (
        'torch.autocast("cuda", dtype=torch.float16) around forward and loss, with a torch.amp.GradScaler that the '
        "run tracks"
    )


def larger_batch(times: float) -> str:
    """For a card with much memory to spare.

    Args:
        times: All of its memory over what is in use.
    """
    factor = min(8, 2 ** int(math.log2(0.7 * times)))
    return (
        f"start a new run with a batch {factor} times as large and compare its samples/s; the learning rate may "
        "have to follow"
    )


def let_go(platform: str) -> str:
    """For a session that still holds its card."""
    return {
        "kaggle": (
            "stop the session with the power button when its files are safe (Save Version, or Persistence: files); "
            "a version run by Save & Run All ends by itself"
        ),
        "colab": "Runtime > Disconnect and delete runtime, when its files are safe on Drive",
    }.get(platform, "restart the kernel, or del the model and call torch.cuda.empty_cache()")
