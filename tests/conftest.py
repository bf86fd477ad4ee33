"""Hygiene for every test: a folder of its own, fixed threads, no environment or session left over, no way outside."""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("perdure", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("perdure")

# children that speak HTTP find no way out either, whatever they are asked to do
_NOWHERE = "http://127.0.0.1:9"
for _name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
    os.environ[_name] = os.environ[_name.lower()] = _NOWHERE
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "localhost,127.0.0.1,::1"


def _stay_here(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse every connection of this process that leaves the machine."""
    if event != "socket.connect" or not isinstance(arguments[1], tuple):
        return
    host = str(arguments[1][0])
    if host != "localhost" and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise AssertionError(f"a test must not leave this machine: {host}")


sys.addaudithook(_stay_here)


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
