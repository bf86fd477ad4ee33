"""The process that proves model files: it is started once an export, and Perdure is not imported in it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from perdure.core.intervals import format_duration
from perdure.models.formats import Source

PROOF_S = 1800.0
"""How long one file may take. Then its process is killed and the file is refused."""

_CHILD = Path(__file__).with_name("_proof_child.py")


class Prover:
    """A process that proves one file after another; started when it is made, so that it loads while we write.

    Args:
        folder: An empty folder to work in; whoever made it removes it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._errors = open(folder / "stderr", "w+b")  # noqa: SIM115  closed by close()
        self._jobs = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
        return subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)],  # -P: modules beside the child must not hide others
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env=environment,
            cwd=self.folder,
            start_new_session=True,
        )

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a job. A process that dies or hangs is an answer too, and the next job gets a new one."""
        self._jobs += 1
        mark = f"{os.getpid()}.{self._jobs}"
        try:
            return self._answer(json.dumps({**job, "id": mark}), mark)
        except TimeoutError:
            problem = f"it was not proved within {format_duration(PROOF_S)}"
            self._end()
        except (BrokenPipeError, EOFError):
            problem = f"the process that opened it {_ending(self._process.wait())}{self._last_words()}"
            self._end()
        self._process = self._start()
        return {"problems": [problem], "died": True}

    def _answer(self, job: str, mark: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(job + "\n")
        self._process.stdin.flush()
        while line := _line(self._process.stdout):
            answer: dict[str, Any] = json.loads(line)
            if answer["id"] == mark:  # else it is for one that was killed while it waited
                return answer
        raise EOFError

    def _last_words(self) -> str:
        lines = (self.folder / "stderr").read_text(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """End the process."""
        self._end()
        self._errors.close()


def _line(stream: IO[str]) -> str:
    """One line, or nothing where the stream ended.

    Raises:
        TimeoutError: There was none within ``PROOF_S``.
    """
    ready, _, _ = select.select([stream], [], [], PROOF_S)
    if not ready:
        raise TimeoutError
    return stream.readline()


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def prover_of(source: Source) -> Prover:
    """The process of this export; ended with it."""
    if "prover" not in source.scratch:
        prover = Prover(folder_of(source))
        source.closing.callback(prover.close)
        source.scratch["prover"] = prover
    prover = source.scratch["prover"]
    assert isinstance(prover, Prover)
    return prover


def folder_of(source: Source) -> Path:
    """A folder of its own for the process, or for what it is given; gone with the export."""
    folder = Path(tempfile.mkdtemp(prefix="proof-", dir=source.scratch.get("work")))
    source.closing.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder
