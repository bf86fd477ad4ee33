"""Run as ``python keras_jobs.py FOLDER JOB...`` under one KERAS_BACKEND: exports models, leaves ``JOB.json`` in FOLDER."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import keras
import keras_net
import numpy as np
from keras import layers

import perdure
import perdure.models.keras_files
from perdure.core.errors import PerdureError
from perdure.models.formats import FORMATS as FORMATS_OF_PERDURE
from perdure.models.formats import Source
from perdure.models.keras_model import fingerprints
from perdure.models.keras_proof import live_of
from perdure.models.keras_stored import stored_fingerprints

FORMATS = ("keras", "h5", "savedmodel", "onnx")


def mixed() -> keras.Model:
    """Two inputs, one of them of tokens; convolution, normalisation, dropout, LSTM, a layer used twice; a dict out."""
    image, tokens = layers.Input((8, 8, 1), name="image"), layers.Input((5,), dtype="int32", name="tokens")
    x = layers.BatchNormalization()(layers.Conv2D(4, 3)(image))
    x = layers.Dropout(0.5)(layers.Flatten()(x))
    twice = layers.Dense(4, name="twice")
    y = twice(twice(layers.LSTM(4)(layers.Embedding(10, 3)(tokens))))
    both = layers.Concatenate()([x, y])
    out = {"kind": layers.Dense(2, name="kind")(both), "size": layers.Dense(1, name="size")(both)}
    model = keras.Model({"image": image, "tokens": tokens}, out)
    model.compile("adam", {"kind": "mse", "size": "mse"})
    model.fit(*batch(), verbose=0)
    return model


def batch():
    """Inputs and targets, always the same."""
    draw = np.random.default_rng(0)
    return (
        {
            "image": draw.standard_normal((8, 8, 8, 1), np.float32),
            "tokens": draw.integers(0, 10, (8, 5)).astype("int32"),
        },
        {"kind": draw.standard_normal((8, 2), np.float32), "size": draw.standard_normal((8, 1), np.float32)},
    )


class InTheNotebook(keras.Model):
    """A class that no other process can import."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers.Dense(3)
        self.norm = layers.BatchNormalization()

    def call(self, inputs):
        return self.norm(self.body(inputs))


def world() -> list[str]:
    """The generators of this process."""
    found = [repr(random.getstate()[1][:3]), repr(np.random.get_state()[1][:3])]
    if keras.backend.backend() == "torch":
        import torch

        found.append(repr(torch.random.get_rng_state()[:30].tolist()))
    return found


def all_formats(folder: Path) -> dict:
    """Every format of one model; the live one is as before, and .keras gives the same optimizer."""
    model = mixed()
    before, generators = fingerprints([*model.weights, *model.optimizer.variables]), world()
    paths = perdure.export(model, folder / "all", "mixed", formats=FORMATS)
    same = fingerprints([*model.weights, *model.optimizer.variables]) == before and world() == generators
    times = [Path(path).stat().st_mtime_ns for path in paths.values()]
    again = perdure.export(model, folder / "all", "mixed", formats=FORMATS)  # nothing is made again
    kept = times == [Path(path).stat().st_mtime_ns for path in again.values()]
    inputs, _ = batch()
    np.savez(folder / "inputs.npz", **inputs)
    np.savez(folder / "outputs.npz", **{k: np.asarray(v) for k, v in model.predict(inputs, verbose=0).items()})
    again = keras.saving.load_model(paths["keras"])
    equal = before == fingerprints([*again.weights, *again.optimizer.variables])
    steps = int(np.asarray(keras.ops.convert_to_numpy(again.optimizer.iterations)))
    return {
        "paths": {k: str(v) for k, v in paths.items()},
        "same": same,
        "equal": equal,
        "steps": steps,
        "kept": kept,
    }


def tried(model: keras.Model, folder: Path, name: str, formats, **more) -> dict:
    """What an export gives: paths, or the error in words."""
    try:
        return {
            key: str(path) for key, path in perdure.export(model, folder, name, formats=formats, **more).items()
        }
    except PerdureError as error:
        return {"error": type(error).__name__, "words": str(error)}


def classes(folder: Path) -> dict:
    """Models of classes of one's own: known to nobody, and in a module that can be imported."""
    rows = np.ones((3, 4), np.float32)
    unknown, known = InTheNotebook(), keras_net.Net(3)
    unknown(rows), known(rows)
    native, other = {"tensorflow": ("savedmodel", "onnx"), "torch": ("onnx", "savedmodel")}[keras.backend.backend()]
    return {
        "unknown": tried(unknown, folder / "classes", "unknown", ["keras", native], example=rows),
        "other": tried(unknown, folder / "classes", "unknown", [other], example=rows),
        "known": tried(known, folder / "classes", "known", ["keras"], example=rows),
        "h5": tried(unknown, folder / "classes", "unknown", ["h5"], example=rows),
        "no example": tried(unknown, folder / "classes", "unknown", ["onnx"]),
    }


def caught(folder: Path) -> dict:
    """Files of a model that is no longer the live one."""
    model = keras.Sequential([layers.Input((4,)), layers.Dense(2)])
    found = {}
    for format in ("keras", "onnx"):
        known = FORMATS_OF_PERDURE["keras", format]
        path = folder / f"caught{known.suffix}"
        known.write(Source({}, model, framework="keras"), path)
        model.set_weights([weight + 1e-3 for weight in model.get_weights()])
        source = Source({}, model, framework="keras")
        try:
            with source.closing:
                found[format] = str(known.prove(source, path))
        except PerdureError as error:
            found[format] = str(error)
    return found


def refused(folder: Path) -> dict:
    """What cannot be exported; nothing is started for it."""
    rows = np.ones((3, 4), np.float32)
    take = layers.Input((4,))
    code = keras.Model(take, layers.Lambda(lambda value: value * 2, name="double")(layers.Dense(2)(take)))
    half = keras.Sequential([layers.Input((4,)), layers.Dense(2, dtype="bfloat16", name="half")])
    return {
        "lambda": tried(code, folder / "refused", "m", ["keras"]),
        "bfloat16": tried(half, folder / "refused", "m", ["onnx"]),
        "not built": tried(InTheNotebook(), folder / "refused", "m", ["keras"], example=rows),
        "pth": tried(half, folder / "refused", "m", ["pth"]),
    }


def names_and_state(folder: Path) -> dict:
    """Many long names in the legacy format; a model with a memory between calls. No process is started."""
    x = take = layers.Input((2,))
    for index in range(110):
        x = layers.Dense(2, name=f"{'a_very_long_name_' * 40}{index}")(x)
    long = keras.Model(take, x)
    FORMATS_OF_PERDURE["keras", "h5"].write(Source({}, long, framework="keras"), folder / "long.h5")
    memory = keras.Sequential([layers.Input((3, 2), batch_size=4), layers.LSTM(2, stateful=True)])
    memory.predict(np.ones((4, 3, 2), np.float32), verbose=0)
    before = fingerprints(memory.variables)
    _, calls, _ = live_of(Source({}, memory, framework="keras"))
    whole = sorted(fingerprints(long.weights)) == sorted(stored_fingerprints(folder / "long.h5"))
    return {"whole": whole, "batches": list(calls), "same": before == fingerprints(memory.variables)}


if __name__ == "__main__":
    where = Path(sys.argv[1])
    for job in sys.argv[2:]:
        (where / f"{job}.json").write_text(json.dumps(globals()[job](where)))
