"""Cards that are played, for runs; the torch here has none."""

from __future__ import annotations

import functools

import pytest

from perdure.testing.nvml import Scene, build_fake_nvml, playing


@pytest.fixture(scope="session")
def fake_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    build_fake_nvml(folder)
    return folder


@pytest.fixture
def stage(fake_folder, monkeypatch):
    """The fake NVML, looked at often; it begins without a driver: ``stage.set(Scene(...))``."""
    from perdure.hardware.monitor import Monitor
    from perdure.training import watch

    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(watch, "Monitor", functools.partial(Monitor, every_s=0.01, share=1.0))
    with playing(fake_folder, Scene(init_error=12)) as fake:
        yield fake
