"""The rooms stay apart: what importing loads, how long it takes, how large things grow."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "perdure"
MODULES = sorted(PACKAGE.rglob("*.py"))
FRAMEWORKS = {"torch", "keras", "tensorflow", "jax", "numpy", "sklearn", "lightning", "transformers", "ray"}
HEAVY = FRAMEWORKS | {
    "pynvml",
    "kaggle",
    "kagglehub",
    "pydantic",
    "typer",
    "rich",
    "psutil",
    "fastapi",
    "nicegui",
    "flask",
}


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded after this code."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_import_perdure_loads_no_framework_and_nothing_heavy() -> None:
    assert loaded_by("import perdure") & HEAVY == set()


def test_the_commands_load_no_framework() -> None:
    assert loaded_by("import perdure.cli.main") & FRAMEWORKS == set()


def test_the_checkpoint_room_loads_no_framework() -> None:
    assert loaded_by("import perdure.checkpoint.store, perdure.checkpoint.verify") & FRAMEWORKS == set()


def test_import_perdure_takes_less_than_150_ms() -> None:
    assert min(import_ms() for _ in range(7)) < 150


def import_ms() -> float:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import perdure"], check=True, capture_output=True, text=True
    )
    (cumulative,) = re.findall(r"^import time:\s+\d+ \|\s+(\d+) \| perdure$", done.stderr, re.MULTILINE)
    return int(cumulative) / 1000


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_functions_stay_small_enough_to_read(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [f.name for f in functions if (f.end_lineno or 0) - f.lineno >= 80] == []


def test_without_torch_the_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import perdure; perdure.Run"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtraError: perdure.Run needs torch, which is not installed" in done.stderr
    assert "hint: install PyTorch" in done.stderr
