"""The command ``perdure``: what it is made of, and how it ends."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, cast

import typer

from perdure.cli.bench import bench_command
from perdure.cli.check_model import check_model_command
from perdure.cli.checkpoints import checkpoints_command
from perdure.cli.demo import demo_command
from perdure.cli.doctor import doctor_command
from perdure.cli.export import export_command
from perdure.cli.output import complain
from perdure.cli.quota import quota_command
from perdure.cli.rehearse import rehearse_command
from perdure.cli.relay import relay_app
from perdure.cli.run import run_command
from perdure.cli.status import status_command
from perdure.cli.verify import verify_command
from perdure.core.errors import ConfigError, PerdureError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT

# Newer versions of Typer ship a click of their own, older ones use the installed one: this finds the class in both.
_UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])

app = typer.Typer(
    name="perdure",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def perdure(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Training that outlives its sessions."""
    if show_version:
        typer.echo(version("perdure"))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("demo")(demo_command)
app.command("doctor")(doctor_command)
app.command("bench", short_help="What checkpoints cost on this machine.")(bench_command)
app.command("run")(run_command)
app.command("rehearse", short_help="The platform in small: kills, windows, a verdict.")(rehearse_command)
app.add_typer(relay_app)
app.command("quota", short_help="Accelerator hours: used, left, when they refresh.")(quota_command)
app.command("status")(status_command)
app.command("checkpoints")(checkpoints_command)
app.command("verify")(verify_command)
app.command("export", short_help="Model files out of a checkpoint, each proved.")(export_command)
app.command("check-model", short_help="What a model file is: whole, safe, sane, does it run.")(check_model_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Words after ``perdure``; those of this process if None.

    Returns:
        The exit code: 0; 1 after an error; 2 after a wrong flag, argument or setting; 130 after Ctrl-C. Commands
        that run a script or prove something have codes of their own, said in their help.
    """
    try:
        code = app(args=arguments, prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except PerdureError as error:
        complain(error.args[0], error.hint)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR
    except sqlite3.Error as error:
        complain(f"the database of relays: {error}", "is the disk full? PERDURE_HOME names another folder")
        return EXIT_ERROR
    except _UsageError as error:
        complain(*_usage(error))
        return EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing to say to it
        return 128 + signal.SIGPIPE


def _usage(error: Exception) -> tuple[str, str]:
    """What was wrong with the command line, in our words for errors, and where its help is."""
    message = " ".join(str(getattr(error, "format_message", error.__str__)()).split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "perdure"
    hint = f"see {path} --help"
    if message.startswith("No such option") and context is not None and _takes_arguments(context.command):
        hint += "; flags of your script come behind --"
    return message[:1].lower() + message[1:].rstrip("."), hint


def _takes_arguments(command: object) -> bool:
    """Whether a command hands words on to a script."""
    return any("-- ARGS" in str(getattr(each, "metavar", "")) for each in getattr(command, "params", ()))
