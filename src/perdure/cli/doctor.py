"""``perdure doctor``: this machine, line by line."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.checkup.checks import lines, summary
from perdure.checkup.doctor import doctor
from perdure.cli.options import Json
from perdure.cli.output import note, say, say_json


def doctor_command(
    require: Annotated[
        str | None,
        typer.Option(
            metavar="gpu|NAME",
            help="What has to be here and to work: gpu, or a Kaggle accelerator such as NvidiaTeslaT4.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Does the GPU compute? This machine, a line a check.

    Session and window, driver and cards, a kernel in each framework, cores, memory, disk, inputs, internet. Each
    failure has its fix. Changes nothing. Exit code 1 if anything failed.
    """
    checkup = doctor(require=require)
    if json:
        say_json(checkup.as_data())
    else:
        for line in lines(checkup):
            say(line)
        note(summary(checkup))
    if not checkup.ok:
        raise typer.Exit(1)
