"""Cards that are played: the fake NVML, built once."""

from __future__ import annotations

import pytest

from perdure.testing.nvml import Scene, build_fake_nvml, playing


@pytest.fixture(scope="session")
def fake_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    build_fake_nvml(folder)
    return folder


@pytest.fixture
def stage(fake_folder, monkeypatch):
    """The fake NVML in this process and its children; it begins without a driver: ``stage.set(Scene(...))``."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    with playing(fake_folder, Scene(init_error=12)) as fake:
        yield fake
