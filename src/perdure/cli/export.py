"""``perdure export``: model files out of a checkpoint, each proved in a fresh process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.checkpoint.reader import run_folder_of
from perdure.cli.options import Json, Root, folder_of_runs
from perdure.cli.output import note, say, say_json
from perdure.core.errors import MissingExtraError
from perdure.core.intervals import format_bytes
from perdure.core.paths import check_name
from perdure.core.runs import pick_run
from perdure.core.say import facts_hidden

if TYPE_CHECKING:
    from perdure.models.from_checkpoint import Read
    from perdure.models.offline import Made
    from perdure.models.publish import Published

DEFAULT_FORMATS = ("pth", "safetensors")

Source = Annotated[
    str,
    typer.Argument(metavar="RUN|CHECKPOINT", help="Name of a run, or any folder that holds checkpoints of one."),
]
Builder = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODULE:FUNCTION",
        help="What builds the model, such as train:build_model; for formats that hold its graph.",
        show_default=False,
    ),
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format", metavar="NAME", help="pth, safetensors, pt2, onnx ...; repeatable. Default: pth, safetensors."
    ),
]
ExampleFile = Annotated[
    Path | None, typer.Option("--example", metavar="FILE", help="Inputs: .npy, .npz or .pt.", show_default=False)
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape", metavar="SHAPE", help="In place of an example: 1,3,224,224 or 1,128:int64; one an input."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="NAME", help="Of several tracked modules this one; repeatable."),
]
AverageName = Annotated[
    str, typer.Option("--average", metavar="NAME", help="An average (EMA, SWA) in place of the live weights.")
]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="What to call the model in file names.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where files go. Default: the folder export of the run.", show_default=False
    ),
]
Push = Annotated[
    str,
    typer.Option(
        metavar="PLACE", help="Then publish them: hf://user/repo, kaggle://owner/model/framework/variation."
    ),
]


def export_command(
    source: Source,
    model: Builder = "",
    formats: Formats = None,
    example: ExampleFile = None,
    input_shape: InputShapes = None,
    only: Only = None,
    average: AverageName = "",
    name: Name = "model",
    out: Out = None,
    push: Push = "",
    root: Root = None,
    json: Json = False,
) -> None:
    """Write model files from a checkpoint. Each is opened and run in a fresh process before it gets its name."""
    _need_torch()
    from perdure.models.examples import example_from
    from perdure.models.from_checkpoint import read_weights
    from perdure.models.offline import Request, build_model, export_read
    from perdure.models.publish import check_target

    if push:
        check_target(push)
    runs = folder_of_runs(root)
    inputs = example_from(example, input_shape or ())
    wanted = Request(Path(), tuple(formats or DEFAULT_FORMATS), name, model, inputs)
    built = build_model(wanted)
    read = read_weights(_source(runs, source), only or (), average)
    wanted = wanted.into(out or _folder(runs, read))
    _introduce(read)
    with _library_quiet():
        made = export_read(read, wanted, built)
    published = _publish(made, wanted.folder, push) if push else None
    _report(read, made, published, wanted.folder, json=json)


def _need_torch() -> None:
    try:
        import perdure.models.from_checkpoint  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise MissingExtraError(
            f"perdure export needs {error.name}, which is not installed",
            hint="install PyTorch the way pytorch.org says for your machine",
        ) from None


def _source(runs: Path, source: str) -> Path:
    """A folder that is there, or a run by its name; a run wins over a folder of the same name."""
    path = Path(source)
    if path.name == source and ((runs / source).is_dir() or not path.exists()):
        return pick_run(runs, source).folder
    return path


def _folder(runs: Path, read: Read) -> Path:
    """Where ``Run.export`` would put the files; below our own folder of runs if the checkpoint is elsewhere."""
    from perdure.models.offline import run_of

    run_folder = run_folder_of(read.folder)
    if run_folder.parent.resolve() == runs.resolve():
        return run_folder / "export"
    run = run_of(read.manifest)
    return runs / check_name(run) / "export" if run else Path("export")


@contextmanager
def _library_quiet() -> Iterator[None]:
    """What the library would say line by line is data here; its warnings stay. What a model prints is no data."""
    with facts_hidden(), redirect_stdout(sys.stderr):
        yield


def _introduce(read: Read) -> None:
    for line in read.notes:
        note(f"note: {line}")
    for weights in read.weights:
        note(f"{weights.module}: {weights.which} weights of {read.manifest.position}, from {read.folder}")
        for line in weights.notes:
            note(f"note: {line}")


def _publish(made: list[Made], folder: Path, target: str) -> Published:
    """The files, what belongs to them, and the card that says what they are."""
    from perdure.models.card import CARD
    from perdure.models.publish import publish

    files = [path for each in made for file in each.files for path in (file.path, *file.companions)]
    return publish([*files, folder / CARD], target)


def _report(read: Read, made: list[Made], published: Published | None, folder: Path, *, json: bool) -> None:
    from perdure.models.card import CARD
    from perdure.models.export import told
    from perdure.models.offline import document_of

    if json:
        published_there = published and dataclasses.asdict(published)
        say_json({**document_of(read, made), "card": str(folder / CARD), "published": published_there})
        return
    for each in made:
        for file in each.files:
            say(f"{file.path}: {format_bytes(file.bytes)}, {told(file)}", styles=False)
            for line in file.notes:
                note(f"note: {file.path.name}: {line}")
    note(f"what they are and how to load them: {folder / CARD}")
    if published is not None:
        say(str(published), styles=False)
