"""The promise as a whole: one command, the official client, five sessions and more, and the same bits as at home.

The emulated platform gives windows of some seconds and few GPU hours; the script pauses in each step, so that it
needs several windows. Kills hit the process that drives the relay, never the sessions.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.relay.verdict import compare_runs, newest_checkpoints
from perdure.testing.kaggle import Emulator, Rules
from relay.project import write_project

PERDURE = [sys.executable, "-c", "import sys; from perdure.cli.main import main; sys.exit(main())"]
RULES = Rules(window_s=22, gpu_quota_s=75, refresh_every_s=120)
PAUSE_S, LONG_PAUSE_S = 0.12, 0.25
KILLS = 100
PATIENCE_S = 900.0


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "kaggle", RULES) as emulated:
        yield emulated


class Laptop:
    """A machine of the user: a home, a project, and processes that may die."""

    def __init__(self, folder: Path, emulator: Emulator) -> None:
        self.folder, self.emulator = folder, emulator
        self.script = write_project(folder / "project")
        self.environment = {**os.environ, "PERDURE_HOME": str(folder / "home"), "HOME": str(folder)}
        self.environment["OMP_NUM_THREADS"] = "1"
        self.log = folder / "commands.log"

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*PERDURE, *words], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    def start(self, *words: str, pause_s: float = PAUSE_S) -> subprocess.Popen[bytes]:
        where = f"emulator:{self.emulator.folder}"
        pause = f"PAUSE_S={pause_s}"
        given = ("--on", where, "--accelerator", "t4x2", "--window", f"{RULES.window_s} s", "--env", pause)
        return self.begin("relay", "start", *given, *words, str(self.script))

    def standing(self) -> dict:
        words = [*PERDURE, "relay", "status", "train", "--json"]
        shown = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, check=True)
        return json.loads(shown.stdout)["relay"]

    def straight(self) -> Path:
        """The same training at home, in one go; its output."""
        home = self.folder / "straight"
        home.mkdir()
        environment = {**self.environment, "PERDURE_ROOT": str(home / "perdure")}
        subprocess.run(
            [sys.executable, str(self.script)], cwd=home, env=environment, capture_output=True, check=True
        )
        return home


def same_bits(one: Path, other: Path) -> None:
    """Both outputs hold the run at its last step, in the same state, and the same model file."""
    manifest = newest_checkpoints([one])["digits"].manifest
    assert manifest is not None
    assert manifest.step == 450
    assert compare_runs([one], other) == []
    models = [next((home / "perdure/digits/export").glob("*.safetensors")) for home in (one, other)]
    assert models[0].read_bytes() == models[1].read_bytes()


def one_at_a_time(emulator: Emulator) -> None:
    """No two sessions of the relay ever ran together, and each slug was pushed once."""
    spans = sorted((s.started_s, s.ended_s) for s in emulator.sessions() if s.started_s is not None)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans
    slugs = [session.slug for session in emulator.sessions()]
    assert len(slugs) == len(set(slugs))


def test_a_training_comes_home_over_many_sessions_as_if_it_had_never_been_cut(
    tmp_path: Path, emulator: Emulator
) -> None:
    laptop = Laptop(tmp_path, emulator)
    driver = laptop.start()
    straight = laptop.straight()
    assert driver.wait(PATIENCE_S) == 0, laptop.log.read_text()
    relay = laptop.standing()
    assert relay["state"] == "done"
    assert len(relay["sessions"]) >= 5
    assert [s["outcome"] for s in relay["sessions"]][-1] == "finished"
    assert "of GPU are used; the next come" in laptop.log.read_text()  # the hours ran out half-way
    one_at_a_time(emulator)
    same_bits(tmp_path / "relays/train", straight)


@pytest.mark.slow
def test_a_laptop_that_dies_a_hundred_times_changes_nothing(tmp_path: Path, emulator: Emulator) -> None:
    laptop = Laptop(tmp_path, emulator)
    moments = random.Random(0)
    driver = laptop.start(pause_s=LONG_PAUSE_S)
    straight = laptop.straight()
    kills, until_s = 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            if driver.wait(moments.uniform(0.2, 4.0) if kills < KILLS else PATIENCE_S) == 0:
                break
        except subprocess.TimeoutExpired:
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            kills += 1
        driver = laptop.begin("relay", "watch", "train")
    assert kills == KILLS
    print(f"{kills} kills, {len(emulator.sessions())} sessions")
    assert laptop.standing()["state"] == "done", laptop.log.read_text()
    one_at_a_time(emulator)
    same_bits(tmp_path / "relays/train", straight)
