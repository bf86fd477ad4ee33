"""Finished models as files that others load: whole or absent, and read back before they get their name."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from perdure.core.errors import CannotCarryError, ConfigError, CorruptError, DiskFullError
from perdure.core.files import fsync_dir
from perdure.core.intervals import format_bytes

HEADROOM_BYTES = 1_000_000
"""What a file holds besides the bytes of its tensors: names, shapes, padding. Generous."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Format:
    """A kind of model file.

    Attributes:
        write: Write it to a path.
        read: Read it as a stranger would, without running code from it.
        cannot_hold: Types of numbers that it has no word for.
    """

    write: Callable[[Tensors, Path], None]
    read: Callable[[Path], Tensors]
    cannot_hold: frozenset[torch.dtype] = frozenset()


def _write_pth(tensors: Tensors, path: Path) -> None:
    with open(path, "wb") as file:  # given a path, torch.save would write the temporary name into the file
        torch.save(dict(tensors), file)


def _read_pth(path: Path) -> Tensors:
    loaded: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


def _write_safetensors(tensors: Tensors, path: Path) -> None:
    """Tied tensors become full copies: the format knows no ties, and neither do most of its readers."""
    seen: set[int] = set()
    copies = {}
    for name, tensor in tensors.items():
        copies[name] = tensor.clone() if id(tensor) in seen else tensor
        seen.add(id(tensor))
    save_file(copies, path, metadata={"format": "pt"})  # transformers refuses files without this word


FORMATS = {
    "pth": Format(_write_pth, _read_pth),
    "safetensors": Format(_write_safetensors, load_file, frozenset({torch.complex32, torch.complex128})),
}


def export_tensors(tensors: Tensors, folder: Path, name: str, formats: Sequence[str]) -> dict[str, Path]:
    """Write the tensors of a model as files ``<folder>/<name>.<format>``.

    Each file is written under a temporary name, made durable, read back with the safe loader and compared bit by
    bit; only then is it renamed. An older file of that name stays until that moment.

    Args:
        tensors: Canonical names to tensors, on any device.
        folder: Made if it is not there.
        name: Stem of the file names.
        formats: Any of ``"pth"`` (a plain state_dict; loads with ``weights_only=True``) and ``"safetensors"``.

    Returns:
        Format to path.

    Raises:
        ConfigError: A format or a name that cannot be.
        CannotCarryError: A tensor that these files cannot hold.
        DiskFullError: There is no room; nothing was written.
        CorruptError: A file did not read back as written; it was removed.
    """
    _check(tensors, name, formats)
    plain = dict(_plain(tensors))
    folder.mkdir(parents=True, exist_ok=True)
    _check_room(plain, folder, len(formats))
    return {format: _write_checked(plain, folder / f"{name}.{format}", FORMATS[format]) for format in formats}


def _check(tensors: Tensors, name: str, formats: Sequence[str]) -> None:
    if not name or Path(name).name != name:
        raise ConfigError(f"the name of a model is the stem of a file name, got {name!r}", hint='try "model"')
    for format in formats:
        if format not in FORMATS:
            raise ConfigError(f"no such model format: {format!r}", hint=f"use {' or '.join(map(repr, FORMATS))}")
        for path, tensor in tensors.items():
            if tensor.dtype in FORMATS[format].cannot_hold:
                raise _cannot_hold(f"a {format} file", path, str(tensor.dtype), 'use the format "pth"')
            if tensor.layout != torch.strided or tensor.is_quantized:
                kind = "quantised" if tensor.is_quantized else str(tensor.layout)
                raise _cannot_hold("a model file", path, kind, "store it as a dense tensor")


def _cannot_hold(file: str, path: str, kind: str, hint: str) -> CannotCarryError:
    kind = kind.removeprefix("torch.")
    return CannotCarryError(
        f"{file} cannot hold {path}: it is a {kind} tensor", path=path, type_name=kind, hint=hint
    )


def _plain(tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Contiguous CPU tensors without gradients or hidden storage; tied ones are one object."""
    known: dict[tuple[object, ...], torch.Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.data_ptr() if tensor.numel() else name
        key = (tensor.device, place, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        if key not in known:
            known[key] = _solo(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous())
        yield name, known[key]


def _solo(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied if it is a view: torch.save would write the whole storage behind it."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _check_room(tensors: Tensors, folder: Path, copies: int) -> None:
    needed = copies * (sum(tensor.nbytes for tensor in tensors.values()) + HEADROOM_BYTES)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskFullError(
            f"no room for the model in {folder}: it needs {format_bytes(needed)}, {format_bytes(free)} are free",
            path=folder,
            needed_bytes=needed,
            free_bytes=free,
            hint="free some space and run the script again",
        )


def _write_checked(tensors: Tensors, path: Path, format: Format) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.touch()
    mode = stat.S_IMODE(temporary.stat().st_mode)
    try:
        format.write(tensors, temporary)
        temporary.chmod(mode)  # as any other file: safetensors lets nobody but the owner read its own
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        if problems := differences(tensors, format.read(temporary)):
            raise CorruptError(
                f"the model file does not read back as written: {path}",
                path=path,
                problems=problems,
                hint="the disk or the memory of this machine is at fault; the file was removed",
            )
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)
    return path


def differences(written: Tensors, read: Tensors) -> list[str]:
    """What is not bit for bit the same, one line a tensor."""
    lines = [f"{name}: not there" for name in written.keys() - read.keys()]
    lines += [f"{name}: not written by us" for name in read.keys() - written.keys()]
    for name in written.keys() & read.keys():
        ours, theirs = written[name], read[name]
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            lines.append(f"{name}: {ours.dtype} {tuple(ours.shape)} became {theirs.dtype} {tuple(theirs.shape)}")
        elif not torch.equal(_bytes(ours), _bytes(theirs)):
            lines.append(f"{name}: other bytes")
    return sorted(lines)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
