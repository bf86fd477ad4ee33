"""Runs a notebook as one session: ``python -m perdure.platforms.notebook NOTEBOOK``.

The kernel is owned. nbclient by itself kills its kernel as soon as it gets a signal; here a signal goes to the
kernel's process and nothing else happens, until the run in it has saved and stopped by itself.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import nbformat
from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from perdure.core.errors import EXIT_PAUSED, ConfigError
from perdure.core.files import write_atomic
from perdure.core.say import say
from perdure.core.settings import Settings
from perdure.platforms.command import NOTEBOOK_OUTPUT
from perdure.platforms.report import read_report

EXIT_FAILED = 1
EXIT_USAGE = 2

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _Client(NotebookClient):
    """Shows what the cells print while they run."""

    def process_message(self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int) -> Any:
        if msg["msg_type"] == "stream":
            stream = sys.stderr if msg["content"]["name"] == "stderr" else sys.stdout
            print(msg["content"]["text"], end="", file=stream, flush=True)
        return super().process_message(msg, cell, cell_index)


class NotebookSession:
    """One execution of a notebook, cell by cell.

    Args:
        path: The notebook.
        output: Where it is written with its outputs, after each cell and however it ends.
        report: Where the session says how its runs stand; None if nobody asks.

    Raises:
        ConfigError: The file is no notebook, or one of another language.
    """

    def __init__(self, path: Path, output: Path, report: Path | None) -> None:
        self._path = path
        self._output = output
        self._report = report
        self._book = _read(path)
        self._signal = 0

    def run(self) -> int:
        """Run the cells.

        Returns:
            The exit code: that of a ``SystemExit`` in a cell, 75 for a paused run, 1 after an error, 128 and the
            signal's number if the kernel died of it.
        """
        with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
            client = _Client(self._book, km=_kernel_manager(Path(folder)), timeout=None, record_timing=False)
            environment = {**os.environ, "PYTHONPATH": _import_path(self._path.parent)}
            with client.setup_kernel(env=environment, cleanup_kc=True), self._signals_to(client):
                return self._run_cells(client)

    def _run_cells(self, client: NotebookClient) -> int:
        for number, cell in enumerate(self._book.cells):
            code = self._run_cell(client, number)
            self._write()
            if code is not None:
                self._say_skipped(number, code)
                return code
            if cell.cell_type == "code" and self._is_paused():
                self._say_skipped(number, EXIT_PAUSED)
                return EXIT_PAUSED
        return os.EX_OK

    def _write(self) -> None:
        text: str = nbformat.writes(self._book)  # type: ignore[no-untyped-call]
        write_atomic(self._output, text.encode())

    def _run_cell(self, client: NotebookClient, number: int) -> int | None:
        """The exit code if this cell ends the session, else None."""
        try:
            client.execute_cell(self._book.cells[number], number)
        except CellExecutionError as error:
            return self._code_of(error, number)
        except DeadKernelError:
            print(f"the kernel died in cell {number + 1}", file=sys.stderr)
            return 128 + self._signal if self._signal else EXIT_FAILED
        return None

    def _code_of(self, error: CellExecutionError, number: int) -> int:
        if error.ename == "SessionPaused":
            return EXIT_PAUSED
        if error.ename == "SystemExit":
            if error.evalue in ("", "None"):
                return os.EX_OK
            if error.evalue.lstrip("-").isdigit():
                return int(error.evalue) & 0xFF
            print(error.evalue, file=sys.stderr)
            return EXIT_FAILED
        for output in self._book.cells[number].outputs:
            if output.output_type == "error":
                text = "\n".join(output.traceback)
                print(text if sys.stderr.isatty() else _COLOUR.sub("", text), file=sys.stderr)
        return 128 + signal.SIGINT if error.ename == "KeyboardInterrupt" else EXIT_FAILED

    def _is_paused(self) -> bool:
        """Whether a run was paused, also where a ``with`` block swallowed it and the cell ended well."""
        report = read_report(self._report) if self._report is not None else None
        return report is not None and report.status == "paused"

    def _say_skipped(self, number: int, code: int) -> None:
        later = sum(
            cell.cell_type == "code" and bool(cell.source.strip()) for cell in self._book.cells[number + 1 :]
        )
        if later and code == EXIT_PAUSED:
            cells = "1 later cell is" if later == 1 else f"{later} later cells are"
            say(f"the run is paused in cell {number + 1}: {cells} skipped, the next session begins at the top")

    @contextmanager
    def _signals_to(self, client: NotebookClient) -> Iterator[None]:
        provisioner = client.km.provisioner if client.km is not None else None
        pid = getattr(provisioner, "pid", None)

        def forward(number: int, _: FrameType | None) -> None:
            self._signal = number
            if pid is not None:
                os.kill(pid, number)

        before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _read(path: Path) -> nbformat.NotebookNode:
    try:
        book: nbformat.NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except (ValueError, OSError) as error:  # nbformat's own errors are ValueErrors
        raise ConfigError(f"{path} cannot be read as a notebook: {error}") from error
    language = book.metadata.get("kernelspec", {}).get("language", "python")
    if language.lower() != "python":
        raise ConfigError(f"{path} is a notebook in {language}, not in Python")
    return book


def _kernel_manager(folder: Path) -> AsyncKernelManager:
    """A kernel of the Python that runs here, whatever others are installed, reached by sockets in a folder."""
    return AsyncKernelManager(
        kernel_name=NATIVE_KERNEL_NAME,
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
        connection_file=str(folder / "kernel.json"),
        transport="ipc",
    )


def _import_path(folder: Path) -> str:
    """``PYTHONPATH`` with the notebook's folder first: the working folder may be another."""
    old = os.environ.get("PYTHONPATH")
    return f"{folder}{os.pathsep}{old}" if old else str(folder)


def main() -> int:
    """Run the notebook that the command line names."""
    path = Path(sys.argv[1])
    folder = path.parent if os.access(path.parent, os.W_OK) else Path.cwd()
    output = Path(os.environ.get(NOTEBOOK_OUTPUT) or folder / f"{path.stem}.executed.ipynb")
    try:
        return NotebookSession(path, output, Settings.from_environment().report).run()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
