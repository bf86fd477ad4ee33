"""What the pages say is so: links lead somewhere, code compiles, commands show what is printed."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from pages import PAGES, REPOSITORY, Block, anchors, blocks, commands, links, shown, sides

from perdure.cli.main import app
from perdure.core import errors, settings
from perdure.platforms.command import NOTEBOOK_OUTPUT
from perdure.relay.home import HOME

CANNOT_RUN = ("make ", "pip ", "git ", "export ", "cd ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_blocks_compile(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_blocks_use_names_that_exist(block: Block) -> None:
    perdure = importlib.import_module("perdure")
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = {"perdure": perdure, "run": perdure.Run}.get(node.value.id)
            assert owner is None or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("block", blocks("diff"), ids=str)
def test_both_sides_of_a_diff_compile(block: Block) -> None:
    for side in sides(block.text):
        compile(side, str(block), "exec")


@pytest.mark.parametrize("page", sorted({block.page for block in blocks("console")}), ids=lambda page: page.name)
def test_commands_show_what_the_page_says(page: Path, tmp_path: Path) -> None:
    """One folder a page: a diff of ``train.py`` is applied in it, then the commands run in order."""
    for block in blocks("diff"):
        if block.page == page:
            (tmp_path / "train.py").write_text(sides(block.text)[1])
    for block in blocks("console"):
        if block.page == page:
            for command, expected in commands(block.text):
                if not command.startswith(CANNOT_RUN):
                    output = run(command, tmp_path)
                    assert shown(expected, output), f"{block}: $ {command}\n{output}"


def run(command: str, folder: Path) -> str:
    """What a command shows, on stdout and stderr."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    done = subprocess.run(
        shlex.split(command),
        cwd=folder,
        env={**environment, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=300,
    )
    return done.stdout


def test_the_tree_of_errors_is_the_one_in_the_code() -> None:
    documented = next(b.text for b in blocks("text") if b.page.name == "errors.md")
    docstring = inspect.cleandoc(errors.__doc__ or "")
    assert documented.strip() == inspect.cleandoc(
        docstring[docstring.index("    PerdureError") : docstring.index("A message")]
    )
    drawn = re.findall(r"(\w+(?:Error|Paused))(?: \(\w+\))?(?: |$)", documented, re.MULTILINE)
    in_code = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert sorted(drawn) == sorted(in_code)


def test_every_environment_variable_is_in_the_reference() -> None:
    page = (REPOSITORY / "docs/reference/environment.md").read_text()
    documented = set(re.findall(r"^\| `(PERDURE_\w+)`", page, re.MULTILINE))
    assert documented - {NOTEBOOK_OUTPUT, HOME} == {
        value for value in vars(settings).values() if isinstance(value, str) and value.startswith("PERDURE_")
    }


def test_every_public_name_is_in_the_reference() -> None:
    perdure = importlib.import_module("perdure")
    page = (REPOSITORY / "docs/reference/api.md").read_text()
    names = [f"perdure.{name}" for name in perdure.__all__ if not name.startswith("_")]
    names += [f"run.{name}" for name in vars(perdure.Run) if not name.startswith("_")]
    assert [name for name in names if name not in page] == []


def flat(group: typer.core.TyperGroup, before: str = "") -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Each command with its whole name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from flat(command, f"{before}{name} ")
        else:
            yield before + name, command


def test_every_command_and_flag_is_in_the_reference() -> None:
    page = (REPOSITORY / "docs/reference/cli.md").read_text()
    for name, command in flat(typer.main.get_command(app)):
        section = page.partition(f"## perdure {name}\n")[2].partition("\n## ")[0]
        flags = [flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")]
        assert [flag for flag in flags if f"`{flag}" not in section] == [], name


def test_every_decision_is_in_the_list() -> None:
    folder = REPOSITORY / "docs/decisions"
    assert sorted(links(folder / "README.md")) == sorted(p.name for p in folder.glob("0*.md"))


def test_every_dependency_has_its_line() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    page = (REPOSITORY / "docs/decisions/0001-dependencies.md").read_text()
    for name in re.findall(r'^  "([a-z-]+)[>\[]', project, re.MULTILINE):
        assert name == "perdure" or re.search(rf"\b{name}\b", page), name


def test_numbers_are_loose_and_words_are_not() -> None:
    assert shown(["a ... c", "...", "end"], "a b c\n1\n2\nend\n")
    assert shown(["step  12, 9.9 s"], "step 1200, 1 min 05 s\n")
    assert shown(["4.0 kB"], "512 B")
    assert not shown(["a"], "a\nb")
    assert not shown(["a", "c"], "a\nb\nc")
    assert not shown(["12 steps"], "twelve steps")
