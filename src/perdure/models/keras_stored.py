"""The arrays in Keras files, read without building a model."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from perdure.models.keras_model import fingerprint


def stored_fingerprints(path: Path) -> list[str]:
    """Fingerprints of all arrays in a ``.keras`` or ``.h5`` file, without building a model."""
    return [fingerprint(value) for value in stored_arrays(path).values()]


def stored_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays in a ``.keras``, ``.h5`` or ``.weights.h5`` file by their path in it.

    Raises:
        OSError: It is no HDF5 file, or a damaged one.
        zipfile.BadZipFile: It is no zip file, or a damaged one.
        KeyError: The archive holds no weights.
    """
    import h5py

    file: Any = path
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            file = io.BytesIO(archive.read("model.weights.h5"))
    found: dict[str, np.ndarray[Any, Any]] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, h5py.Dataset):
            found[name] = _stored(value)

    with h5py.File(file, "r") as tree:
        tree.visititems(visit)
    return found


def _stored(value: Any) -> np.ndarray[Any, Any]:
    stored = np.asarray(value[()])
    if stored.dtype.kind == "V" and value.attrs.get("dtype") == "bfloat16":
        import ml_dtypes

        return stored.view(ml_dtypes.bfloat16)
    return stored
