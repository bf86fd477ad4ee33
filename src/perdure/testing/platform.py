"""A platform that does what a test says, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perdure.core.clock import Clock
from perdure.core.errors import NotThereError, RefusedError
from perdure.platforms.protocol import (
    Accelerator,
    Handle,
    Log,
    Observation,
    OutputFile,
    Pace,
    Progress,
    Quota,
    Resource,
    SessionState,
    Stopping,
    Submission,
)

NONE = Accelerator("none", "None", None)
T4X2 = Accelerator("t4x2", "NvidiaTeslaT4", "gpu", 2, "T4")


@dataclass(frozen=True)
class Course:
    """What a session is going to do; times in seconds from its submission.

    Attributes:
        queued_s: How long it waits in the queue.
        runs_s: How long it then runs.
        end: As what it ends.
        hidden_s: How long the platform does not show it.
        stops: Whether it can be asked to end.
        files: Its output.
        lines: What it prints.
    """

    queued_s: float = 0.0
    runs_s: float = 3600.0
    end: SessionState = "complete"
    hidden_s: float = 0.0
    stops: bool = True
    files: Mapping[str, bytes] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


@dataclass
class ScriptedSession:
    """A session that was submitted.

    Attributes:
        submission: With what.
        course: What it does.
        submitted_s: When, seconds since 1970.
        ended_s: When it ends, seconds since 1970.
        end: As what.
    """

    submission: Submission
    course: Course
    submitted_s: float
    ended_s: float
    end: SessionState

    @property
    def began_s(self) -> float:
        """When it leaves the queue, or would have."""
        return self.submitted_s + self.course.queued_s

    def ran_s(self, now_s: float) -> float:
        """How long it has run until now."""
        return max(0.0, min(self.ended_s, now_s) - self.began_s)


class ScriptedPlatform:
    """Sessions that begin and end as a test says; nothing runs.

    Args:
        clock: The test's.
        course: What the session of a submission is going to do.
        pace: As of a real platform.
        accelerators: What it offers.
        window_s: The longest window.
        allowed_s: Hours of accelerators in a period; None for no quota.
        period_s: How long a period is.
        slots: How many sessions may run or wait at once.

    Attributes:
        sessions: All that were accepted, by slug, in their order.
        calls: Names of all calls.
        before: Called with the name of a call before it has any effect; may raise.
        after: The same, after it; may raise.
    """

    name = "scripted"

    def __init__(
        self,
        clock: Clock,
        course: Callable[[Submission], Course] = lambda submission: Course(),
        *,
        pace: Pace = Pace(),  # noqa: B008  # it is frozen
        accelerators: Sequence[Accelerator] = (T4X2, NONE),
        window_s: float = 12 * 3600.0,
        allowed_s: float | None = None,
        period_s: float = 7 * 86400.0,
        slots: int = 2,
    ) -> None:
        self.pace = pace
        self.accelerators = tuple(accelerators)
        self.sessions: dict[str, ScriptedSession] = {}
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda call: None
        self.after: Callable[[str], None] = lambda call: None
        self._clock = clock
        self._course = course
        self._window_s = window_s
        self._allowed_s = allowed_s
        self._period_s = period_s
        self._slots = slots
        self._began_s = clock.time()

    def window_s(self, accelerator: str) -> float:
        """The longest window, whatever the accelerator."""
        return self._window_s

    def account(self) -> str:
        """Nobody's."""
        return "tester"

    def quota(self) -> tuple[Quota, ...]:
        """Hours of the kinds of accelerators that it offers."""
        self._enter("quota")
        resources = {each.resource for each in self.accelerators if each.resource is not None}
        quota = () if self._allowed_s is None else tuple(self._quota(each) for each in sorted(resources))
        self.after("quota")
        return quota

    def submit(self, submission: Submission) -> Handle:
        """Accept a session, or refuse it for lack of slots or hours."""
        self._enter("submit")
        self._check(submission)
        now_s, course = self._clock.time(), self._course(submission)
        lasts_s = course.queued_s + min(course.runs_s, submission.window_s)
        self.sessions[submission.slug] = ScriptedSession(submission, course, now_s, now_s + lasts_s, course.end)
        self.after("submit")
        return self._handle(submission.slug)

    def find(self, slug: str) -> Handle | None:
        """It, if it was accepted and is not hidden."""
        self._enter("find")
        found = self._handle(slug) if self._shown(slug) else None
        self.after("find")
        return found

    def observe(self, handle: Handle) -> Observation:
        """How it stands by the clock."""
        self._enter("observe")
        state = self._state(handle.ref) if self._shown(handle.ref) else "missing"
        self.after("observe")
        return Observation(state, state.upper())

    def logs(self, handle: Handle) -> Log:
        """What it prints, all of it at once."""
        self._enter("logs")
        session = self._session(handle)
        return Log(session.course.lines, session.ended_s <= self._clock.time())

    def files(self, handle: Handle) -> tuple[OutputFile, ...]:
        """Its output, when it has ended."""
        self._enter("files")
        session = self._session(handle)
        if session.ended_s > self._clock.time():
            return ()
        return tuple(OutputFile(name, len(data)) for name, data in session.course.files.items())

    def fetch(
        self, handle: Handle, names: Sequence[str], folder: Path, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Write files of its output."""
        self._enter("fetch")
        session = self._session(handle)
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(session.course.files[name])
        return tuple(folder / name for name in names)

    def stop(self, handle: Handle, *, now: bool) -> Stopping:
        """End it, if its course lets itself be ended."""
        self._enter("stop")
        session, now_s = self._session(handle), self._clock.time()
        done = now or session.course.stops
        if done and session.ended_s > now_s:
            session.ended_s, session.end = now_s, "stopped"
        self.after("stop")
        return Stopping(done, "it has ended" if done else "nothing can end it from outside")

    def running(self) -> list[str]:
        """Slugs of all sessions that run or wait in the queue, shown or not."""
        return [slug for slug in self.sessions if self._state(slug) in ("queued", "running")]

    def most_at_once(self) -> int:
        """How many sessions ran at the same time, at most, until now; waiting ones do not count."""
        now_s = self._clock.time()
        spans = [
            (session.began_s, min(session.ended_s, now_s))
            for session in self.sessions.values()
            if session.began_s < min(session.ended_s, now_s)
        ]
        return max((sum(one[0] <= begin < one[1] for one in spans) for begin, _ in spans), default=0)

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        self.before(call)

    def _check(self, submission: Submission) -> None:
        if submission.slug in self.sessions:
            raise AssertionError(f"{submission.slug} was submitted twice")
        if len(self.running()) >= self._slots:
            raise RefusedError(f"all {self._slots} slots are taken", code="slots-full")
        resource = next(each.resource for each in self.accelerators if each.name == submission.accelerator)
        if resource and self._allowed_s is not None and self._quota(resource).left_s <= 0:
            raise RefusedError("the hours are used up", code="quota-exhausted")

    def _quota(self, resource: Resource) -> Quota:
        assert self._allowed_s is not None
        now_s = self._clock.time()
        begin_s = self._began_s + (now_s - self._began_s) // self._period_s * self._period_s
        used_s = reserved_s = 0.0
        for slug, session in self.sessions.items():
            if self._resource(session.submission.accelerator) == resource:
                used_s += max(0.0, min(session.ended_s, now_s) - max(session.began_s, begin_s))
                if self._state(slug) in ("queued", "running"):
                    reserved_s += session.submission.window_s - session.ran_s(now_s)
        return Quota(resource, used_s, reserved_s, self._allowed_s, begin_s + self._period_s)

    def _resource(self, name: str) -> Resource | None:
        return next(each.resource for each in self.accelerators if each.name == name)

    def _handle(self, slug: str) -> Handle:
        return Handle(self.name, slug, 1)

    def _session(self, handle: Handle) -> ScriptedSession:
        if not self._shown(handle.ref):
            raise NotThereError(f"there is no session {handle.ref}")
        return self.sessions[handle.ref]

    def _shown(self, slug: str) -> bool:
        session = self.sessions.get(slug)
        return session is not None and self._clock.time() >= session.submitted_s + session.course.hidden_s

    def _state(self, slug: str) -> SessionState:
        session, now_s = self.sessions[slug], self._clock.time()
        if now_s >= session.ended_s:
            return session.end
        return "running" if now_s >= session.began_s else "queued"
