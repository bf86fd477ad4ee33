"""Trains the digits twice: in sessions that are killed or run into a window, and straight through.

Then it compares the two ends, bit by bit. Nothing is staged: the sessions are processes, ended by SIGKILL at
moments that the script does not know, and the comparison reads the files that they left.
"""

from __future__ import annotations

import importlib.util
import math
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perdure.checkpoint.compare import compare
from perdure.checkpoint.opened import Checkpoint, open_checkpoint
from perdure.checkpoint.reader import run_folder_of
from perdure.checkpoint.search import find_checkpoints
from perdure.core.errors import ConfigError, MissingExtraError, PlatformError
from perdure.core.runs import read_json
from perdure.demo.leg import RUN, SCRIPT, Leg, run_below

TRAININGS = ("in sessions", "straight")

KILL_AT_EPOCH = {1: 1, 2: 2}
"""Sessions that are killed, and in which epoch. Then comes one with a window, then one that goes to the end."""

MOST_SESSIONS = 8
MODELS = ("pth", "safetensors")
MARK = ".perdure-demo"

_POLL_S = 0.05


@dataclass(frozen=True)
class DemoSession:
    """One session of the interrupted training, told afterwards.

    Attributes:
        number: From 1.
        how: ``"killed"``, ``"paused"``, ``"finished"``, or ``"window"``: killed at the end of a window that was too
            short for its start-up.
        reason: Why, in the run's own words; empty where it had no time to say.
        step: Step of its last checkpoint.
        seconds: How long it lasted.
        window_s: Its window; None without one.
    """

    number: int
    how: str
    reason: str
    step: int
    seconds: float
    window_s: float | None


@dataclass(frozen=True)
class Demo:
    """What came out.

    Attributes:
        identical: Both trainings ended with the same bits: checkpoint and model files.
        differences: What differs, in words; empty if nothing does.
        sessions: The sessions of the interrupted training.
        accuracy: Share of held-out digits that the model recognises.
        steps: Steps of the training.
        models: Model files.
        runs: Folder of runs that the interrupted training left.
        script: What was trained.
        seconds: How long it took.
    """

    identical: bool
    differences: tuple[str, ...]
    sessions: tuple[DemoSession, ...]
    accuracy: float
    steps: int
    models: tuple[str, ...]
    runs: str
    script: str
    seconds: float


OnProgress = Callable[[str, int, int], None]
OnSession = Callable[[DemoSession], None]


class Driver:
    """Runs the demo.

    Args:
        folder: Emptied if an earlier demo made it; made if it is not there.
        seed: Of the moments of the kills.
        on_progress: Told of each training (its name is in ``TRAININGS``): its epoch, and how many there are.
        on_session: Told of each end of a session.
    """

    def __init__(self, folder: Path, *, seed: int, on_progress: OnProgress, on_session: OnSession) -> None:
        self._folder = folder.absolute()
        self._chance = random.Random(seed)
        self._on_progress = on_progress
        self._on_session = on_session
        self._sessions: list[DemoSession] = []
        self._output = self._folder
        self._window_s = 0.0

    def run(self) -> Demo:
        """Train, kill, resume, compare.

        Raises:
            ConfigError: The folder holds something else.
            MissingExtraError: What the training needs is not installed.
            PlatformError: A session failed by itself.
        """
        _check_packages()
        _clear(self._folder)
        began = time.monotonic()
        while not self._sessions or self._sessions[-1].how not in ("paused", "finished"):
            self._next_session()
        with Leg(
            self._folder / "straight", 1
        ) as straight:  # beside the last session: it must not disturb the window
            while self._sessions[-1].how != "finished":
                self._next_session(straight)
            while straight.session.poll():
                self._progress(TRAININGS[1], straight)
                time.sleep(_POLL_S)
            straight.finish()
        return self._judge(straight.output, time.monotonic() - began)

    def _next_session(self, straight: Leg | None = None) -> None:
        """One more session of the interrupted training."""
        earlier = self._sessions
        if len(earlier) == MOST_SESSIONS:
            raise PlatformError(
                f"the run is not finished after {MOST_SESSIONS} sessions", hint=f"see {self._folder}"
            )
        number = len(earlier) + 1
        window_s = self._window_s if straight is None and number not in KILL_AT_EPOCH else None
        with Leg(self._folder / "sessions", number, window_s) as leg:
            self._watch(leg, straight)
            end = leg.finish()
        self._output = leg.output
        if end.how == "window":
            self._window_s *= 1.3
        facts = read_json(run_below(leg.output).session_json)[0]
        step = facts.get("step", earlier[-1].step if earlier else 0)
        reason = facts.get("reason", "") if end.how != "killed" else ""
        earlier.append(DemoSession(number, end.how, reason, step, end.seconds, window_s))
        self._on_session(earlier[-1])

    def _watch(self, leg: Leg, straight: Leg | None) -> None:
        """Show how the trainings go on; kill this one when its time has come."""
        first_seen_s = 0.0
        while leg.session.poll():
            if straight is not None:
                self._progress(TRAININGS[1], straight)
            epoch = self._progress(TRAININGS[0], leg)
            if epoch is not None:
                first_seen_s = first_seen_s or leg.session.elapsed_s
                if epoch >= KILL_AT_EPOCH.get(leg.number, math.inf):
                    time.sleep(self._chance.uniform(0, 0.3))  # anywhere in an epoch, a step or a save
                    leg.session.kill()
                    # long enough to start and to train for a while, too short to get to the end
                    self._window_s = 1.3 * first_seen_s + 1.5 * (leg.session.elapsed_s - first_seen_s)
            time.sleep(_POLL_S)

    def _progress(self, who: str, leg: Leg) -> int | None:
        """The epoch that a training is in; None until it says so."""
        facts = leg.facts()
        if not facts:
            return None
        epochs = facts["plan"]["count"]
        self._on_progress(who, epochs if facts["status"] == "finished" else facts["epoch"], epochs)
        return int(facts["epoch"])

    def _judge(self, straight: Path, seconds: float) -> Demo:
        """Compare the two ends, and put what the sessions left where it is found easily."""
        # of all sessions: one that finds the run finished makes no checkpoint of its own
        newest, twin = map(_newest, (self._folder / "sessions" / "outputs", straight))
        models = _models(self._output)
        pairs = zip(models, _models(straight), strict=True)
        differences = [f"{each.path}: {each.what}" for each in compare(newest, twin)]
        differences += [
            f"{ours.name}: other bytes" for ours, other in pairs if ours.read_bytes() != other.read_bytes()
        ]
        runs = self._folder / "runs"
        shutil.copytree(run_folder_of(newest.folder), runs / RUN)
        return Demo(
            identical=not differences,
            differences=tuple(differences),
            sessions=tuple(self._sessions),
            accuracy=float(newest.manifest.metrics["accuracy"]),
            steps=newest.manifest.position.step,
            models=tuple(str(shutil.copy2(path, self._folder)) for path in models),
            runs=str(runs),
            script=str(SCRIPT),
            seconds=seconds,
        )


def _check_packages() -> None:
    packages = {"torch": "torch", "sklearn": "scikit-learn"}
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingExtraError(f"the demo needs {' and '.join(missing)}", hint=f"pip install {' '.join(missing)}")


def _clear(folder: Path) -> None:
    """Make the folder, or empty it if an earlier demo made it."""
    if folder.exists():
        if not (folder / MARK).is_file():
            raise ConfigError(f"{folder} is there and not the demo's", hint="choose another one with --out FOLDER")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def _newest(outputs: Path) -> Checkpoint:
    """The newest checkpoint below a folder."""
    return open_checkpoint(find_checkpoints(outputs)[0].folder)


def _models(output: Path) -> list[Path]:
    """The model files in the output of a session, in the order of ``MODELS``."""
    return [
        path for format in MODELS for path in sorted(output.rglob(f"*.{format}")) if path.parent.name != "tensors"
    ]
