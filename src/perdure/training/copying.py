"""What it costs to bring a batch to the device: measured now and then, on the batch that is at hand."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_DEPTH = 4
_ITEMS = 256
_SHARE_OF_FREE = 0.125


def tensors_in(batch: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """The tensors of a batch: itself, or those in its mappings, lists and tuples."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth and isinstance(batch, (Mapping, list, tuple)):
        items = batch.values() if isinstance(batch, Mapping) else batch
        for item in itertools.islice(items, _ITEMS):
            yield from tensors_in(item, depth - 1)


def copy_time(batch: Any, device: torch.device) -> float | None:
    """Seconds that copying a batch to a card takes, everything before it having ended.

    The copy is dropped. It is made only where memory is ample, so that it cannot cost the training its own.

    Args:
        batch: As the loader gave it.
        device: The card.

    Returns:
        0 if the batch is on a card already; None if it could not be measured.
    """
    host = [tensor for tensor in tensors_in(batch) if tensor.device.type == "cpu"]
    if not host:
        return 0.0
    try:
        if sum(tensor.nbytes for tensor in host) > _SHARE_OF_FREE * torch.cuda.mem_get_info(device)[0]:
            return None
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        with torch.no_grad():
            copies = [tensor.to(device, non_blocking=tensor.is_pinned()) for tensor in host]
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
        del copies
    except (RuntimeError, AssertionError):  # out of memory, or a card in trouble: the training will say so
        return None
    return seconds
