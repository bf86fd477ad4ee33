"""``perdure demo``: a real training, killed and proved."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from perdure.cli.options import Json
from perdure.cli.output import say, say_json
from perdure.core.intervals import format_duration
from perdure.demo.driver import TRAININGS, Demo, DemoSession, Driver

Out = Annotated[Path, typer.Option(help="Where runs, logs and model files go.")]
Seed = Annotated[int, typer.Option(help="Of the moments of the kills.")]


def demo_command(out: Out = Path("demo-out"), seed: Seed = 0, json: Json = False) -> None:
    """Train real digits, kill the sessions, prove nothing was lost.

    A small network is trained twice: through several sessions, and straight through. Then the two ends are compared
    bit by bit. Under a minute, without account, GPU or network. Exit code 1 if they differ.
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
    columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        bars = {who: progress.add_task(who, total=None, state="waiting") for who in TRAININGS}

        def show(who: str, done: int, total: int) -> None:
            progress.update(bars[who], completed=done, total=total, state=f"epoch {done} of {total}")

        def tell(session: DemoSession) -> None:
            console.print(_told(session), soft_wrap=True)

        return Driver(out, seed=seed, on_progress=show, on_session=tell).run()


def _told(session: DemoSession) -> str:
    """A session in a line."""
    text = f"session {session.number}  {session.how:<8}  step {session.step:>4}, {format_duration(session.seconds)}"
    if session.how == "killed":
        return f"{text}, SIGKILL without notice"
    if session.how == "window":
        return f"{text}: its window was too short to start up"
    if session.window_s is not None:
        text += f" of a window of {format_duration(session.window_s)}"
    return f"{text}: {session.reason}" if session.how == "paused" else text


def _verdict(demo: Demo) -> list[str]:
    """The end, for people."""
    killed = sum(session.how == "killed" for session in demo.sessions)
    paused = sum(session.how == "paused" for session in demo.sessions)
    return [
        f"{len(demo.sessions)} sessions, {killed} killed, {paused} out of time, {demo.steps} steps, "
        f"{format_duration(float(round(demo.seconds)))}",
        f"compared with the uninterrupted training: {'identical' if demo.identical else 'NOT identical'}",
        *(f"  - {difference}" for difference in demo.differences),
        f"held-out digits recognised: {demo.accuracy:.1%}",
        *(f"model: {_near(path)}" for path in demo.models),
        f"the script: {_near(demo.script)}",
        f"look at the run: perdure status --root {_near(demo.runs)}",
    ]


def _near(path: str) -> str:
    """A path as one would type it here."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
