"""Handwritten digits: a training script as a user writes it. Perdure is in the lines that say ``run``."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import perdure

EPOCHS = 16


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Images of 8 x 8 pixels; those to learn from are shifted and noisy, anew each time."""

    def __init__(self, images: Tensor, labels: Tensor, *, augment: bool) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment:
            down, right = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((down, right), dims=(1, 2)) + 0.1 * torch.randn_like(image)
        return image, self.labels[index]


def load_data() -> tuple[Digits, Digits]:
    """1437 digits to learn from, and 360 by other writers, held out."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    return Digits(images[:-360], labels[:-360], augment=True), Digits(images[-360:], labels[-360:], augment=False)


def block(inputs: int, outputs: int) -> nn.Module:
    """A convolution that halves the image."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
    )


def build_model() -> nn.Module:
    """8 x 8 pixels to 2 x 2 x 64 features to 10 digits."""
    return nn.Sequential(block(1, 32), block(32, 64), nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, 10))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    """Share of digits that are recognised."""
    model.eval()
    right = [(model(images).argmax(1) == labels).float() for images, labels in loader]
    model.train()
    return float(torch.cat(right).mean())


def main() -> None:
    """Train, and write the model."""
    learn, held_out = load_data()
    learn_loader, held_out_loader = (
        DataLoader(learn, batch_size=32, shuffle=True),
        DataLoader(held_out, batch_size=360),
    )

    with perdure.Run("digits", save_every="10 steps", seed=1) as run:
        model = build_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=EPOCHS * len(learn_loader))
        run.track(model=model, optimizer=optimizer, scheduler=scheduler)
        for _ in run.epochs(EPOCHS):
            for images, labels in run.batches(learn_loader):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                run.log(loss=loss)
            run.log(accuracy=evaluate(model, held_out_loader))
        run.export(example=held_out[0][0].unsqueeze(0), formats=("pth", "safetensors"))


if __name__ == "__main__":
    main()
