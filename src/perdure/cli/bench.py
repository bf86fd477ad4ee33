"""``perdure bench``: what checkpoints cost on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import Json, folder_of_runs
from perdure.cli.output import note, say, say_json, table
from perdure.core.errors import MissingExtraError, PerdureError
from perdure.core.intervals import format_bytes, format_duration, parse_bytes
from perdure.core.say import facts_hidden

if TYPE_CHECKING:
    from perdure.training.bench import Bench

SMALLEST_BYTES = 1_000_000


def bench_command(
    size: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="Model and optimizer state to save; yours: 12 bytes a weight with AdamW."
        ),
    ] = "500 MB",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where to write; on the disk that checkpoints will go to. Default: where runs are.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="More rounds, steadier figures.")] = 3,
    json: Json = False,
) -> None:
    """What checkpoints cost here: disk, memory, a training with and without them, a resume, the interval.

    Trains a transformer of that size, on the card if there is one, and removes what it wrote.
    """
    state_bytes = parse_bytes(size, what="--size")
    if state_bytes < SMALLEST_BYTES:
        raise typer.BadParameter(f"{size} is too small to be measured; the least is 1 MB", param_hint="--size")
    place = folder or _nearest(folder_of_runs(None))
    note(f"trains with a state of {format_bytes(state_bytes)} and writes to {place}: a minute or so ...")
    found = _measured(place, state_bytes, rounds)
    if json:
        say_json(found.as_data())
        return
    for line in table(("what", "here"), list(_rows(found))):
        say(line, styles=False)
    note(_advice(found))


def _measured(place: Path, state_bytes: int, rounds: int) -> Bench:
    try:
        from perdure.training.bench import bench
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise MissingExtraError(
            f"perdure bench needs {error.name}, which is not installed",
            hint="install PyTorch the way pytorch.org says for your machine",
        ) from None
    try:
        with facts_hidden():  # what a run would say of its saves is in the table
            return bench(place, state_bytes, rounds=rounds)
    except OSError as error:
        if isinstance(error, PerdureError):
            raise
        raise PerdureError(
            f"{place} cannot be measured: {error.strerror or error}", hint="give another folder with --folder"
        ) from error


def _nearest(folder: Path) -> Path:
    """The folder, or what is there above it: it is on the same disk, and nothing is left behind."""
    return next((each for each in (folder, *folder.absolute().parents) if each.is_dir()), Path())


def _rows(found: Bench) -> Iterator[tuple[str, str]]:
    how = "past the page cache" if found.direct else "through the page cache"
    yield "state", f"{format_bytes(found.state_bytes)} on {found.device}, {found.cores} cores"
    yield "disk, writing", f"{format_bytes(found.write_bytes_per_s)}/s, {how}, fsync included"
    yield "disk, reading", f"{format_bytes(found.read_bytes_per_s)}/s"
    yield "memory, copy and digest", f"{format_bytes(found.copy_bytes_per_s)}/s"
    yield "a step", _time(found.step_s)
    yield "a checkpoint holds the boundary up", _time(found.boundary_s)
    spread = f"{_time(found.added_low_s)} to {_time(found.added_high_s)}"
    yield f"and adds to the {found.steps} steps around it", f"{_time(found.added_s)} ({spread})"
    yield "until it is on disk", f"{_time(found.save_s)}, {format_bytes(found.written_bytes)}"
    yield "a resume, to its first step", f"{_time(found.resume_s)}, every digest proved"
    yield 'save_every="auto"', found.interval_text
    yield "which costs", f"{100 * found.slow_down:.2f} % of the time"


def _advice(found: Bench) -> str:
    lost = format_duration(float(round(found.interval_s / 2)))
    return f"a kill without notice then loses {lost} of training on average, and the resume"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"
