"""The training that the crash matrix and the random kills are played on: small, seeded, exact."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perdure
from perdure.checkpoint import saves

saves.STREAM_FROM_BYTES = 1  # written while it arrives, as a large state is


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    with perdure.Run("chaos", root=out, save_every="2 steps", seed=1) as run:
        data = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        run.track(model=model, optimizer=optimizer, scheduler=scheduler)
        print(f"resumed from step {run.resumed_from or 0}", flush=True)
        for _ in run.epochs(2):
            for x, y in run.batches(DataLoader(data, batch_size=12, shuffle=True)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            scheduler.step()
    final = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    torch.save(final, out / "final.pt")


if __name__ == "__main__":
    main()
