"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """A boundary of a run: the instant between two training steps.

    Attributes:
        step: Finished steps.
        epoch: Epoch that the boundary is in, from 0 (0 throughout under ``steps()``).
        call: Number of the ``batches()`` call within the epoch that the boundary is in or before.
        batch: Batches of that call that are done; 0 before its first one.
        finished: The run has reached its end.
    """

    step: int = 0
    epoch: int = 0
    call: int = 0
    batch: int = 0
    finished: bool = False

    @property
    def order(self) -> tuple[int, int, int, int, bool]:
        """Sort key: a later boundary of the same run is greater."""
        return (self.step, self.epoch, self.call, self.batch, self.finished)

    def __str__(self) -> str:
        text = f"step {self.step}, epoch {self.epoch}"
        if self.batch:
            text += f", batch {self.batch}"
        return text + (", finished" if self.finished else "")
