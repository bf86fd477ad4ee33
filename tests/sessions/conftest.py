"""Sessions as real processes."""

import os
import subprocess
import sys

import pytest

_MAIN = "import sys; from perdure.cli.main import main; sys.exit(main())"


def perdure_command(*words):
    return [sys.executable, "-c", _MAIN, *(str(word) for word in words)]


@pytest.fixture
def clean_environment():
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "KAGGLE_"))}
    return ours | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def perdure(tmp_path, clean_environment):
    """Runs the command in ``tmp_path`` to its end."""

    def run(*words, cwd=tmp_path, env=None, timeout=120):
        return subprocess.run(
            perdure_command(*words),
            cwd=cwd,
            env=clean_environment | (env or {}),
            timeout=timeout,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture
def start_perdure(tmp_path, clean_environment):
    """Starts the command in ``tmp_path``; what is left of it is killed at the end of the test."""
    started = []

    def start(*words, env=None):
        process = subprocess.Popen(
            perdure_command(*words),
            cwd=tmp_path,
            env=clean_environment | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
