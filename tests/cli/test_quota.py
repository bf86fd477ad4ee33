"""``perdure quota``, through Kaggle's own client, against the emulator."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from perdure.cli.emulated import running_pid
from perdure.cli.main import main
from perdure.relay.home import HOME, Home
from perdure.relay.records import RelayOrder, SessionRecord
from perdure.relay.store import Store
from perdure.testing.kaggle.emulator import Emulator
from perdure.testing.kaggle.rules import Rules


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "emu", Rules(gpu_quota_s=36000, gpu_used_s=9000, refresh_every_s=7200)) as emulator:
        yield emulator


def test_the_hours_are_those_of_the_platform_and_beside_them_what_relays_used(emulator, tmp_path, capsys) -> None:
    on = f"emulator:{emulator.folder}"
    with Store(Home(tmp_path / "home")) as store:
        place = {"folder": str(emulator.folder)}
        order = RelayOrder(
            "digits", "train.py", tmp_path, "emulator", "t4x2", 3600.0, tmp_path, tmp_path, "", place=place, expect_s=7200
        )  # fmt: skip
        now_s = _now()
        relay = store.create("0a0a0a0a", order, now_s)
        session = SessionRecord(
            1, "s", "collected", "t4x2", 3600.0, now_s, started_s=now_s, ended_s=now_s + 0.001, outcome="paused",
            accelerator_s=50.0,
        )  # fmt: skip
        store.write(relay, replace(relay, sessions=(session,)), now_s)
    assert main(["quota", "--on", on, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    gpu = value["quotas"][0]
    assert (value["account"], gpu["resource"], gpu["used_s"], gpu["left_s"]) == (
        "emulated-user",
        "gpu",
        9000,
        27000,
    )
    assert gpu["relays"] == {"digits": {"used_s": pytest.approx(50, abs=1), "sessions": 1}}
    assert main(["quota", "--on", on]) == 0
    out = capsys.readouterr().out
    assert "GPU  2.5 h  0 h       7.5 h   10.0 h  " in out
    assert (
        "GPU used by relays of this machine, as their sessions measured: digits 50 s in 1 session; 2.5 h elsewhere"
        in out
    )
    assert "digits: 3 sessions, " in out
    with Store(Home(tmp_path / "home")) as store:
        relay = store.find("digits")
        store.write(relay, replace(relay, state="stopping"), now_s)
    assert main(["quota", "--on", on]) == 0
    assert capsys.readouterr().out.endswith("\ndigits: stopping\n")
    assert running_pid(emulator.folder) == os.getpid()  # an emulator of others is left alone


def test_an_emulator_is_started_where_it_is_needed_and_ended_where_it_is_not(tmp_path, capsys) -> None:
    folder = tmp_path / "home/emulator"
    assert main(["quota", "--on", "emulator"]) == 0
    assert capsys.readouterr().out.startswith("account emulated-user\n")
    pid = json.loads((folder / "emulator.json").read_text())["pid"]
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)
    assert running_pid(folder) == 0


def test_without_credentials_it_says_where_they_go(monkeypatch, capsys) -> None:
    for name in ("KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert main(["quota"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: Kaggle: no credentials")
    assert "kaggle.json" in captured.err
    assert captured.out == ""


def _now() -> float:
    import time

    return time.time()
