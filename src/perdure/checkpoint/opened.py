"""A checkpoint, open for reading: nothing is believed before its digest was computed from the bytes read."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from perdure.checkpoint.kept import Kept
from perdure.checkpoint.manifest import MANIFEST, Entry, Manifest, digest_of
from perdure.checkpoint.proof import differing, unproven
from perdure.checkpoint.reader import check_sizes, corrupt, read_manifest, run_folder_of, unreadable
from perdure.checkpoint.tensorfile import Region, read_regions
from perdure.core.errors import CorruptError

_CHUNK_BYTES = 8 * 1024 * 1024
_MAX_HEAD_BYTES = 100_000_000  # safetensors' own limit

ToKeep = Callable[[Manifest], Collection[str]]
"""The names of the entries whose bytes the caller will go on using as they are, where he gets them."""


def keep_none(manifest: Manifest) -> Collection[str]:
    """Nothing is kept: what is read is proven and dropped, and mapped when it is used."""
    return ()


class Checkpoint:
    """One checkpoint, open for reading.

    Its files stay open, so that it can be read to its end even if it is pruned meanwhile.

    Attributes:
        folder: Where it is.
        manifest: What it is.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._entries = {entry.name: entry for entry in manifest.entries}
        self._proven: dict[str, tuple[int, int]] = {}
        self._maps: dict[str, memoryview] = {}
        self._kept = Kept()
        self._files: dict[str, int] = {}
        self.close: Callable[[], object] = weakref.finalize(self, _close_all, self._files)
        for file in manifest.files:
            path = run_folder_of(folder) / file
            try:
                self._files[file] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise corrupt(folder, [f"{file} is missing"]) from None
            except OSError as error:
                raise unreadable(path, error) from error

    @property
    def values(self) -> Any:
        """The plain values, as JSON."""
        return self.manifest.values

    def buffer(self, name: str) -> memoryview:
        """The bytes of an entry.

        Of an entry that was kept when the checkpoint was proven, they are the memory that was proven. Of the others
        of a proven checkpoint they are its file itself, mapped: nothing is copied before it is needed. What is
        written to either stays in this process. If somebody wrote to the file since, and of other checkpoints,
        they are read and proven now.

        Raises:
            KeyError: There is no such entry.
            CorruptError: The bytes are not what was written.
            UnreadableError: The system does not let them be read.
        """
        entry = self._entries[name]
        if name in self._kept.memory:
            return self._kept.memory[name]
        if self._proven.get(entry.file) == self._stamp(entry.file):
            return self._mapped(entry.file)[entry.offset : entry.offset + entry.nbytes]
        view = memoryview(bytearray(entry.nbytes))
        done = 0
        while done < entry.nbytes:
            count = self._read_into(entry.file, view[done : done + _CHUNK_BYTES], entry.offset + done)
            if not count:
                break
            done += count
        if done != entry.nbytes or digest_of(view) != entry.digest:
            raise corrupt(self.folder, [_entry_problem(entry)])
        return view.toreadonly()

    def _mapped(self, file: str) -> memoryview:
        if file not in self._maps:
            try:
                mapping = mmap.mmap(self._files[file], self.manifest.files[file], access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise unreadable(run_folder_of(self.folder) / file, OSError(str(error))) from error
            self._maps[file] = memoryview(mapping)
        return self._maps[file]

    def file_parts(self, file: str) -> Iterator[bytes]:
        """One of its tensor files, whole, in pieces.

        Raises:
            UnreadableError: The system does not let it be read.
        """
        return (bytes(piece) for piece in self._read(file, 0, self.manifest.files[file]))

    def _copy_of(self, file: str, offset: int, nbytes: int) -> bytes:
        return b"".join(bytes(piece) for piece in self._read(file, offset, nbytes))

    def descriptor(self, file: str) -> int:
        """The open descriptor of one of its tensor files; good until ``close``, also when the file is pruned."""
        return self._files[file]

    def problems(self) -> list[str]:
        """What is wrong with its entries and with the headers of its files; one line each.

        Raises:
            UnreadableError: The system does not let them be read.
        """
        return self._problems(None)

    def _problems(self, kept: Kept | None) -> list[str]:
        found = []
        for file in self.manifest.files:
            try:
                self.regions(file)
            except ValueError as error:
                found.append(f"{file}: {error}")
        return found + [_entry_problem(entry) for entry in unproven(self.manifest.entries, self._read_into, kept)]

    def prove(self, to_keep: Collection[str] = ()) -> list[str]:
        """``problems``; if there are none, ``buffer`` need not prove again what nobody writes to.

        Args:
            to_keep: Names of entries that are read into memory to stay there, if they are large.
        """
        stamps = {file: self._stamp(file) for file in self.manifest.files}
        self._kept.make(entry for entry in self.manifest.entries if entry.name in to_keep)
        problems = self._problems(self._kept)
        self._proven = {} if problems else stamps
        if problems:
            self._kept.forget()
        return problems

    @property
    def kept(self) -> Mapping[str, memoryview]:
        """The memory of the entries that were kept, by name."""
        return self._kept.memory

    def kept_is_as_proven(self) -> bool:
        """Whether nobody wrote to the memory of the entries that were kept; computed from all of it."""
        return not differing(self._kept.entries, self._kept.memory)

    def is_untouched(self) -> bool:
        """Whether nobody wrote to the files that are mapped: what was looked at is what was proven."""
        return all(self._proven.get(file) == self._stamp(file) for file in self._maps)

    def forget(self) -> None:
        """Let go of what was kept and mapped; ``buffer`` gives it anew from the files."""
        self._kept.forget()
        self._maps.clear()

    def _stamp(self, file: str) -> tuple[int, int]:
        """Changes when somebody writes to a file: its size, and when it was last written to."""
        state = os.fstat(self._files[file])
        return state.st_size, state.st_mtime_ns

    def regions(self, file: str) -> list[Region]:
        """The regions of one of its files, from a header that fits the name of the file.

        Raises:
            ValueError: The header is not what was written.
            UnreadableError: The system does not let it be read.
        """
        length = int.from_bytes(self._copy_of(file, 0, 8), "little")
        head = self._copy_of(file, 0, min(8 + length, _MAX_HEAD_BYTES))
        if digest_of(head) != Path(file).stem:
            raise ValueError("its header is not what was written")
        return read_regions(head)

    def proves(self, file: str, offset: int, nbytes: int, digest: str) -> bool:
        """Whether these bytes of a file have this digest."""
        state = xxhash.xxh3_128()
        done = 0
        for piece in self._read(file, offset, nbytes):
            state.update(piece)
            done += piece.nbytes
        return done == nbytes and state.hexdigest() == digest

    def _read(self, file: str, offset: int, nbytes: int) -> Iterator[memoryview]:
        """The bytes in pieces, each valid until the next one; fewer where the file ends before."""
        chunk = memoryview(bytearray(min(nbytes, _CHUNK_BYTES)))
        end = offset + nbytes
        while offset < end:
            count = self._read_into(file, chunk[: end - offset], offset)
            if not count:
                return
            yield chunk[:count]
            offset += count

    def _read_into(self, file: str, target: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._files[file], [target], offset)
        except OSError as error:
            raise unreadable(run_folder_of(self.folder) / file, error) from error


def open_checkpoint(path: Path, to_keep: ToKeep = keep_none) -> Checkpoint:
    """Open one checkpoint and prove every digest of it.

    Args:
        path: Its folder, or the ``manifest.json`` in it.
        to_keep: Says of which entries the bytes shall stay in memory.

    Raises:
        NoCheckpointError: There is none.
        UnreadableError: It could not be looked at.
        CorruptError: It is not what was written; each problem is named.
        FormatVersionError: A newer Perdure wrote it.
    """
    folder = path.parent if path.name == MANIFEST else path
    manifest = read_manifest(folder)
    try:
        check_sizes(folder, manifest)
        checkpoint = Checkpoint(folder, manifest)
        problems = checkpoint.prove(to_keep(manifest))
        if problems:
            raise corrupt(folder, problems)
    except CorruptError:
        read_manifest(folder)  # pruned by its writer while we were reading: gone, not damaged
        raise
    return checkpoint


def _entry_problem(entry: Entry) -> str:
    where = f"bytes {entry.offset} to {entry.offset + entry.nbytes}"
    return f"{entry.file}: entry {entry.name} ({where}) does not have the digest that was written"


def _close_all(files: dict[str, int]) -> None:
    for fd in files.values():
        os.close(fd)
    files.clear()
