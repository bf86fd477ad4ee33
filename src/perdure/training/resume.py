"""A checkpoint that is being taken up: what it holds, as long as it is needed, and proven whenever it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from perdure.checkpoint.opened import Checkpoint
from perdure.core.progress import Position
from perdure.tensors.decoding import unflatten
from perdure.training.adopting import adopt
from perdure.training.world.world import World

_COPIED = ("objects", "vars")
"""What goes into live values, and is then not needed any more. The rest is small, and stays as it was read."""


class Resume:
    """A checkpoint that is being taken up.

    Large state of optimizers that the checkpoint brought in memory of its own is lent to the live optimizers: it is
    their state from then on, and not copied. What they were lent may have been changed when it is to be put back
    once more; whether it was, its digests tell.

    Args:
        checkpoint: It, proven.
        position: Where it was taken.

    Attributes:
        position: Where it was taken.
        tree: All that it holds; what stands under ``objects`` and ``vars`` is to be taken from ``trees``.
        armed: Its boundary is not reached yet.

    Raises:
        CorruptError: Its values are malformed.
    """

    def __init__(self, checkpoint: Checkpoint, position: Position) -> None:
        self.position = position
        self.armed = True
        self._checkpoint: Checkpoint | None = checkpoint
        self._to_lend = {_address(memory) for memory in checkpoint.kept.values()}
        self._lent: list[torch.Tensor] = []
        rest = {name: value for name, value in checkpoint.values.items() if name not in _COPIED}
        # copied: they stay, and a view of them would hold the whole file
        self.tree: dict[str, Any] = unflatten(rest, lambda name: bytearray(checkpoint.buffer(name)))
        self.tree |= self._read()

    def _read(self) -> dict[str, Any]:
        assert self._checkpoint is not None
        values = self._checkpoint.values
        read: dict[str, Any] = unflatten({name: values[name] for name in _COPIED}, self._checkpoint.buffer)
        return read

    @property
    def lent(self) -> Sequence[torch.Tensor]:
        """Tensors of the tree whose memory live optimizers were given."""
        return self._lent

    def lend(self, world: World) -> None:
        """Give optimizers that have no state yet the memory that was kept for them, each once."""
        if self.armed and self._to_lend:
            lent = adopt(world, self.tree["objects"], self._to_lend)
            self._to_lend -= lent.keys()
            self._lent += lent.values()

    def trees(self) -> Iterator[dict[str, Any]]:
        """The tree, proven as it is now; and again, read anew, if a file was written to while the tree was used.

        Raises:
            CorruptError: It was damaged since it was opened.
            UnreadableError: The system does not let it be read.
        """
        while True:
            if self._checkpoint is not None and not self._is_sound():
                self._checkpoint.forget()
                self._to_lend, self._lent = set(), []
                self.tree |= self._read()
            yield self.tree
            if self._checkpoint is None or self._checkpoint.is_untouched():
                return

    def _is_sound(self) -> bool:
        assert self._checkpoint is not None
        return self._checkpoint.is_untouched() and not (self._lent and not self._checkpoint.kept_is_as_proven())

    def end(self, tracked: Collection[str]) -> list[str]:
        """All of it was put back: what was need not stay in memory; what nobody asked for yet does.

        Args:
            tracked: Names of the objects that were put back.

        Returns:
            The names of the others.

        Raises:
            CorruptError, UnreadableError: The others cannot be read any more.
        """
        self.armed, self._lent = False, []
        untracked = sorted(set(self.tree["objects"]) - set(tracked))
        if untracked and self._checkpoint is not None and self._checkpoint.kept:
            self._checkpoint.forget()  # memory of our own is for what is used
            self.tree |= self._read()
        objects = self.tree["objects"]
        self.tree = {"objects": {name: objects[name] for name in untracked}, "streams": self.tree["streams"]}
        if not untracked:
            self._checkpoint = None
        return untracked


def _address(memory: memoryview) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
