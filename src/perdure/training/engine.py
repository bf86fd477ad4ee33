"""The heart of a run: where it stands, what happens at a boundary, how it is taken up again.

Life of a resume: the newest checkpoint that verifies is read; ``track()`` puts back what it can resolve; at the
head of the epoch its small structure and its generators are put back and the head's code runs again; finished
``batches()`` calls deal nothing; the open one skips what was consumed; and just before the next sample is read,
everything of the boundary is put back, the generators last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint.opened import Checkpoint
from perdure.core.errors import LoopError, PlanChangedError, SessionPaused
from perdure.core.progress import Position
from perdure.core.say import say, warn
from perdure.data.book import iterators_outside
from perdure.data.feed import State
from perdure.training.calls import OpenCall, OpenStream
from perdure.training.circumstances import circumstances
from perdure.training.journal import Journal
from perdure.training.liveline import Progress
from perdure.training.pace import Gap, Pace
from perdure.training.placement import check_placement
from perdure.training.saving import Saver
from perdure.training.schedule import SaveSchedule
from perdure.training.state import RunState
from perdure.training.status import StatusBoard
from perdure.training.watch import Watch


@dataclass(frozen=True)
class Plan:
    """How far the run goes: ``count`` of ``unit`` (``"epochs"`` or ``"steps"``)."""

    unit: str
    count: int


class Engine:
    """State machine of one run; the loops and ``Run`` drive it.

    Attributes:
        watch: Looks at cards and times.
        step: Finished steps.
        epoch: Present epoch.
        plan: How far it goes, None before the loop.
        asked: ``run.save()`` was called since the last save.
        finished: The run has reached its end.
        looping: The loop has begun and not ended.
        left: The user's body has left it, by ``break`` or an error.
        resumed_from: Step of the checkpoint that the session began with.
    """

    def __init__(
        self,
        *,
        state: RunState,
        saver: Saver,
        schedule: SaveSchedule,
        pace: Pace,
        journal: Journal,
        board: StatusBoard,
        watch: Watch,
        save_best: bool,
    ) -> None:
        self.state = state
        self.watch = watch
        self.step = 0
        self.epoch = 0
        self.plan: Plan | None = None
        self.asked = False
        self.finished = False
        self.looping = False
        self.left = False
        self.resumed_from: int | None = None
        self._saver = saver
        self._schedule = schedule
        self._pace = pace
        self._journal = journal
        self._board = board
        self._save_best = save_best
        self._checked = False
        self._strays = False
        self._paused_for = ""
        self._gave_way = False

    # ---------------------------------------------------------------- beginning

    def take_up(self, checkpoint: Checkpoint) -> None:
        """Begin where a checkpoint was taken."""
        manifest = checkpoint.manifest
        position = manifest.position
        self.state.take_up(checkpoint, position)
        self.step, self.epoch, self.finished = position.step, position.epoch, position.finished
        self.resumed_from = position.step
        self._pace.training_s = manifest.training_s
        self._saver.position, self._saver.checkpoint = position, checkpoint.folder.name
        self._saver.session_number = manifest.session + 1
        self._journal.metrics.update(manifest.metrics)
        self._journal.event(
            "resumed",
            from_step=self.step,
            step=self.step,
            session=manifest.session + 1,
            checkpoint=checkpoint.folder.name,
        )
        if not manifest.healthy:
            warn(f"the checkpoint of step {self.step} holds NaN or Inf, and it is the newest there is")

    def begin_loop(self, unit: str, count: int, *, extend: bool) -> None:
        """The loop over the run begins.

        Raises:
            LoopError: There was one already.
            PlanChangedError: The run was planned otherwise, and ``extend`` does not say that this is meant.
        """
        if self.plan is not None:
            raise LoopError(
                f"this run has its loop already, over {self.plan.count} {self.plan.unit}",
                hint="give another phase a run of its own, with another name",
            )
        if self.state.resume is not None and self.state.resume.tree["plan"] is not None:
            self._check_plan(Plan(**self.state.resume.tree["plan"]), Plan(unit, count), extend=extend)
        self.plan = Plan(unit, count)
        self.state.book.begin()
        self._schedule.begin(self.step)
        self._board.stop_flag.install()
        self.looping = True
        if not self.finished:
            self.watch.begin(self.step)
        self._pace.leave("step")
        self.tell_status("running")

    def _check_plan(self, was: Plan, now: Plan, *, extend: bool) -> None:
        if was.unit != now.unit:
            raise PlanChangedError(
                f"this run counts {was.unit}, the script now counts {now.unit}",
                planned=was.count,
                asked=now.count,
                hint=f"go on with run.{was.unit}({was.count}), or begin a run with another name",
            )
        if was.count == now.count:
            return
        if not extend:
            raise PlanChangedError(
                f"this run was planned for {was.count} {was.unit}, the script now asks for {now.count}",
                planned=was.count,
                asked=now.count,
                hint=f"if that is meant: run.{was.unit}({now.count}, extend=True)",
            )
        if self.position_reached(now):
            return
        self.finished = False

    def position_reached(self, plan: Plan) -> bool:
        """Whether nothing is left to do of a plan."""
        return (self.epoch if plan.unit == "epochs" else self.step) >= plan.count

    # ---------------------------------------------------------------- epochs

    def enter_epoch(self, epoch: int) -> None:
        """The head of an epoch is reached."""
        self._raise_if_over()
        self.epoch = epoch
        resume = self.state.resume
        if resume is not None and resume.armed and (resume.position.call, resume.position.batch) != (0, 0):
            self._stop_if_due("step")
            self.state.calls.new_epoch(resume.position.call, resume.tree["calls"])
            self.state.restore_head()
            return
        self.state.calls.new_epoch()
        self.begin_here()
        self.state.capture_head()

    @contextmanager
    def body(self) -> Iterator[None]:
        """The user's body runs; it may leave the loop."""
        try:
            yield
        except GeneratorExit:
            self.left = True
            raise

    def begin_here(self) -> None:
        """The loop takes up here what there is to take up; and it may be too late already."""
        if self.state.armed:
            self.restore_boundary()
        self._stop_if_due("step")
        self._pace.leave("step")

    def leave_epoch(self) -> None:
        """The body of an epoch has run to its end."""
        self._raise_if_over()
        self.close_calls()
        if self.state.resume is not None and self.state.resume.armed:
            self.state.calls.refuse_missing_call(self.state.resume.position.call, self.epoch)
        self.epoch += 1
        self.state.calls.new_epoch()
        self.state.leave_head()
        self._schedule.epoch_ended()
        if self.plan is not None and self.epoch < self.plan.count:
            self.boundary("step", epoch_ended=True)

    def _look_for_strays(self) -> None:
        if not self._strays and self.state.book.iterated_outside():
            self._strays = True
            warn(
                "a DataLoader with persistent_workers=True is iterated outside of the run: its first pass in each "
                "session draws one number from torch's generator, so a resumed run will not be exact; give it "
                "persistent_workers=False, or generator=torch.Generator().manual_seed(0)"
            )

    # ---------------------------------------------------------------- calls

    def number_call(self) -> int | None:
        """Number of a ``batches()`` call that is made now; None for one nested in a batch of another.

        Raises:
            LoopError: It stands outside the loop, or in a loop over steps.
        """
        self._raise_if_over()
        if not self.looping or self.plan is None:
            raise LoopError(
                "run.batches() was called outside the loop of the run",
                hint="put it into the body of: for epoch in run.epochs(n):",
            )
        if self.plan.unit == "steps":
            raise LoopError(
                "run.batches() inside run.steps() would walk the whole loader in each step",
                hint="make stream = run.cycle(loader) above the loop, and call next(stream) in it",
            )
        return self.state.calls.number()

    def open_call(self, call: OpenCall) -> tuple[State | None, Callable[[], None] | None] | None:
        """A numbered call is about to deal its first batch.

        Returns:
            None if it was finished before the checkpoint; else its state to take up (None: from its head), and
            what to do once it is taken up (None: leave no trace in the generators).
        """
        calls, number = self.state.calls, call.number
        assert number is not None
        state = calls.reopen.pop(number, None)
        if number < calls.skip and state is None:
            return None
        calls.open(call)
        resume = self.state.resume
        if resume is not None and resume.armed and number == resume.position.call:
            if state is not None:
                return state, self.restore_boundary
            self.restore_boundary()
        elif number > 0 and calls.leading() is call:
            self.boundary("step")
        return state, None

    def close_call(self, call: OpenCall) -> None:
        """A call has ended: it dealt everything, was left by ``break``, or was dropped."""
        if call.out and call is self.state.calls.leading():
            self.step += 1
        call.out = False
        self.state.calls.close(call)

    def close_calls(self) -> None:
        """The epoch is over: calls that the user still refers to are over too."""
        for call in self.state.calls.opened():
            self.close_call(call)
            if call.feed is not None:
                call.feed.close()

    def add_stream(self, stream: OpenStream) -> tuple[int, Mapping[str, Any] | None]:
        """A stream was made; returns its number, and its state in the checkpoint.

        Raises:
            LoopError: It was made in the loop.
        """
        if self.looping:
            raise LoopError(
                "run.cycle() was called inside the loop; a stream belongs to the whole run",
                hint="make it above the loop: stream = run.cycle(loader)",
            )
        number = self.state.calls.add_stream(stream)
        states = self.state.resume.tree["streams"] if self.state.resume else []
        return number, states[number] if number < len(states) else None

    # ---------------------------------------------------------------- boundaries

    @property
    def position(self) -> Position:
        """The present boundary."""
        leading = self.state.calls.leading()
        if leading is None or leading.number is None:
            return Position(self.step, self.epoch, self.state.calls.begun, 0, self.finished)
        batch = leading.feed.batch if leading.feed is not None else 0
        return Position(self.step, self.epoch, leading.number, batch, self.finished)

    def boundary(self, upcoming: Gap, *, epoch_ended: bool = False) -> None:
        """Between two steps: stop if it is time to, save if it is due.

        Args:
            upcoming: What comes next.
            epoch_ended: An epoch has just ended; if its metric is the best so far, that is worth a save.

        Raises:
            SessionPaused: The session must stop; the state is saved.
        """
        self._raise_if_over()
        self._pace.boundary()
        if self._saver.boundary():
            self.tell_status("running")
        if not self._checked:
            self._checked = True
            self._check_first_step()
        look_is_due = self.watch.due(self.step)
        self._stop_if_due(upcoming)
        if self.asked or self._due():
            self._save("asked" if self.asked else "interval")
        elif epoch_ended and self._save_best and self._saver.would_be_best():
            self._save("best")
        if look_is_due:
            self._look()
        self._journal.flush(due_only=True)
        self._pace.leave(upcoming)

    def _check_first_step(self) -> None:
        """The first step of the session is done: is all of it saved, and where it should be?"""
        watch = self.watch
        for sentence in self._saver.check(self._plan_values()):
            warn(sentence)
        if iterators_outside(self.state.calls.iterators()):
            warn(
                "a DataLoader's iterator is alive between two steps that the run does not know: where it is "
                "is in no checkpoint, so a resumed run will not be exact; make it stream = run.cycle(loader) "
                "above the loop, and next(stream)"
            )
        world, used = self.state.world, watch.card_used
        with watch.never_fatal():
            for sentence in check_placement(world, watch.device, watch.batch_devices, card_used=used):
                warn(sentence)
        watch.first_step_done(self.step, self._progress())

    def _look(self) -> None:
        """Look at cards and times, and tell."""
        self._journal.flush()
        with self.watch.never_fatal():
            feed = self.state.calls.leading_feed()
            around = circumstances(
                self.state.world,
                feed.source if feed is not None else None,
                str(self.watch.device),
                self._board.mode,
                autocast=self.watch.autocast_seen,
            )
            self.watch.look(self._progress(), around)
        self.tell_status("running")

    def _progress(self) -> Progress:
        assert self.plan is not None
        if self.plan.unit == "steps":
            return Progress(f"step {self.step} of {self.plan.count}", self.step, self.plan.count)
        feed = self.state.calls.leading_feed()
        part = feed.batch / feed.source.length if feed is not None and feed.source.length else 0.0
        text = f"step {self.step}, epoch {self.epoch} of {self.plan.count}"
        return Progress(text, self.epoch + min(part, 1.0), self.plan.count)

    def _due(self) -> bool:
        if self._saver.busy and self._schedule.patient:
            return False
        return self._saver.retry or self._schedule.due(self.step)

    def _stop_if_due(self, upcoming: Gap) -> None:
        reason = self._board.stop_flag.reason or self._pace.stop_reason(
            self._board.window, self._board.margin_s, upcoming
        )
        if not reason:
            return
        self._saver.settle()
        if not self.state.armed and self.position not in (self._saver.position, Position()):
            self._save("stop")
        self._leave("paused", reason)
        say(f"{self._board.name}: paused at {self._saver.position or self.position}: {reason}")
        self._paused_for = reason
        self._raise_if_over()

    def _raise_if_over(self) -> None:
        """A script that caught the pause with a bare ``except:`` must not train, advance or save any further.

        Nor must one whose run another has taken over.
        """
        if self._gave_way:
            raise LoopError(
                "a later perdure.Run of the same folder in this process has taken this run over",
                hint="go on with that one; perdure status tells of a run without opening it",
            )
        if self._paused_for:
            raise SessionPaused(self._paused_for, step=self.step, code=self._board.paused_exit_code)

    def finish(self) -> None:
        """The run has reached its end."""
        if not self.looping:
            return
        self.close_calls()
        if self.state.armed:
            self.restore_boundary()
        if self.left and self.plan is not None and self.plan.unit == "epochs":
            self.epoch += 1  # left by break: if the run is extended, it goes on with the next one
            self.state.calls.new_epoch()
            self.state.leave_head()
        saved = self.finished
        if not saved:
            self.finished = True
            saved = self._save("finished")
        if saved:
            self._leave("finished", "the script has reached its end")
        else:  # the model is whole in memory and can be exported; others must not believe that it is on disk
            self._leave("failed", "the final checkpoint could not be saved")

    def fail(self, reason: str) -> None:
        """The script has failed. Nothing is saved: the last good checkpoint is worth more."""
        self._leave("failed", reason)

    def give_way(self) -> None:
        """Another has taken the folder over: nothing goes on, and nothing is written, for it is the other's."""
        if not self.looping:
            return
        self.looping, self._gave_way = False, True
        self._saver.give_way()
        self.state.calls.close_all()
        self.watch.stop()
        self._board.stop_flag.release()

    def _leave(self, status: str, reason: str) -> None:
        self.looping = False
        self._saver.end()
        self.state.calls.close_all()
        self.watch.end(self.step)
        self._journal.event(status, step=self.step, session=self._saver.session_number, reason=reason)
        self._journal.flush()
        self.tell_status(status, reason)
        self._board.stop_flag.release()

    def _save(self, reason: str) -> bool:
        self.asked = False
        self._look_for_strays()
        began_s = self._pace.now()
        save = self._saver.save if reason in ("stop", "finished") else self._saver.begin
        saved = save(self.position, self._plan_values(), reason)
        self.watch.saved(self._pace.now() - began_s)
        if saved:
            self.tell_status("running")
        return saved

    def restore_boundary(self) -> None:
        """Put everything of the checkpoint's boundary back.

        Raises:
            StateMismatchError: The live objects do not fit.
        """
        for name in self.state.restore_boundary():
            warn(f"the checkpoint holds {name!r}, which this script does not track; it is kept as it is")

    def tell_status(self, status: str, reason: str = "") -> None:
        """Write where the run stands for others to read."""
        self._board.write(
            status,
            reason,
            session=self._saver.session_number,
            step=self.step,
            epoch=self.epoch,
            checkpoint=self._saver.checkpoint,
            plan=self._plan_values(),
            resumed_from=self.resumed_from,
            seen=self.watch.facts(),
        )

    def _plan_values(self) -> dict[str, Any] | None:
        return {"unit": self.plan.unit, "count": self.plan.count} if self.plan else None
