"""``perdure demo``: a real training, killed and proved."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from perdure.cli.options import Json
from perdure.cli.output import say, say_json
from perdure.core.intervals import format_duration
from perdure.demo.driver import Demo, DemoSession, Driver

Out = Annotated[Path, typer.Option(help="Where runs, logs and model files go.")]
Seed = Annotated[int, typer.Option(help="Of the moments of the kills.")]


def demo_command(out: Out = Path("demo-out"), seed: Seed = 0, json: Json = False) -> None:
    """Train real digits, kill the sessions, prove nothing was lost.

    A small network is trained twice at the same time: through several sessions, and straight through. Then the two
    ends are compared bit by bit. Under a minute, without account, GPU or network. Exit code 1 if they differ.
    """
    demo = _watched(out, seed)
    if json:
        say_json(asdict(demo))
    else:
        for line in _verdict(demo):
            say(line)
    if not demo.identical:
        raise typer.Exit(1)


def _watched(out: Path, seed: int) -> Demo:
    """Run it, with a bar for each training on stderr, and a line for each session that ends."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        bars = {who: progress.add_task(who, total=None) for who in ("in sessions", "straight")}
        driver = Driver(
            out,
            seed=seed,
            on_progress=lambda who, done, total: progress.update(bars[who], completed=done, total=total),
            on_session=lambda session: console.print(_told(session), soft_wrap=True),
        )
        return driver.run()


def _told(session: DemoSession) -> str:
    """A session in a line."""
    text = f"session {session.number}  {session.how:<8}  step {session.step:>4}, {format_duration(session.seconds)}"
    if session.how == "killed":
        return f"{text}, SIGKILL without notice"
    if session.window_s is not None:
        text += f" of a window of {format_duration(session.window_s)}"
    return f"{text}: {session.reason}" if session.how == "paused" else text


def _verdict(demo: Demo) -> list[str]:
    killed = sum(session.how == "killed" for session in demo.sessions)
    paused = sum(session.how == "paused" for session in demo.sessions)
    lines = [
        f"{len(demo.sessions)} sessions, {killed} killed, {paused} out of time: {demo.steps} steps "
        f"in {format_duration(round(demo.seconds))}",
        f"against the uninterrupted training: {'identical' if demo.identical else 'NOT identical'}",
        *(f"  - {difference}" for difference in demo.differences),
        f"held-out digits recognised: {demo.accuracy:.1%}",
        *(f"model: {path}" for path in demo.models),
        f"script: {demo.script}",
        f"look at it: perdure status --root {demo.runs}",
    ]
    return lines
