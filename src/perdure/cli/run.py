"""``perdure run``: one session of a script, a notebook or any other trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.core.errors import ConfigError
from perdure.core.limits import Limits
from perdure.relay.carry import Carry
from perdure.relay.session import Session, SessionOrder

Target = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT|NOTEBOOK|COMMAND [-- ARGS]...",
        help="A Python script, a notebook or any other program; its arguments after --.",
        show_default=False,
    ),
]


def run_command(
    target: Target,
    window: Annotated[
        str | None,
        typer.Option(help="How long the session may last, such as '11 h'.", show_default="the platform's"),
    ] = None,
    disk: Annotated[
        str | None, typer.Option(help="How much runs may keep, such as '20 GB'.", show_default="the platform's")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of runs.", show_default="the platform's")] = None,
    input_: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", help="Folder with the output of an earlier session; repeatable.", show_default=False
        ),
    ] = None,
    carry: Annotated[
        str | None,
        typer.Option(
            help="For a trainer that does not use Perdure: glob pattern of its checkpoint files, such as "
            "'runs/**/last.pt'.",
            show_default=False,
        ),
    ] = None,
    resume_with: Annotated[
        str | None,
        typer.Option(help="Hands such a file back, as '--resume {path}'.", show_default=False),
    ] = None,
) -> None:
    """Run one session. Exit code: 0 finished, 75 paused (0 in a Kaggle batch run), else the script's own."""
    order = SessionOrder(
        target=target[0],
        arguments=tuple(target[1:]),
        limits=Limits(window=window, disk=disk),
        root=root,
        inputs=tuple(input_ or ()),
        carry=_carry(carry, resume_with),
    )
    raise typer.Exit(Session(order).run())


def _carry(pattern: str | None, resume_with: str | None) -> Carry | None:
    if pattern is None and resume_with is None:
        return None
    if pattern is None or resume_with is None:
        raise ConfigError(
            "--carry and --resume-with belong together",
            hint="perdure run --carry 'runs/**/last.pt' --resume-with '--resume {path}' -- python train.py",
        )
    return Carry(pattern, resume_with)
