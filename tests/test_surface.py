"""The public surface, pinned: a change here is a change for users, made on purpose, with a line in the changelog."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import typer

import perdure
from perdure.cli.main import app

EXPORTS = [
    "Keep", "Limits", "PerdureError", "Pickled", "Run", "SessionPaused", "__version__", "check_model", "current", "doctor",
    "export", "restore", "save",
]  # fmt: skip

SIGNATURES = {
    "Run": "(name, root=None, *, save_every='auto', keep=None, limits=None, accelerator='auto', resume=True, seed=None)",
    "Run.track": "(self, **objects)",
    "Run.start_from": "(self, path, *, only=None, trust=False)",
    "Run.epochs": "(self, count, *, extend=False)",
    "Run.steps": "(self, count, *, extend=False)",
    "Run.batches": "(self, loader)",
    "Run.cycle": "(self, loader)",
    "Run.log": "(self, **values)",
    "Run.save": "(self)",
    "Run.export": "(self, name='model', *, example=None, formats=('pth', 'safetensors'))",
    "Keep": "(last=2, best=None)",
    "Limits": "(window=None, disk=None, margin=None)",
    "Pickled": "(value)",
    "current": "()",
    "doctor": "(*, require=None)",
    "export": "(model, folder, name='model', *, example=None, formats=('pth', 'safetensors'))",
    "check_model": "(path, *, example=None, input_shapes=(), trust=False)",
    "save": "(path, **objects)",
    "restore": "(path, *, trust=False, **objects)",
}
PROPERTIES = {
    "batch", "device", "epoch", "finished", "folder", "name", "resumed_from", "step", "time_left", "vars",
}  # fmt: skip

COMMANDS = {
    "demo": {"--out", "--seed", "--json"},
    "doctor": {"--require", "--json"},
    "bench": {"--size", "--folder", "--rounds", "--json"},
    "run": {"--window", "--disk", "--root", "--input", "--carry", "--resume-with"},
    "rehearse": {"--window", "--kills", "--disk", "--seed", "--sessions-max", "--work", "--json"},
    "quota": {"--on", "--json"},
    "status": {"--root", "--require", "--json"},
    "checkpoints": {"--root", "--json"},
    "verify": {"--root", "--json"},
    "export": {
        "--model", "--format", "--example", "--input-shape", "--only", "--average", "--name", "--out", "--push",
        "--root", "--json",
    },
    "check-model": {"--example", "--input-shape", "--trust", "--all", "--json"},
    "relay start": {
        "--on", "--name", "--accelerator", "--window", "--expect", "--project", "--env", "--dataset", "--competition",
        "--model", "--internet", "--when-exhausted", "--mirror", "--notify", "--out", "--detach", "--dry-run",
    },
    "relay status": {"--json"},
    "relay watch": {"--once"},
    "relay logs": {"--session", "--follow"},
    "relay stop": {"--now"},
    "relay resume": set(),
    "relay list": {"--json"},
    "relay fetch": {"--tensors", "--out"},
}  # fmt: skip


def signature(name: str) -> str:
    """Names, kinds and defaults of the parameters, without the types."""
    value: object = perdure
    for part in name.split("."):
        value = getattr(value, part)
    shown = inspect.signature(value)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in shown.parameters.values()]
    return str(shown.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def test_the_exports_are_pinned() -> None:
    assert sorted(perdure.__all__) == EXPORTS
    assert sorted(name for name in dir(perdure) if name in EXPORTS) == EXPORTS
    assert all(getattr(perdure, name) is not None for name in EXPORTS)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_pinned(name: str) -> None:
    assert signature(name) == SIGNATURES[name]


def test_the_members_of_a_run_are_pinned() -> None:
    public = {name: value for name, value in vars(perdure.Run).items() if not name.startswith("_")}
    assert {name for name, value in public.items() if isinstance(value, property)} == PROPERTIES
    assert {name for name in public if name not in PROPERTIES} == {n.split(".")[1] for n in SIGNATURES if "." in n}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Runn'"):
        _ = perdure.Runn


def test_every_public_name_has_a_docstring() -> None:
    for name in [*SIGNATURES, *(f"Run.{name}" for name in PROPERTIES)]:
        value: object = perdure
        for part in name.split("."):
            value = getattr(value, part)
        assert inspect.getdoc(value), name


def flat(group: typer.core.TyperGroup, before: str = "") -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Each command with its whole name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from flat(command, f"{before}{name} ")
        else:
            yield before + name, command


def test_every_command_and_flag_is_pinned() -> None:
    commands = dict(flat(typer.main.get_command(app)))
    assert list(commands) == list(COMMANDS)
    for name, command in commands.items():
        flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
        assert flags == COMMANDS[name], name
