"""The training of ``perdure bench``: a transformer with AdamW, as large as is asked for."""

from __future__ import annotations

import torch
from torch import nn

_WIDTHS = (2048, 1024, 768, 384, 192, 96)
_LAYERS = 4  # at least so many, where the state is large enough for them
_BYTES_A_WEIGHT = 12 * 12  # a layer has about 12 x width x width weights, each with two moments, in float32


class BenchWork:
    """A model, its optimizer, and steps.

    Args:
        state_bytes: How large both together shall be, about.
        device: Where.
    """

    def __init__(self, state_bytes: int, device: torch.device) -> None:
        fitting = (w for w in _WIDTHS if state_bytes >= _LAYERS * _BYTES_A_WEIGHT * w * w)
        self._width = next(fitting, _WIDTHS[-1])
        self._layers = max(1, round(state_bytes / (_BYTES_A_WEIGHT * self._width**2)))
        self._device = device
        self._x_BTC = torch.randn(4, 32, self._width, device=device)
        self.renew()
        self.step()

    def renew(self) -> None:
        """Begin with new weights and no optimizer state, as a new process does."""
        layer = nn.TransformerEncoderLayer(
            self._width, self._width // 32, 4 * self._width, dropout=0.1, batch_first=True, device=self._device
        )
        self.model = nn.TransformerEncoder(layer, self._layers, enable_nested_tensor=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> None:
        """Forward, backward, step; on a card it is only asked for."""
        loss = self.model(self._x_BTC).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def wait(self) -> None:
        """Until everything that was asked of the card is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def nbytes(self) -> int:
        """Bytes of parameters and optimizer state."""
        moments = sum(int(v.nbytes) for state in self.optimizer.state.values() for v in state.values())
        return sum(p.nbytes for p in self.model.parameters()) + moments
