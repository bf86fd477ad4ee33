"""Hygiene for every test: a folder of its own, fixed threads, no environment or session left over."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("perdure", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("perdure")


@pytest.fixture(autouse=True)
def _clean(tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith(("PERDURE_", "KAGGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield
    session = sys.modules.get("perdure.training.session")
    if session is not None and session._session is not None:
        session._session.stop.restore()
        session._session = None
    run = sys.modules.get("perdure.training.run")
    if run is not None:
        for left in list(run._stack):
            left._close(RuntimeError("left over by a test"))
        run._stack.clear()
