"""A run on a real card: proved, watched, and not disturbed. Needs a card."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import perdure
from perdure.cli.main import main
from perdure.core.errors import AcceleratorError
from perdure.training.copying import copy_time
from perdure.training.device import choose_device
from training.jobs import seed_all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card"),
]


def go(root, *, move=True, seconds=0.0, **more):
    """A run of a convolutional net, long enough for some looks at the card; gives the end of its weights."""
    import time

    seed_all(1)
    with perdure.Run("job", root=root, accelerator="gpu", **more) as run:
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Dropout(0.2), nn.Flatten())
        model = model.to(run.device) if move else model
        optimizer = torch.optim.Adam(model.parameters())
        run.track(model=model, optimizer=optimizer)
        loader = torch.utils.data.DataLoader(torch.randn(40, 3, 32, 32), batch_size=4, shuffle=True)
        began = time.monotonic()
        for _ in run.epochs(10_000 if seconds else 2):
            for x in run.batches(loader):
                optimizer.zero_grad()
                model(x.to(run.device if move else "cpu")).square().mean().backward()
                optimizer.step()
            if seconds and time.monotonic() - began > seconds:
                break
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_a_card_that_works_is_proved_in_seconds():
    assert choose_device("gpu", "") == torch.device("cuda", torch.cuda.current_device())


def test_a_card_is_used_and_status_can_prove_it(tmp_path):
    go(tmp_path, seconds=12.0)
    gpu = json.loads((tmp_path / "job" / "session.json").read_text())["gpu"]
    assert (gpu["device"], gpu["trouble"]) == ("cuda:0", "")
    assert gpu["own_peak_bytes"] > 1_000_000
    assert gpu["cards"][0]["samples"] >= 3
    assert main(["status", "job", "--root", str(tmp_path), "--require", "gpu"]) == 0


def test_a_model_that_was_never_moved_is_refused_after_the_first_step(tmp_path):
    with pytest.raises(AcceleratorError, match="all that it trains is elsewhere"):
        go(tmp_path, move=False)


def test_copying_is_measured():
    card = torch.device("cuda:0")
    seconds = copy_time({"x": torch.randn(64, 3, 224, 224), "y": [torch.zeros(64)]}, card)
    assert seconds is not None and 0 < seconds < 1
    assert copy_time(torch.zeros(3, device=card), card) == 0


def test_the_watching_changes_no_bit(tmp_path, monkeypatch):
    torch.use_deterministic_algorithms(True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        watched = go(tmp_path / "watched")
        monkeypatch.setattr("perdure.training.watch.copy_time", lambda *_: None)
        monkeypatch.setattr("perdure.hardware.monitor.Monitor.start", lambda _: None)
        plain = go(tmp_path / "plain")
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))
