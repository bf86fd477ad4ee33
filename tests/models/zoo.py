"""Small models, one of each kind that export tools get wrong; every one trained a little and left in train mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

FORMATS = ("pth", "safetensors", "pt2", "onnx")


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        build: The model, and inputs for it.
        cannot: Format to what its error says.
    """

    build: Callable[[], tuple[nn.Module, Any]]
    cannot: dict[str, str]


class Convolutions(nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        return self.head(self.drop(self.norm(self.conv(images)).relu().mean((2, 3))))


class TiedTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(8, 2)

    def forward(self, sequence):
        out, _ = self.lstm(sequence)
        return self.head(out[:, -1])


class TwoInTwoOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(5, 6)

    def forward(self, left, right, *, scale):
        joined = torch.tanh(self.left(left) * scale + self.right(right))
        return joined, (joined.sum(1), joined.argmax(1))


class DictOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.logits = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, features):
        hidden = self.body(features).relu()
        return {"logits": self.logits(hidden), "features": hidden, "nothing": None}


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, signal):
        return torch.fft.irfft(torch.fft.rfft(signal) * self.filter, n=8)


def trained(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """The model after two steps, so that statistics and weights are not those of a fresh one."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        outputs = [leaf for leaf in leaves(model(*args, **kwargs)) if leaf.is_floating_point()]
        optimizer.zero_grad()
        sum(leaf.float().square().mean() for leaf in outputs).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [leaf for each in values for leaf in leaves(each)]


def _images(model: nn.Module, **how: Any) -> tuple[nn.Module, torch.Tensor]:
    images = torch.randn(2, 3, 8, 8).to(**how)
    return trained(model.to(**how), images), images


def _ids() -> torch.Tensor:
    return torch.randint(0, 50, (2, 6))


def _lora(merged: bool) -> tuple[nn.Module, torch.Tensor]:
    from peft import LoraConfig, get_peft_model

    features = torch.randn(2, 4)  # PEFT takes *args and **kwargs
    model = trained(get_peft_model(DictOut(), LoraConfig(r=2, target_modules=["body", "logits"])), features)
    return (model.merge_and_unload() if merged else model), features


def _hugging_face() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, attn_implementation="eager")
    ids = _ids()
    return GPT2LMHeadModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _several() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    inputs = {"left": torch.randn(3, 4), "right": torch.randn(3, 5), "scale": torch.rand(3, 6)}
    return trained(TwoInTwoOut(), **inputs), inputs


KINDS = {
    "CNN with dropout": Kind(lambda: _images(Convolutions()), {}),
    "BatchNorm": Kind(lambda: _images(Convolutions(norm=True)), {}),
    "channels_last": Kind(lambda: _images(Convolutions(), memory_format=torch.channels_last), {}),
    "bfloat16": Kind(
        lambda: _images(Convolutions(norm=True), dtype=torch.bfloat16),
        {"onnx": r'conv\.weight: it is a bfloat16 tensor(.|\n)*"pt2"'},
    ),
    "transformer, tied weights": Kind(lambda: (trained(TiedTransformer(), ids := _ids()), ids), {}),
    "transformers (GPT-2)": Kind(_hugging_face, {}),
    "LSTM": Kind(lambda: (trained(Recurrent(), x := torch.randn(2, 5, 4)), x), {}),
    "LoRA": Kind(lambda: _lora(False), {}),
    "LoRA, merged": Kind(lambda: _lora(True), {}),
    "several inputs and outputs": Kind(_several, {}),
    "dict output": Kind(lambda: (trained(DictOut(), x := torch.randn(2, 4)), x), {}),
    "complex weights": Kind(
        lambda: (trained(Complex(), x := torch.randn(2, 8)), x),
        {"onnx": r'filter: it is a complex64 tensor(.|\n)*"pt2"'},
    ),
    "branches on values": Kind(
        lambda: (trained(Branching(), x := torch.randn(2, 4)), x),
        dict.fromkeys(("pt2", "onnx"), r'torch\.export cannot make a graph of Branching(.|\n)*"pth"'),
    ),
}
