"""A tensor file that is written while its buffers still arrive: the first need not wait for the last."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from perdure.checkpoint.budget import Room, rounded
from perdure.checkpoint.sharing import Ahead
from perdure.checkpoint.snapshot import Buffer, Hashed
from perdure.checkpoint.tensorfile import TensorFile, content_of, head_room
from perdure.checkpoint.writer import TEMPORARY, Output
from perdure.core.paths import RunPaths

_MAX_AIR = 1 / 64
"""Share of a file that may be room in its head that turned out not to be needed."""


class Stream:
    """The file, under a temporary name.

    Its head holds the digests of its buffers, and its name the digest of the head. So room is left for a head that
    names all of them, and it is written last.

    Args:
        paths: The run folder.
        room: What may be written there.
        buffers: What may be added, in the order of the file.

    Raises:
        OSError: As the system says; there may be no room for all of them.
    """

    def __init__(self, paths: RunPaths, room: Room, buffers: Sequence[Buffer]) -> None:
        self._most = len(buffers)
        self._room = head_room(buffers)
        self._data_bytes = sum(buffer.data.nbytes for buffer in buffers)
        # a name of its own: whoever gave its folder away may still be about to remove what was under way
        name = f".arriving-{uuid.uuid4().hex}{TEMPORARY}"
        room.check(rounded(self._room + self._data_bytes))
        paths.tensors.mkdir(exist_ok=True)
        self._output = Output(paths.tensors / name, self._room + self._data_bytes)
        self._added: list[Hashed] = []
        self._queue: SimpleQueue[Hashed | None] = SimpleQueue()
        self._written = 0
        self._given_up = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="perdure-stream", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads: then the save is written without one
            self._output.give_up()
            raise OSError(errno.EAGAIN, str(error)) from error

    def add(self, item: Hashed) -> None:
        """Write a buffer, as soon as those before it are written; its bytes must stay as they are until then."""
        self._added.append(item)
        self._queue.put(item)

    @property
    def ahead(self) -> Ahead | None:
        """What it holds; None if it is not worth keeping."""
        data_bytes = sum(item.buffer.data.nbytes for item in self._added)
        air = self._room * (1 - len(self._added) / self._most)
        if not self._added or air > _MAX_AIR * data_bytes:
            return None
        return Ahead(frozenset(item.buffer.name for item in self._added), self._room)

    def publish(self, paths: RunPaths, file: TensorFile) -> None:
        """Write the head, and give the file its name.

        Raises:
            OSError: As the system says.
        """
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        if len(file.head) + self._written != file.nbytes:
            raise OSError(errno.EIO, f"{self._written} bytes came instead of {file.nbytes - len(file.head)}")
        self._output.write([file.head], len(file.head))
        self._output.publish(paths.folder / file.file, file.nbytes)

    def give_up(self) -> None:
        """Remove it; harmless once it is published."""
        self._given_up = True
        self._queue.put(None)
        self._thread.join()
        self._output.give_up()

    def _write(self) -> None:
        try:
            self._written = self._output.write(self._content(), self._data_bytes, at=self._room)
        except BaseException as error:  # noqa: BLE001  raised where it is published
            self._error = error

    def _content(self) -> Iterator[memoryview]:
        while (item := self._queue.get()) is not None and not self._given_up:
            yield from content_of(item.buffer.data, item.buffer.name, item.digest)
