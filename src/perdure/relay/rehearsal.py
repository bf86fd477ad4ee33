"""The platform in small: a chain of sessions on this machine, its uninterrupted twin, and what became of both.

Each session is a fresh process in a fresh working folder that sees the outputs of earlier ones read-only. The
first ones are killed hard at drawn moments, the others run into their window. Then the same script runs once
without any of that, and what both left is compared.
"""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perdure.core.intervals import format_duration
from perdure.platforms.local import LocalLimits, LocalSession, SessionFolders, log_tail
from perdure.relay.leg import Killer, Leg, run_leg
from perdure.relay.verdict import Difference, compare_files, compare_runs, count_files, newest_checkpoints

Verdict = Literal["identical", "differs", "not deterministic", "nothing to compare", "not finished", "failed"]
"""``"differs"``: the script gives the same result twice when it is not interrupted, and another when it is.
``"failed"``: it does not finish without any interruption either."""

STALLED = 3
"""Sessions in a row without progress after which a chain is given up."""

_TWIN_WINDOWS = 10
"""A script that never finished in the chain is given this many windows for its uninterrupted run."""

_NO_WINDOW_S = 30 * 86400.0
"""Told to other uninterrupted runs as their window, so that it wins over limits in the script itself."""


@dataclass(frozen=True)
class Plan:
    """What to rehearse.

    Attributes:
        command: Program and arguments.
        work: An empty folder for everything.
        window_s: Length of a session's window; None for none.
        kills: How many of the first sessions are killed hard.
        disk_bytes: What a working folder may hold; None for no limit.
        seed: Draws the moments of the kills.
        sessions_max: How many sessions there may be.
    """

    command: tuple[str, ...]
    work: Path
    window_s: float | None
    kills: int
    disk_bytes: int | None
    seed: int
    sessions_max: int


@dataclass(frozen=True)
class Result:
    """What a rehearsal showed.

    Attributes:
        verdict: In a word.
        reason: The verdict in a sentence.
        legs: The sessions.
        twins: The uninterrupted runs: one, or two where the first comparison failed; none if the chain got stuck.
        differences: Between the chain and its twin; the first is the first that differs.
        uses_perdure: Whether the script uses Perdure; otherwise the files it left were compared.
        notes: Sentences on what could not be enforced or would be lost.
        tail: Last lines of the log of the session that failed or got stuck.
    """

    verdict: Verdict
    reason: str
    legs: tuple[Leg, ...]
    twins: tuple[Leg, ...] = ()
    differences: tuple[Difference, ...] = ()
    uses_perdure: bool = False
    notes: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long all sessions of the chain lasted."""
        return sum(leg.end.seconds for leg in self.legs)

    @property
    def lost_s(self) -> float | None:
        """How much longer that was than the uninterrupted run; None if either did not finish."""
        finished = bool(self.legs and self.twins) and self.legs[-1].end.how == self.twins[0].end.how == "finished"
        return self.seconds - self.twins[0].end.seconds if finished else None

    @property
    def lost_steps(self) -> int | None:
        """Steps that were made more than once, about; None if the script does not use Perdure."""
        return sum(leg.lost_steps for leg in self.legs) if self.uses_perdure else None


@dataclass
class Rehearsal:
    """One rehearsal.

    Attributes:
        plan: What to rehearse.
        tell: Called with a line about what happens.
    """

    plan: Plan
    tell: Callable[[str], None]
    _legs: list[Leg] = field(default_factory=list)
    _twins: list[Leg] = field(default_factory=list)
    _done: dict[str, tuple[bool, int]] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)

    def run(self) -> Result:
        """Run the chain, then the twin, and compare."""
        stuck = self._run_chain()
        if stuck and self._uses_perdure:
            return self._result("not finished", stuck, tail=self._log(self._legs[-1]))
        twin = self._run_twin()
        if stuck and twin.end.how in ("finished", "window"):
            needs = format_duration(twin.end.seconds)
            more = f"uninterrupted it takes {needs}" if twin.end.how == "finished" else f"nor did it in {needs}"
            return self._result("not finished", f"{stuck}; {more}", tail=self._log(self._legs[-1]))
        if twin.end.how != "finished":
            reason = f"the script does not finish without any interruption either: {describe(twin)}"
            return self._result("failed", reason, tail=self._log(twin))
        return self._judge()

    def _run_chain(self) -> str:
        """Sessions until the script has finished; why it got stuck, empty if it did not."""
        generator = random.Random(self.plan.seed)
        stalled = 0
        for number in range(1, self.plan.sessions_max + 1):
            killer = Killer(generator) if number <= self.plan.kills else None
            leg = self._run_session(number, killer)
            self._legs.append(leg)
            self._notes.update(dict.fromkeys(leg.end.notes))
            if leg.end.how == "finished":
                return ""
            progress = self._note_progress(leg)
            if leg.end.how == "failed":
                self._notes[f"session {number} was {describe(leg)}"] = None
            if leg.end.how != "killed":
                stalled = 0 if progress else stalled + 1
            if stalled == STALLED:
                return self._why_stuck(leg)
            self._prune()
        return f"it did not finish in {self.plan.sessions_max} sessions"

    def _run_session(self, number: int, killer: Killer | None) -> Leg:
        name = f"session-{number:04d}"
        limits = LocalLimits(self.plan.window_s, self.plan.disk_bytes)
        session = self._start(name, self._outputs / name, self._outputs, limits)
        leg = run_leg(name, session, killer)
        self.tell(f"session {number}: {describe(leg)}")
        return leg

    def _run_twin(self) -> Leg:
        number = len(self._twins) + 1
        self.tell("the uninterrupted run" + (", once more" if number > 1 else ""))
        finished = self._legs[-1].end.how == "finished"
        window_s = _NO_WINDOW_S if finished else min(_NO_WINDOW_S, _TWIN_WINDOWS * (self.plan.window_s or math.inf))
        output = self._twin_output(number)
        session = self._start(output.name, output, self.plan.work / "nothing", LocalLimits(window_s))
        twin = run_leg(output.name, session, None)
        self._twins.append(twin)
        self.tell(f"the uninterrupted run: {describe(twin)}")
        return twin

    def _start(self, name: str, output: Path, source: Path, limits: LocalLimits) -> LocalSession:
        work = self.plan.work
        folders = SessionFolders(work / "working", work / "input", source, work / "sessions" / name, output)
        # sets of strings would else have another order in each process, on this machine as on a platform
        environment = {"PYTHONHASHSEED": "0", **os.environ}
        return LocalSession(self.plan.command, folders, limits, environment)

    def _judge(self) -> Result:
        differences = self._compare(self._newest_outputs(), self._twin_output(1))
        if not differences:
            return self._agree()
        self._run_twin()
        noise = {each.where for each in self._compare([self._twin_output(2)], self._twin_output(1))}
        real = [each for each in differences if each.where not in noise]
        if real:
            reason = f"it ends alike each time it runs through, and otherwise when it is interrupted: {real[0]}"
            return self._result("differs", reason, differences=real)
        if all(each.is_generator for each in differences):
            self._notes[
                "left out, since it is another one in each uninterrupted run too, and nothing depends on it: "
                + ", ".join(sorted({each.where for each in differences}))
            ] = None
            return self._agree()
        reason = (
            "two uninterrupted runs differ from each other already, so nothing can be said of the resume "
            f"(does the script set a seed?): {differences[0]}"
        )
        return self._result("not deterministic", reason, differences=differences)

    def _agree(self) -> Result:
        files = count_files(self._twin_output(1))
        if not self._uses_perdure:
            if not files:
                return self._result("nothing to compare", "the script left no files")
            left = "the file it leaves is" if files == 1 else f"the {files} files it leaves are"
            return self._result("identical", f"{left} the same, byte for byte")
        for each in compare_files(self._newest_outputs()[0], self._twin_output(1)):
            self._notes[f"beside the runs, {each}"] = None
        runs = newest_checkpoints([self._twin_output(1)])
        if not runs:
            return self._result("nothing to compare", "the script left no checkpoint")
        entries = sum(len(found.manifest.entries) for found in runs.values() if found.manifest)
        names = ", ".join(runs)
        return self._result("identical", f"the final state of {names} is the same, bit for bit ({entries} tensors)")

    def _compare(self, chain: list[Path], twin: Path) -> list[Difference]:
        return compare_runs(chain, twin) if self._uses_perdure else compare_files(chain[0], twin)

    def _result(
        self,
        verdict: Verdict,
        reason: str,
        *,
        differences: list[Difference] | None = None,
        tail: Path | None = None,
    ) -> Result:
        return Result(
            verdict,
            reason,
            tuple(self._legs),
            tuple(self._twins),
            tuple(differences or ()),
            self._uses_perdure,
            tuple(self._notes),
            tuple(log_tail(tail)) if tail else (),
        )

    def _note_progress(self, leg: Leg) -> bool:
        """Whether any run has come further than it ever was."""
        runs = leg.end.report.runs if leg.end.report else ()
        further = False
        for run in runs:
            state = (run.status == "finished", run.step)
            if run.checkpoint is not None and state > self._done.get(run.name, (False, 0)):
                self._done[run.name] = state
                further = True
        return further

    def _why_stuck(self, leg: Leg) -> str:
        if not self._uses_perdure and leg.end.how == "window":
            window = format_duration(self.plan.window_s or 0)
            return (
                f"it does not use Perdure and did not finish in {STALLED} full windows of {window} in a row: "
                "a session that begins from nothing loses all that the one before it did"
            )
        text = f"no progress in {STALLED} sessions in a row; the last one was {describe(leg)}"
        if leg.end.how == "window" and leg.saved == leg.begun:
            text += "; is the window long enough to start and to save once?"
        return text

    def _prune(self) -> None:
        """Drop outputs that are not needed: the last one stays, and of each run the last two that hold it."""
        outputs = self._newest_outputs()
        keep = set(outputs[:1])
        holders: dict[str, int] = {}
        for output in outputs:
            for name in newest_checkpoints([output]):
                holders[name] = holders.get(name, 0) + 1
                if holders[name] <= 2:
                    keep.add(output)
        for output in outputs:
            if output not in keep:
                shutil.rmtree(output)

    @property
    def _outputs(self) -> Path:
        return self.plan.work / "outputs"

    def _newest_outputs(self) -> list[Path]:
        return sorted(self._outputs.iterdir(), reverse=True)

    def _twin_output(self, number: int) -> Path:
        return self.plan.work / f"twin-{number}"

    def _log(self, leg: Leg) -> Path:
        return self.plan.work / "sessions" / leg.name / "log.txt"

    @property
    def _uses_perdure(self) -> bool:
        return any(leg.end.report is not None for leg in (*self._legs, *self._twins))


def describe(leg: Leg) -> str:
    """What a session did, for people."""
    end = leg.end
    words = {
        "finished": "finished",
        "paused": "paused",
        "failed": f"ended by an error (exit code {end.code})",
        "killed": "killed hard",
        "window": "killed at the end of its window",
        "disk": "killed when it outgrew its disk",
    }
    text = f"{words[end.how]} after {format_duration(end.seconds)}"
    if end.report is None:
        return text
    text += f", steps {sum(leg.begun.values())} to {sum(leg.saved.values())}"
    if leg.lost_steps:
        text += f", about {leg.lost_steps} lost"
    return text
