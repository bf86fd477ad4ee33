"""``perdure.Run``: one training job with a name, from first step to finished model."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from perdure.checkpoint.manifest import Manifest
from perdure.checkpoint.retention import Keep
from perdure.checkpoint.store import Store
from perdure.core.errors import ConfigError, LoopError, SessionPaused
from perdure.core.intervals import Duration, parse_interval
from perdure.core.limits import Limits
from perdure.core.paths import RunPaths, check_name
from perdure.core.say import say
from perdure.data.generators import seed_global
from perdure.models.formats import Facts
from perdure.training import loops
from perdure.training.adopting import to_keep
from perdure.training.device import check_accelerator, choose_device
from perdure.training.engine import Engine
from perdure.training.export import Finished, export_run, hardware, libraries
from perdure.training.journal import Journal
from perdure.training.pace import Pace
from perdure.training.restored import Restored
from perdure.training.saving import Saver
from perdure.training.schedule import SaveSchedule
from perdure.training.session import current_session
from perdure.training.starting import start_from
from perdure.training.state import RunState
from perdure.training.statement import state_at_start
from perdure.training.status import StatusBoard
from perdure.training.vars import Vars
from perdure.training.watch import Watch


class Run:
    """One training job with a name. The same script and arguments start it and continue it.

    With no checkpoint it starts; with one it resumes. A checkpoint that is there and cannot be read stops it,
    unless an older one verifies.

    Args:
        name: Letters, digits, ``.``, ``_`` and ``-``.
        root: Folder of runs; the platform's output folder if None.
        save_every: ``"auto"`` (saving costs at most 1 % of the time), ``"5 min"``, ``"200 steps"``,
            ``"1 epoch"``, or a timedelta.
        keep: Which checkpoints stay.
        limits: What a session may use; the platform's if None. Environment variables win over it.
        accelerator: ``"gpu"`` refuses to start without a working one, ``"cpu"`` uses none, ``"auto"`` takes a GPU
            if there is one, and refuses where the platform promised one that does not work.
        resume: False begins anew; an earlier run of that name is set aside, not deleted.
        seed: Seeds python's, numpy's and torch's generators here, so that what the script draws before its loop
            is the same in each session. Without it nothing is seeded.

    Raises:
        ConfigError: An argument or an environment variable makes no sense.
        AcceleratorError: A GPU was asked for or promised and does not work.

    Example:
        >>> with perdure.Run("digits") as run:
        ...     run.track(model=model, optimizer=optimizer)
        ...     for epoch in run.epochs(100):
        ...         for images, labels in run.batches(loader):
        ...             ...
    """

    def __init__(
        self,
        name: str,
        root: str | Path | None = None,
        *,
        save_every: Duration = "auto",
        keep: Keep | None = None,
        limits: Limits | None = None,
        accelerator: str = "auto",
        resume: bool = True,
        seed: int | None = None,
    ) -> None:
        check_accelerator(accelerator)
        self._name = check_name(name)
        interval = parse_interval(save_every)
        session = current_session()
        session.stop.forget()
        place, settings = session.place, session.settings
        limits_here = session.limits(limits)
        folder = Path(settings.root or root or place.root).expanduser().absolute() / name
        self._paths = RunPaths(folder)
        self._store = Store(
            self._paths,
            name,
            keep=keep or Keep(),
            inputs=(*settings.inputs, *place.inputs),
            disk_bytes=limits_here.disk_bytes,
            disk_folder=_budget_folder(folder, place.output),
            clock=session.clock,
        )
        if not resume:
            _set_aside(folder)
        if seed is not None:
            seed_global(_check_seed(seed))
        self._session = session
        self._pid = os.getpid()
        self._resume = resume
        self._accelerator = accelerator
        self._device: torch.device | None = None
        self._opened = False
        self._opening = threading.RLock()  # run.log may be called from threads of the user's
        self._state = RunState()
        pace, schedule = Pace(session.clock), SaveSchedule(interval, session.clock)
        journal = Journal(self._paths, session.clock)
        saver = Saver(self._state, self._store, schedule, pace, journal)
        self._board = StatusBoard(
            name,
            paths=self._paths,
            session=session,
            window=session.window(limits_here),
            margin_s=limits_here.margin_s or 0.0,
            schedule=schedule,
            pace=pace,
            journal=journal,
        )
        self._watch = Watch(name, session, self._board.window, journal, cards=accelerator != "cpu")
        self._journal = journal
        self._limits = limits_here
        self._schedule = schedule
        self._engine = Engine(
            state=self._state,
            saver=saver,
            schedule=schedule,
            pace=pace,
            journal=journal,
            board=self._board,
            watch=self._watch,
            save_best=keep is not None and keep.best is not None,
        )
        newest = self._store.peek() if resume else None
        self._finished_before = newest is not None and newest.finished
        if not self._finished_before:
            self._choose_device()
        _stack.append(self)

    # ---------------------------------------------------------------- the loop

    def track(self, **objects: Any) -> None:
        """Make objects part of the run's state, and put back what a checkpoint holds of them.

        Args:
            objects: Modules, optimizers, schedulers, scalers, anything with ``state_dict``/``load_state_dict``,
                plain dicts, lists and deques (restored in place), arrays, tensors, random generators, and dicts
                and lists of modules or optimizers. Their names are the names in the checkpoint.

        Raises:
            CannotCarryError: An object is none of these.
            StateMismatchError: It does not fit what the checkpoint holds; every difference is listed.
        """
        self._open()
        self._state.track(objects)

    def start_from(
        self, path: str | Path, *, only: Collection[str] | None = None, trust: bool = False
    ) -> Restored | None:
        """Begin with the states in a file, where the run starts afresh; nothing happens where it resumes.

        What the file does not hold of the tracked objects is left as it is. What was taken over and what was not
        is said on stderr.

        Args:
            path: What ``perdure.restore`` reads: a ``.pth``, a Lightning ``.ckpt``, a ``.safetensors`` file, a
                folder of transformers, a file of Keras, the checkpoint of another run ...
            only: Names of the tracked objects that are filled, for example ``["model"]``; all by default.
            trust: Let a file of ``torch.save`` make any object, which may run any code.

        Returns:
            The statement; None where the run resumes, and the file is not even looked at.

        Raises:
            LoopError: The loop has begun.
            ConfigError: Nothing is tracked, or not under that name.
            StateMismatchError: It does not fit, or holds nothing of what is tracked.
            NoCheckpointError, CorruptError, UnreadableError, UnsafeFileError: It cannot be read.
        """
        self._open()
        return start_from(self._name, self._engine, self._journal, Path(path), only=only, trust=trust)

    def epochs(self, count: int, *, extend: bool = False) -> Iterator[int]:
        """Loop over epochs, from where the run stands; the run is finished after the last.

        Args:
            count: Epochs in all.
            extend: ``count`` is meant to differ from what the run was planned for.

        Raises:
            PlanChangedError: It differs, and ``extend`` is False.
            LoopError: The run has had its loop.
        """
        return self._loop("epochs", count, extend)

    def steps(self, count: int, *, extend: bool = False) -> Iterator[int]:
        """Loop over steps, with batches from ``next(stream)``, any number of them a step; else as ``epochs``."""
        return self._loop("steps", count, extend)

    def batches(self, loader: Any) -> loops.Batches:
        """One pass over a loader, in the body of ``epochs()``; taken up in its middle after a resume.

        Args:
            loader: A DataLoader, or anything else that can be iterated.

        Raises:
            LoopError: It stands outside the loop, or in ``steps()``.
            LoaderChangedError: The loader has another length than when the checkpoint was made.
            DataOrderError: It deals other samples than before.
        """
        return loops.Batches(self._engine, loader)

    def cycle(self, loader: Any) -> loops.Stream:
        """An endless stream of batches, pass after pass; made above the loop.

        Args:
            loader: A DataLoader, or anything else that can be iterated.
        """
        self._open()
        return loops.Stream(self._engine, loader)

    def log(self, **values: Any) -> None:
        """Note metrics of the present step: numbers, or tensors of one element (not synchronised here).

        Raises:
            ConfigError: A value is not one number.
        """
        self._open()
        self._journal.log(values, step=self.step, epoch=self.epoch)

    def save(self) -> None:
        """Ask for an extra checkpoint at the next boundary."""
        self._engine.asked = True

    def export(
        self, name: str = "model", *, example: Any = None, formats: Sequence[str] = ("pth", "safetensors")
    ) -> dict[str, Path]:
        """Write the tracked models as files that others load, each proved in a fresh process; at the end.

        The files are ``export/<run>-step-<step>.<format>`` in the folder of the run, beside a card that describes
        them; with another ``name`` than ``"model"`` they are ``<run>-<name>-step-...``. A file that is there and
        proved already is not made again.

        Args:
            name: What the model is called.
            example: What you would give to the model: a tensor, a tuple of inputs, or a dict of inputs by name.
                Where several models are tracked, a dict of such examples by their names. Formats with a graph
                need it; the others are also proved by their outputs with it.
            formats: Any of ``"pth"``, ``"pth-classic"``, ``"safetensors"``, ``"pt2"``, ``"onnx"``.

        Returns:
            Format to path; where several models are tracked, ``<their name>.<format>`` to path.

        Raises:
            LoopError: The run is not finished.
            ConfigError: Nothing to export, an unknown format, or no example where one is needed.
            CannotCarryError: A format cannot hold the model; it names the tensor or operator, and one that can.
            DiskFullError: There is no room; nothing was written.
            CorruptError: A file is not what it should be; it was removed.
        """
        if self._engine.looping and self._engine.left:
            self._engine.finish()  # the loop was left by break: this is its end
        if not self.finished:
            raise LoopError(
                f"run {self._name!r} is at step {self.step} and not finished, so there is no model to export yet",
                hint="put run.export(...) behind the loop",
            )
        facts = Facts(
            run=self._name,
            step=self.step,
            epoch=self.epoch,
            batch=self.batch,
            metrics=dict(self._journal.metrics),
            libraries=libraries(),
            hardware=hardware(self._device),
        )
        finished = Finished(self._state.world, self._paths.folder / "export", facts, self._store.room)
        return export_run(finished, name, example, formats)

    # ---------------------------------------------------------------- where it stands

    @property
    def name(self) -> str:
        """Name of the run."""
        return self._name

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self._paths.folder

    @property
    def device(self) -> torch.device:
        """The device to train on; a GPU only after it has run a kernel with the right result."""
        return self._device or self._choose_device()

    @property
    def vars(self) -> Vars:
        """The user's own variables that survive."""
        self._open()
        return Vars(self._state.vars)

    @property
    def step(self) -> int:
        """Finished steps: 0 in the first body."""
        self._open()
        return self._engine.step

    @property
    def epoch(self) -> int:
        """Present epoch, from 0; under ``steps()`` the finished passes of the first stream."""
        self._open()
        return self._engine.epoch

    @property
    def batch(self) -> int:
        """Batches of the present ``batches()`` call that are done: 0 in its first body, also after a resume it
        counts on."""
        leading = self._state.calls.leading()
        if leading is None or leading.feed is None:
            return 0
        return leading.feed.batch - leading.out

    @property
    def resumed_from(self) -> int | None:
        """Step that this session began with; None if it started the run."""
        self._open()
        return self._engine.resumed_from

    @property
    def time_left(self) -> float:
        """Seconds until the window closes; infinite where there is none."""
        return self._board.window.left_s

    @property
    def finished(self) -> bool:
        """The run has reached its end; known before anything is built, so that a finished fold costs nothing."""
        return self._engine.finished if self._opened else self._finished_before

    # ---------------------------------------------------------------- with

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._close(error)
        return isinstance(error, SessionPaused)

    def _close(self, error: BaseException | None) -> None:
        if self in _stack:
            _stack.remove(self)
        if self._pid != os.getpid():  # a child that the user forked ends: the run is its parent's
            return
        if isinstance(error, SessionPaused):
            self._store.close()
            return
        try:
            if error is None:
                self._engine.finish()  # a loop left by break is at its end too
            elif self._engine.looping:
                self._engine.fail(f"{type(error).__name__}: {error}")
        finally:
            self._store.close()

    def _give_way(self) -> None:
        """A later run in this process has taken the folder over: a cell that was run again."""
        if self in _stack:
            _stack.remove(self)
        self._engine.give_way()
        self._store.close()

    def _choose_device(self) -> torch.device:
        place = self._session.place
        self._device = choose_device(self._accelerator, place.gpu_promised, place.platform)
        self._watch.device = self._device
        return self._device

    def _loop(self, unit: str, count: int, extend: bool) -> Iterator[int]:
        count = loops.check_count(count, unit)
        self._open()
        self._engine.begin_loop(unit, count, extend=extend)
        _unclosed.add(self)
        return (loops.epochs if unit == "epochs" else loops.steps)(self._engine, count)

    def _open(self) -> None:
        """Lock the folder and read the newest checkpoint; once, when it is first needed."""
        with self._opening:
            if not self._opened:
                self._open_now()

    def _open_now(self) -> None:
        self._store.open({"save_every": str(self._schedule.interval)}, fresh=not self._resume)
        for earlier in {*_stack, *_unclosed} - {self}:
            if earlier._opened and earlier._paths.folder.resolve() == self._paths.folder.resolve():
                earlier._give_way()
        try:
            checkpoint = self._store.newest(self._to_keep) if self._resume else None
            if checkpoint is not None:
                self._journal.carry_over(checkpoint.folder.parent.parent / self._paths.events.name)
                self._engine.take_up(checkpoint)
        except BaseException:
            self._store.close()
            raise
        self._opened = True
        self._board.run_id = self._store.run_id
        state_at_start(self, self._session, self._limits, self._schedule, self._store.reports)

    def _to_keep(self, manifest: Manifest) -> Collection[str]:
        """What is read into the memory in which the training will use it: on a card that is not the host's."""
        return to_keep(manifest) if self._device is not None and self._device.type == "cpu" else ()


_stack: list[Run] = []
_unclosed: weakref.WeakSet[Run] = weakref.WeakSet()


def current() -> Run:
    """The run that was made last and is not closed; for functions that were not handed it.

    Raises:
        LoopError: There is none.
    """
    if not _stack:
        raise LoopError("there is no run", hint='begin one: with perdure.Run("name") as run:')
    return _stack[-1]


def _budget_folder(folder: Path, output: Path | None) -> Path:
    """The platform's output folder, if the run is below it: other files count too."""
    return output if output is not None and folder.is_relative_to(output) else folder.parent


def _set_aside(folder: Path) -> None:
    """Give an earlier run of the same name another name; nothing of it is lost."""
    if folder.exists():
        number = 1
        while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
            number += 1
        folder.rename(aside)
        say(f"{folder.name}: begins anew; the earlier run is now {aside}")


def _check_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed must be a whole number from 0 to 2**63 - 1, got {seed!r}")
    return seed


@atexit.register
def _close_all() -> None:
    """A run without ``with`` whose loop was left by ``break`` is at its end when the script is."""
    error = getattr(sys, "last_value", None)
    for run in list(_unclosed):
        if run._engine.looping:
            run._close(error)
