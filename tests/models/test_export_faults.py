"""Killed and failed at every system call by which an export changes files: no file looks finished that is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from perdure.core.say import logger
from perdure.models.export import export_model
from perdure.models.formats import Facts, Source
from perdure.models.prover import Prover
from perdure.models.records import RECORDS
from perdure.models.workplace import put_in_place
from perdure.testing.faults import FileEvent, Outcome, file_events, have_strace, run_with_fault

pytestmark = pytest.mark.skipif(not have_strace(), reason="needs strace")

OLD, NEW = {"a": torch.zeros(300), "b": torch.ones(2)}, {"a": torch.ones(300), "b": torch.zeros(2)}
FILES = {"m.pth", "m.safetensors", "model-card.json", "README.md", RECORDS}


class Bench:
    """A folder with an older export of the same name, put back before each point; the action replaces it."""

    def __init__(self, root: Path) -> None:
        self.original, self.folder = root / "original", root / "out"
        (root / "prover").mkdir()
        self.prover = Prover(root / "prover")
        self.export(OLD, self.original)
        self.put_back()
        self.action()  # once without a fault: everything is imported, and the child imports nothing
        self.put_back()
        self.events = file_events(self.action, root / "log")
        self.put_back()

    def export(self, tensors: dict[str, torch.Tensor], folder: Path) -> None:
        source = Source(tensors)
        source.scratch["prover"] = self.prover
        export_model(source, folder, "m", ["pth", "safetensors"], Facts())

    def put_back(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.original, self.folder)

    def action(self) -> None:
        self.export(NEW, self.folder)

    def at(self, event: FileEvent, fault: str, **how) -> Outcome:
        self.put_back()
        return run_with_fault(self.action, event, fault, **how)

    def assert_each_file_is_whole(self) -> str:
        """Each file that has its name is the older or the newer one, to the last bit. Returns which."""
        files = {path.name for path in self.folder.iterdir() if not path.name.startswith(".")}
        assert files <= FILES
        found = {}
        for name in files & {"m.pth", "m.safetensors"}:
            path = self.folder / name
            tensors = load_file(path) if name.endswith("s") else torch.load(path, weights_only=True)
            is_new = torch.equal(tensors["a"], NEW["a"])
            assert all(torch.equal(tensors[n], value) for n, value in (NEW if is_new else OLD).items())
            found[name] = "new" if is_new else "old"
        return " ".join(found[name] for name in sorted(found))

    def assert_goes_on(self) -> None:
        """The next export makes what is missing and leaves nothing over."""
        self.action()
        assert self.assert_each_file_is_whole() == "new new"
        assert {path.name for path in self.folder.iterdir()} == FILES


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    level = logger.level
    logger.setLevel("CRITICAL")
    bench = Bench(tmp_path_factory.mktemp("faults"))
    yield bench
    bench.prover.close()
    logger.setLevel(level)


def test_the_sweep_sees_every_kind_of_call_that_an_export_makes(bench):
    assert {"openat", "write", "fsync", "rename", "mkdir", "unlink"} <= {event.call for event in bench.events}


def test_an_export_killed_at_any_file_event_leaves_whole_files_and_goes_on(bench):
    seen = []
    for event in bench.events:
        assert bench.at(event, "signal=SIGKILL").status == "killed", event
        seen.append(bench.assert_each_file_is_whole())
        bench.assert_goes_on()
    assert list(dict.fromkeys(seen)) == ["old old", "new old", "new new"], "one after the other, never none"


def test_a_full_disk_at_any_file_event_is_said_and_leaves_whole_files(bench):
    for event in bench.events:
        if event.call not in ("write", "openat", "mkdir", "rename", "fsync", "pwrite64", "fallocate"):
            continue
        outcome = bench.at(event, "error=ENOSPC", ever_after=event.call != "openat")  # reading needs it too
        assert outcome.status == "returned" or outcome.error == "DiskFullError", (event, outcome)
        bench.assert_each_file_is_whole()
        assert [path for path in bench.folder.iterdir() if path.name.startswith(".export")] == [], event
        bench.assert_goes_on()


def test_a_file_never_stands_beside_the_companion_of_another(tmp_path):
    """A large ONNX file and its weights: two renames, and a kill in between."""
    main, weights, work = tmp_path / "m.onnx", tmp_path / "m.onnx.data", tmp_path / "work"

    def put_back():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for path, text in {main: "old", weights: "old"}.items():
            path.write_text(text)
            (work / path.name).write_text("new")

    def action():
        put_in_place(work / main.name, [work / weights.name], tmp_path)

    put_back()
    events = file_events(action, tmp_path / "log")
    seen = set()
    for event in events:
        put_back()
        assert run_with_fault(action, event, "signal=SIGKILL").status == "killed"
        assert not main.exists() or main.read_text() == weights.read_text(), event
        seen.add(main.read_text() if main.exists() else "none")
    assert seen == {"old", "none", "new"}
