"""What a verdict needs to know about the training beside figures: loader, cores, types, mixed precision."""

from __future__ import annotations

import functools
from typing import Any

import torch

from perdure.data.source import Source
from perdure.hardware.host import usable_cores
from perdure.hardware.use import Circumstances
from perdure.training.world.world import World

_HALF = (torch.float16, torch.bfloat16)


class AutocastWatch:
    """Tells whether mixed precision is entered in a stretch of the loop.

    An autocast context leaves nothing behind that could be asked for later. So its door is watched for as long
    as the first steps take: the first time that it is entered, or ``end()``, puts it back as it was.
    """

    def __init__(self) -> None:
        self.seen = False
        self._plain: Any = None

    def begin(self) -> None:
        """From here on."""
        door = torch.autocast
        if self.seen or self._plain is not None:
            return
        plain: Any = door.__enter__
        self._plain = plain

        @functools.wraps(plain)
        def enter(context: Any) -> Any:
            if context._enabled:
                self.seen = True
                self.end()
            return plain(context)

        self._ours = enter
        door.__enter__ = enter  # type: ignore[method-assign]

    def end(self) -> None:
        """Up to here."""
        # another may have been put in front meanwhile, and calls this one: then it stays, and only passes on
        if self._plain is not None and torch.autocast.__enter__ is self._ours:
            torch.autocast.__enter__ = self._plain  # type: ignore[method-assign]
            self._plain = None


def circumstances(world: World, source: Source | None, device: str, mode: str, *, autocast: bool) -> Circumstances:
    """What is known of the training now.

    Args:
        world: The tracked objects.
        source: The leading loader as the run sees it, None before the first batch.
        device: Where the run trains.
        mode: How the session runs.
        autocast: Mixed precision was seen in the loop.
    """
    loader = source.loader if source is not None else None
    loader = loader if isinstance(loader, torch.utils.data.DataLoader) else None
    sizes: dict[str, int] = {}
    for parameter in {id(p): p for p in world.parameters().values()}.values():
        if not isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            name = str(parameter.dtype).removeprefix("torch.")
            sizes[name] = sizes.get(name, 0) + parameter.nbytes
    half = any(str(dtype).removeprefix("torch.") in sizes for dtype in _HALF)
    scaled = any(isinstance(part.value, torch.amp.GradScaler) and part.value.is_enabled() for part in world.parts())
    return Circumstances(
        device=device,
        workers=int(loader.num_workers) if loader is not None else None,
        pinned=bool(loader.pin_memory) if loader is not None else None,
        cores=usable_cores().usable,
        parameter_dtypes=sizes,
        autocast=autocast or half or scaled,
        mode=mode,
        tf32=_tf32(),
    )


def _tf32() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # it was set by the newer names, which the older one refuses to speak of
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
