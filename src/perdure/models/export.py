"""Finished models as files that others load: written, proved in a fresh process, and only then named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from perdure.checkpoint.budget import FULL, Room
from perdure.core.digests import digest, size
from perdure.core.errors import ConfigError, DiskFullError, PerdureError, UnreadableError
from perdure.core.intervals import format_bytes
from perdure.core.say import say, warn
from perdure.models import keras_files, onnx_file, program, pth, safetensors_file  # noqa: F401  they enter their formats
from perdure.models.card import write_card
from perdure.models.formats import Exported, Facts, Format, Parity, Signature, Source, find_format
from perdure.models.keras_proof import keras_digest
from perdure.models.live import signature_of
from perdure.models.prover import prover_of
from perdure.models.records import Records, source_digest
from perdure.models.tensors import HEADROOM_BYTES
from perdure.models.twin import generators_untouched
from perdure.models.workplace import check_room, make_durable, put_in_place, workplace

STEP_DIGITS = 9
"""As in the names of checkpoints, so that names sort by step."""


def file_stem(run: str, name: str = "model", step: int | None = None) -> str:
    """Stem of the file names of an export: ``<run>-step-<step>``, with the name between them if it says more.

    Args:
        run: Name of the run; empty if there is none.
        name: What the user calls the model.
        step: Finished steps; None if they are not known.

    Raises:
        ConfigError: The name cannot be part of a file name.
    """
    is_name = isinstance(name, str) and name.isprintable() and Path(name).name == name
    if not is_name or not name or name.startswith("."):
        raise ConfigError(f"the name of a model is the stem of a file name, got {name!r}", hint='try "model"')
    whole = name if not run else run if name in ("model", run) else f"{run}-{name}"
    return whole if step is None else f"{whole}-step-{step:0{STEP_DIGITS}d}"


def part_of_stem(path: str) -> str:
    """What a model was tracked under, for a file name: keys of dicts may hold what no file name can."""
    return "".join(each if each.isprintable() and each != "/" else f"%{ord(each):02X}" for each in path)


def export_model(
    source: Source, folder: Path, stem: str, formats: Sequence[str], facts: Facts, *, room: Room | None = None
) -> list[Exported]:
    """Write a model as files ``<folder>/<stem><suffix>``, prove each, and describe them in ``model-card.json``.

    What each format cannot hold is known, and the room for all files is checked, before anything is written. Then
    each file is made on its own in a temporary folder, made durable, opened and run in a fresh process, and
    renamed; an older file of that name stays until then. One that fails does not cost the others, as an export
    comes after days; the first error is raised when all are done. A file that an earlier export of the same model
    finished is not made again. The live model and the random generators are not touched.

    Args:
        source: The model.
        folder: Made if it is not there.
        stem: As ``file_stem`` gives it.
        formats: Names of formats.
        facts: What is known of the training.
        room: What may be written; as much as the disk takes if None.

    Returns:
        What was made, in the order of ``formats``.

    Raises:
        ConfigError: An unknown format, or no example where one is needed.
        CannotCarryError: A format cannot hold the model; it names the tensor or operator, and the format that can.
        MissingExtraError: A format needs a package that is not installed.
        DiskFullError: There is no room.
        UnreadableError: The folder cannot be written to.
        CorruptError: A file is not what it should be; it was removed.
    """
    chosen = _chosen(formats, source.framework)
    errors = {format.name: error for format in chosen if (error := _checked(format, source))}
    possible = [format for format in chosen if format.name not in errors]
    if not possible:
        _raise(list(errors.values()))
    with ExitStack() as closing, generators_untouched(), _disk_errors(folder, possible, source):
        closing.callback(source.scratch.clear)
        work = closing.enter_context(workplace(folder.absolute()))  # the process works elsewhere
        source.scratch["work"] = work
        closing.push(source.closing)
        return _Export(source, folder, work, stem, facts, room).run(possible, list(errors.values()))


def _chosen(formats: Sequence[str], framework: str) -> list[Format]:
    if isinstance(formats, str) or not formats:
        raise ConfigError(f"formats is a list of names, got {formats!r}", hint='try formats=["pth", "safetensors"]')
    return [find_format(name, framework) for name in dict.fromkeys(formats)]


def _checked(format: Format, source: Source) -> PerdureError | None:
    try:
        format.check(source)
    except PerdureError as error:
        return error
    return None


def _raise(errors: Sequence[Exception]) -> None:
    """Raise the first error; the others are told."""
    for error in errors[1:]:
        warn(str(error))
    if errors:
        raise errors[0]


@contextmanager
def _disk_errors(folder: Path, formats: Sequence[Format], source: Source) -> Iterator[None]:
    """In Perdure's words where the system says that there is no room, or that the folder is not to be written."""
    try:
        yield
    except PerdureError:
        raise
    except Exception as error:
        if _is_full(error, folder):
            raise DiskFullError(
                f"no room for the model in {folder}: {error}",
                path=folder,
                needed_bytes=sum(format.size(source) for format in formats),
                free_bytes=shutil.disk_usage(folder).free,
                hint="free some space and run the script again; files that are finished are not made again",
            ) from error
        if not isinstance(error, OSError):
            raise
        raise UnreadableError(
            f"the model cannot be written to {folder}: {error.strerror or error}",
            path=folder,
            hint="is it a folder that you may write to?",
        ) from error


def _is_full(error: Exception, folder: Path) -> bool:
    """Whether there was no room: some writers wrap what the system says, and some only say that they failed."""
    problem: BaseException | None = error
    while problem is not None:
        if isinstance(problem, OSError) and problem.errno in FULL:
            return True
        problem = problem.__cause__ or problem.__context__
    return folder.is_dir() and shutil.disk_usage(folder).free < HEADROOM_BYTES


class _Export:
    def __init__(
        self, source: Source, folder: Path, work: Path, stem: str, facts: Facts, room: Room | None
    ) -> None:
        self._source, self._folder, self._work = source, folder, work
        self._stem, self._facts, self._room = stem, facts, room
        self._records = Records(folder)

    def run(self, formats: Sequence[Format], errors: list[Exception]) -> list[Exported]:
        """Make what is not there yet; write the card over all; raise the first error."""
        torch = self._source.framework == "torch"
        if torch and not all(self._path(format).exists() for format in formats):
            prover_of(self._source)  # loads its libraries while we compute
        mark = source_digest(self._source) if torch else keras_digest(self._source)
        there = {format.name: self._there(format, mark) for format in formats}
        check_room(self._folder, sum(f.size(self._source) for f in formats if not there[f.name]), self._room)
        done: list[Exported] = []
        for format in formats:
            try:
                done.append(there[format.name] or self._make(format, mark))
            except Exception as error:  # noqa: BLE001  raised below, when the others are done
                errors.append(error)
        if done:
            write_card(self._folder, done, self._facts, self._signature())
        for exported in done:
            say("; ".join((f"{exported.path}: {format_bytes(exported.bytes)}, {told(exported)}", *exported.notes)))
        _raise(errors)
        return done

    def _path(self, format: Format) -> Path:
        return self._folder / f"{self._stem}{format.suffix}"

    def _there(self, format: Format, mark: str) -> Exported | None:
        return self._records.find(self._path(format), f"{format.name} {mark}") if mark else None

    def _make(self, format: Format, mark: str) -> Exported:
        place = self._work / format.name
        place.mkdir()
        made = place / self._path(format).name
        with _disk_errors(self._folder, [format], self._source):
            notes = format.write(self._source, made)
            make_durable(place)
            parity = format.prove(self._source, made)
            exported = self._finished(format, made, parity, notes)
        if mark:
            self._records.note(exported, f"{format.name} {mark}")
        return exported

    def _finished(self, format: Format, made: Path, parity: Parity, notes: tuple[str, ...]) -> Exported:
        companions = sorted(path for path in made.parent.iterdir() if path != made)
        digests = {path.name: digest(path) for path in (made, *companions)}
        exported = Exported(
            format=format.name,
            path=self._folder / made.name,
            bytes=sum(map(size, (made, *companions))),
            digest=digests[made.name],
            parity=parity,
            companions=tuple(self._folder / path.name for path in companions),
            notes=notes,
            digests=digests,
        )
        put_in_place(made, companions, self._folder)
        return exported

    def _signature(self) -> Signature | None:
        if self._source.framework != "torch":
            signature = self._source.scratch.get("signature")
            return signature if isinstance(signature, Signature) else None
        if self._source.module is None or self._source.example is None:
            return None
        try:
            return signature_of(self._source)
        except PerdureError:  # said in the parity of the files
            return None


def told(exported: Exported) -> str:
    """What the proof found, in one line."""
    parity = exported.parity
    if parity is None:
        return "not proved"
    parts = ["was there already, proved"] if exported.reused else [f"proved in a {parity.where}"]
    if parity.tensors:
        parts.append(f"{parity.tensors} tensors bit for bit")
    if parity.outputs:
        worst = max(parity.outputs, key=lambda each: each.largest / (each.scale or 1))
        near = f"within {worst.largest:.2g} of" if worst.largest else "equal to"
        parts.append(f"outputs {near} the live model's (largest value {worst.scale:.2g})")
    if parity.note:
        parts.append(parity.note)
    return ", ".join(parts)
