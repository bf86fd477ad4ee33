"""``perdure checkpoints RUN``: there is one, and something is in it; else the exit code says no."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Store
from perdure.cli.main import main
from perdure.core.paths import RunPaths
from perdure.core.progress import Position


def save(root: Path, values: dict, buffer: str) -> None:
    """A checkpoint as a run leaves it, with one buffer."""
    store = Store(RunPaths(root / "digits"), "digits")
    store.open({})
    store.save(Snapshot(Position(step=7), values, [Buffer(buffer, "tensor", "F32", (1,), memoryview(bytes(4)))]))
    store.close()


def test_a_run_with_a_good_checkpoint_is_fine(make_run, capsys) -> None:
    make_run("digits")
    assert main(["checkpoints", "digits"]) == 0


def test_a_run_without_a_checkpoint_fails_by_name_and_not_in_a_list_of_all(make_run, capsys) -> None:
    make_run("digits", steps=(), session={})
    assert main(["checkpoints"]) == 0
    assert main(["checkpoints", "digits"]) == 1
    assert "error: digits has no checkpoint" in capsys.readouterr().err


def test_a_checkpoint_in_which_nothing_was_tracked_is_empty(root: Path, capsys) -> None:
    save(root, {"objects": {}, "vars": {}}, "generators/torch")
    assert main(["checkpoints", "digits"]) == 1
    captured = capsys.readouterr()
    assert "the newest checkpoint of digits is empty: nothing was tracked in it\nhint: track in" in captured.err
    assert "  empty" in captured.out
    assert main(["checkpoints", "digits", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["empty"] is True


def test_plain_values_alone_are_no_empty_checkpoint(root: Path) -> None:
    save(root, {"objects": {}, "vars": {"best": 0.5}}, "generators/torch")
    assert main(["checkpoints", "digits"]) == 0


def test_only_damaged_checkpoints_are_as_good_as_none(make_run, capsys) -> None:
    run = make_run("digits")
    shutil.rmtree(run.tensors)
    assert main(["checkpoints", "digits"]) == 1
    assert "every checkpoint of digits is damaged" in capsys.readouterr().err
