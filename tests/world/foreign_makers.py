"""Run as scripts, in processes of their own: what Lightning writes, and what happens to files of Keras."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def lightning(folder):
    """``one.ckpt`` of automatic optimization, ``two.ckpt`` of a pair of optimizers, by the real trainer."""
    import warnings

    warnings.simplefilter("ignore")
    import lightning as L
    from torch.utils.data import DataLoader, TensorDataset

    class One(L.LightningModule):
        def __init__(self, width=6):
            super().__init__()
            self.save_hyperparameters()
            self.net, self.teacher = net(0), nn.Linear(2, 2)

        def training_step(self, batch, index):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    class Two(One):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.critic = nn.Linear(4, 1)

        def training_step(self, batch, index):
            for optimizer, model in zip(self.optimizers(), (self.net, self.critic)):
                optimizer.zero_grad()
                self.manual_backward(model(batch[0]).square().mean())
                optimizer.step()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.net.parameters(), 1e-2), torch.optim.Adam(self.critic.parameters(), 3e-3)

    for name, module in (("one", One()), ("two", Two())):
        quiet = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        trainer = L.Trainer(max_epochs=2, accelerator="cpu", log_every_n_steps=1, **quiet)
        torch.manual_seed(1)
        trainer.fit(module, DataLoader(TensorDataset(torch.randn(16, 4)), 4))
        trainer.save_checkpoint(folder / f"{name}.ckpt")


def keras(folder):
    """Trains a little, saves in each form, restores into fresh models, and says how equal they are."""
    import warnings

    warnings.simplefilter("ignore")
    import keras as K
    import numpy as np

    import perdure

    def model(seed, width=5, compiled=True):
        K.utils.set_random_seed(seed)
        layers = [K.layers.Dense(width, activation="relu"), K.layers.BatchNormalization(), K.layers.Dense(2)]
        made = K.Sequential([K.Input((4,)), *layers])
        if compiled:
            made.compile(optimizer=K.optimizers.Adam(1e-2), loss="mse")
        return made

    class Own(K.Model):
        def __init__(self):
            super().__init__()
            self.one, self.norm = K.layers.Dense(3), K.layers.BatchNormalization()

        def call(self, x, training=None):
            return self.norm(self.one(x), training=training)

    def values(variables):
        return [K.ops.convert_to_numpy(v).tolist() for v in variables]

    def same(a, b):
        return {
            "weights": values(a.variables) == values(b.variables),
            "optimizer": values(a.optimizer.variables) == values(b.optimizer.variables),
            "iterations": int(b.optimizer.iterations),
        }

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 4)).astype("float32"), rng.normal(size=(32, 2)).astype("float32")
    old = model(0)
    old.fit(x, y, epochs=2, batch_size=8, verbose=0)
    old.save(folder / "m.keras"), old.save(folder / "m.h5"), old.save_weights(folder / "m.weights.h5")
    said = {}
    for file in ("m.keras", "m.h5", "m.weights.h5"):
        new = model(1)
        restored = perdure.restore(folder / file, model=new)
        said[file] = {**same(old, new), "taken": restored.taken, "anew": restored.anew, "text": str(restored)}
        new.fit(x, y, epochs=1, verbose=0)  # goes on: B12
        named = model(2)
        said[file]["named"] = perdure.restore(folder / file, model=named, optimizer=named.optimizer).taken

    plain = model(3, compiled=False)
    restored = perdure.restore(folder / "m.keras", model=plain)
    said["not compiled"] = {"weights": values(old.variables) == values(plain.variables), "anew": restored.anew}

    def refused(path, **objects):
        try:
            return str(perdure.restore(path, **objects))
        except perdure.PerdureError as error:
            return f"{type(error).__name__}: {error}"

    other = model(4, width=7)
    before = values(other.variables)
    said["other shape"] = refused(folder / "m.keras", model=other)
    said["untouched"] = values(other.variables) == before
    said["no model"] = refused(folder / "m.keras", model=nn.Linear(1, 1))
    said["strange optimizer"] = refused(folder / "m.keras", model=model(5), optimizer=K.optimizers.Adam())
    plain.save(folder / "plain.keras")
    fresh = model(5)
    said["without optimizer"] = refused(folder / "plain.keras", model=fresh, optimizer=fresh.optimizer)
    said["weights only"] = refused(folder / "plain.keras", model=fresh)

    own = Own()
    own.compile(optimizer="adam", loss="mse")
    own.fit(x, y[:, :1], epochs=1, verbose=0)
    own.save(folder / "own.keras"), own.save_weights(folder / "own.weights.h5")
    new = Own()
    new.compile(optimizer="adam", loss="mse")
    perdure.restore(folder / "own.keras", model=new)  # before its first call: B28
    said["subclass"] = same(own, new)
    said["unbuilt"] = refused(folder / "own.weights.h5", model=Own())

    data = bytearray((folder / "m.keras").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "bad.keras").write_bytes(data)
    (folder / "torn.h5").write_bytes((folder / "m.h5").read_bytes()[:5000])
    for file in ("bad.keras", "torn.h5"):
        said[file] = refused(folder / file, model=model(6))

    if K.backend.backend() == "torch":
        with perdure.Run("k", root=folder / "runs", accelerator="cpu") as run:
            tracked = model(7)
            run.track(model=tracked)
            run.start_from(folder / "m.keras")
            said["run"] = {"weights": values(old.variables) == values(tracked.variables)}
            for _ in run.epochs(1):
                pass
    print(json.dumps(said))


if __name__ == "__main__":
    {"lightning": lightning, "keras": keras}[sys.argv[1]](Path(sys.argv[2]))
