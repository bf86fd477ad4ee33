"""``perdure rehearse``: the platform in small, and a verdict."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from perdure.cli.options import Json
from perdure.cli.output import note, say, say_json, table
from perdure.core.errors import ConfigError
from perdure.core.intervals import format_duration, parse_bytes, parse_duration
from perdure.platforms.command import session_command
from perdure.relay.leg import Leg
from perdure.relay.rehearsal import Plan, Rehearsal, Result, describe

Target = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT|NOTEBOOK [-- ARGS]...",
        help="A Python script or a notebook; its arguments after --.",
        show_default=False,
    ),
]


def rehearse_command(
    target: Target,
    window: Annotated[str, typer.Option(help="How long a session may last.")] = "30s",
    kills: Annotated[int, typer.Option(min=0, help="How many sessions are killed hard, at drawn moments.")] = 3,
    disk: Annotated[
        str | None,
        typer.Option(help="What a session's working folder may hold, such as '200MB'.", show_default="all"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the moments of the kills.")] = 0,
    sessions_max: Annotated[int, typer.Option(min=1, max=9999, help="Give up after so many sessions.")] = 100,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Empty folder in which everything is kept; a temporary one if not given.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Rehearse a platform: killed sessions, windows, then one straight run. Exit code 1 if not identical."""
    command = session_command(target[0], target[1:])
    window_s = parse_duration(window, what="--window")
    disk_bytes = None if disk is None else parse_bytes(disk, what="--disk")
    with _work(work) as folder, _ended_cleanly():
        plan = Plan(command, folder, window_s, kills, disk_bytes, seed, sessions_max)
        result = Rehearsal(plan, note).run()
    if json:
        say_json(_document(plan, result))
    else:
        _show(result)
    if result.verdict != "identical":
        raise typer.Exit(1)


@contextmanager
def _work(asked: Path | None) -> Iterator[Path]:
    if asked is None:
        with tempfile.TemporaryDirectory(prefix="perdure-rehearsal-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    asked.mkdir(parents=True, exist_ok=True)
    if any(asked.iterdir()):
        raise ConfigError(f"the --work folder is not empty: {asked}", hint="give a new one")
    yield asked.absolute()


@contextmanager
def _ended_cleanly() -> Iterator[None]:
    """Let ``SIGTERM`` and ``SIGHUP`` end the running session too, as Ctrl-C does."""

    def leave(number: int, _: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(result: Result) -> None:
    rows = [_row(leg) for leg in (*result.legs, *result.twins)]
    for line in table(("session", "ended", "lasted", "from step", "to step", "lost"), rows):
        say(line)
    for each in result.notes:
        note(f"note: {each}")
    if result.tail:
        note("the end of its log:")
        for line in result.tail:
            note(f"  {line}")
    say("")
    if result.lost_steps is not None:
        say(f"steps lost  about {result.lost_steps}")
    if result.lost_s is not None:
        say(f"time lost   {format_duration(max(0.0, result.lost_s))} of {format_duration(result.seconds)}")
    say(f"verdict     {result.verdict}: {result.reason}")


def _row(leg: Leg) -> tuple[str, ...]:
    end = leg.end
    ended = {"window": "window over", "disk": "disk over", "failed": f"failed ({end.code})"}.get(end.how, end.how)
    steps: tuple[str, ...] = ("", "", "")
    if end.report is not None:
        steps = (str(sum(leg.begun.values())), str(sum(leg.saved.values())), str(leg.lost_steps or ""))
    return (leg.name, ended, format_duration(end.seconds), *steps)


def _document(plan: Plan, result: Result) -> dict[str, Any]:
    return {
        "version": 1,
        "verdict": result.verdict,
        "identical": result.verdict == "identical",
        "reason": result.reason,
        "first_difference": str(result.differences[0]) if result.differences else None,
        "differences": [{"where": each.where, "what": each.what} for each in result.differences],
        "uses_perdure": result.uses_perdure,
        "window_s": plan.window_s,
        "disk_bytes": plan.disk_bytes,
        "seed": plan.seed,
        "sessions": [_leg(leg) for leg in result.legs],
        "uninterrupted": [_leg(leg) for leg in result.twins],
        "steps_lost": result.lost_steps,
        "seconds_lost": None if result.lost_s is None else round(result.lost_s, 3),
        "notes": list(result.notes),
        "log_tail": list(result.tail),
    }


def _leg(leg: Leg) -> dict[str, Any]:
    report = leg.end.report
    return {
        "name": leg.name,
        "ended": leg.end.how,
        "exit_code": leg.end.code,
        "seconds": round(leg.end.seconds, 3),
        "output_bytes": leg.end.output_bytes,
        "runs": {
            name: {"from_step": leg.begun[name], "to_step": step, "lost_steps": max(0, leg.reached[name] - step)}
            for name, step in leg.saved.items()
        },
        "reason": report.reason if report else "",
        "did": describe(leg),
    }
