"""The project that the relay tests carry: digits, with a pause in each step so that it needs several windows."""

from __future__ import annotations

from pathlib import Path

TRAIN = """
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

import perdure
from digits import load_data, build_model

EPOCHS = int(os.environ.get("EPOCHS", "10"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))

torch.set_num_threads(1)
learn, _ = load_data()
loader = DataLoader(learn, batch_size=32, shuffle=True)
with perdure.Run("digits", save_every="15 steps", seed=1, accelerator="cpu") as run:
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=EPOCHS * len(loader))
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in run.epochs(EPOCHS):
        for images, labels in run.batches(loader):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(PAUSE_S)
            run.log(loss=loss)
    run.export(formats=("safetensors",))
"""

DIGITS = """
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset


class Digits(Dataset):
    def __init__(self, images, labels, augment):
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            down, right = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((down, right), dims=(1, 2)) + 0.1 * torch.randn_like(image)
        return image, self.labels[index]


def load_data():
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    return Digits(images[:-360], labels[:-360], True), Digits(images[-360:], labels[-360:], False)


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(256, 10),
    )
"""


def write_project(folder: Path) -> Path:
    """A project of two files; returns its script."""
    folder.mkdir(parents=True)
    (folder / "digits.py").write_text(DIGITS)
    (folder / "train.py").write_text(TRAIN)
    return folder / "train.py"
