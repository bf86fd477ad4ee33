"""``perdure check-model``: what a model file is, whether it is whole, safe to load and sane."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import Json
from perdure.cli.output import note, say, say_json
from perdure.core.errors import MissingExtraError

if TYPE_CHECKING:
    from perdure.models.report import ModelReport

File = Annotated[Path, typer.Argument(metavar="FILE", help="A model file of any kind, ours or not; or its folder.")]
ExampleFile = Annotated[
    Path | None,
    typer.Option("--example", metavar="FILE", help="Run it on inputs: .npy, .npz or .pt.", show_default=False),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="SHAPE",
        help="Run it on made-up inputs: 1,3,224,224 or 1,128:int64; one for each input.",
        show_default=False,
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Load also what can run code; only from people you trust.")]
All = Annotated[bool, typer.Option("--all", help="List every tensor, not only the first.")]


def check_model_command(
    file: File,
    example: ExampleFile = None,
    input_shape: Shapes = None,
    trust: Trust = False,
    all_tensors: All = False,
    json: Json = False,
) -> None:
    """What a model file is: tensors, digest, safe to load, forward pass. Exit code 1 if anything is wrong."""
    report = _check(file, example, input_shape or [], trust)
    if json:
        say_json(report.to_dict())
    else:
        from perdure.models.report_text import ROWS, lines_of

        for line in lines_of(report, None if all_tensors else ROWS):
            say(line, styles=False)
        note("the model file is sound" if report.ok else "the model file is not sound")
    if not report.ok:
        raise typer.Exit(1)


def _check(file: Path, example: Path | None, shapes: list[str], trust: bool) -> ModelReport:
    try:
        from perdure.models.check import check_model
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise MissingExtraError(
            f"perdure check-model needs {error.name}, which is not installed",
            hint="install PyTorch the way pytorch.org says for your machine; Perdure uses the one that is there",
        ) from None
    with redirect_stdout(sys.stderr):  # what a trusted file prints is no data
        return check_model(file, example=example, input_shapes=shapes, trust=trust)
