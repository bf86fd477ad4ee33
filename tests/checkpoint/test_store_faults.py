"""Killed and failed at every system call by which a save changes files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from snapshots import assert_holds, assert_no_debris, flip, make_store, open_store, saved_run, snapshot

from perdure.checkpoint import saves, stream, writer
from perdure.checkpoint.store import Keep
from perdure.core.errors import DiskFullError, UnreadableError
from perdure.testing.faults import FileEvent, Outcome, file_events, have_strace, run_with_fault

pytestmark = pytest.mark.skipif(not have_strace(), reason="needs strace")


TENSORS_TMP = r"\.(arriving-[0-9a-f]{32}|[0-9a-f]{32}\.safetensors)\.tmp"


class Bench:
    """A run folder with two checkpoints, put back before each point; the action is one session with one save."""

    def __init__(self, root: Path) -> None:
        self.original, self.folder, self.log = root / "original", root / "digits", root / "log"
        saved_run(self.original, [50, 100, 200])
        self.put_back()
        self.action()  # once without a fault: everything is imported, and the child imports nothing
        self.put_back()
        self.events = file_events(self.action, self.log)
        self.put_back()

    def put_back(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.original, self.folder)

    def action(self) -> None:
        store = open_store(self.folder)
        assert store.newest() is not None
        store.save(snapshot(300))
        store.close()

    def at(self, event: FileEvent, fault: str, **how) -> Outcome:
        self.put_back()
        return run_with_fault(self.action, event, fault, **how)

    def assert_goes_on(self, *, committed: bool | None = None) -> int:
        """The newest is a whole one, and the next session saves and leaves nothing over. Returns its step."""
        peeked = make_store(self.folder).peek()
        store = open_store(self.folder)
        newest = store.newest()
        assert newest is not None
        step = newest.manifest.step
        assert step in ((200, 300) if committed is None else (300,) if committed else (200,))
        assert peeked is not None
        assert peeked.step == step
        assert_holds(newest, snapshot(step))
        assert store.reports == []
        store.save(snapshot(400))
        assert_holds(store.newest(), snapshot(400))
        store.close()
        assert_no_debris(self.folder)
        return step


class AtJoin:
    """A thread that does its work when it is waited for: strace counts the calls of each thread by themselves."""

    def __init__(self, target: Callable[[], None], **_: object) -> None:
        self._target: Callable[[], None] | None = target

    def start(self) -> None:
        pass

    def join(self) -> None:
        target, self._target = self._target, None
        if target:
            target()


def stream_everything(patch: pytest.MonkeyPatch) -> None:
    """Written while it arrives, however small."""
    patch.setattr(saves, "STREAM_FROM_BYTES", 1)
    patch.setattr(stream, "threading", SimpleNamespace(Thread=AtJoin))


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> Bench:
    return Bench(tmp_path_factory.mktemp("planned"))


@pytest.fixture(scope="module")
def streamed(tmp_path_factory) -> Bench:
    with pytest.MonkeyPatch.context() as patch:
        stream_everything(patch)
        return Bench(tmp_path_factory.mktemp("streamed"))


@pytest.fixture(params=["planned", "streamed"])
def bench(request, monkeypatch) -> Bench:
    """Saves that are written when all is there, and saves that are written while it arrives."""
    if request.param == "streamed":
        stream_everything(monkeypatch)
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def all_direct(tmp_path_factory) -> Bench:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "DIRECT_FROM_BYTES", 1)
        stream_everything(patch)
        return Bench(tmp_path_factory.mktemp("direct"))


@pytest.fixture
def direct(all_direct, monkeypatch) -> Bench:
    """Every file past the page cache, and written while it arrives."""
    monkeypatch.setattr(writer, "DIRECT_FROM_BYTES", 1)
    stream_everything(monkeypatch)
    return all_direct


def of_tensors(bench: Bench, call: str) -> list[FileEvent]:
    return [event for event in bench.events if event.call == call and re.search(TENSORS_TMP, event.text)]


def test_a_direct_save_killed_at_any_file_event_leaves_a_whole_checkpoint(direct):
    assert any("O_DIRECT" in event.text for event in of_tensors(direct, "openat"))
    assert of_tensors(direct, "ftruncate")
    for event in direct.events:
        assert direct.at(event, "signal=SIGKILL").status == "killed", event
        direct.assert_goes_on()


def test_a_direct_write_that_fails_or_is_short_is_handled_as_any_other(direct):
    for event in of_tensors(direct, "pwrite64"):
        assert direct.at(event, "error=ENOSPC", ever_after=True).error == "DiskFullError"
        direct.assert_goes_on(committed=False)
        assert direct.at(event, "retval=512").status == "returned"
        direct.assert_goes_on(committed=True)


@pytest.mark.parametrize("call", ["openat", "pwrite64"])
def test_where_direct_writes_are_refused_files_go_through_the_page_cache(direct, call):
    event = of_tensors(direct, call)[0]
    assert direct.at(event, "error=EINVAL").status == "returned"
    direct.assert_goes_on(committed=True)


def test_the_sweep_sees_every_kind_of_call_that_a_save_makes(bench):
    calls = {event.call for event in bench.events}
    assert {"openat", "fsync", "rename", "mkdir", "unlink", "rmdir", "fallocate", "pwrite64"} <= calls


def test_a_save_killed_at_any_file_event_leaves_a_whole_checkpoint(bench):
    steps = []
    for event in bench.events:
        assert bench.at(event, "signal=SIGKILL").status == "killed", event
        steps.append(bench.assert_goes_on())
    assert steps == sorted(steps), "once committed, always committed"
    assert set(steps) == {200, 300}


def fails_well(bench: Bench, event: FileEvent, error: str, *, ever_after: bool) -> None:
    outcome = bench.at(event, f"error={error}", ever_after=ever_after)
    assert outcome.status in ("returned", "raised"), event
    if outcome.status == "raised":
        typed = {"ENOSPC": DiskFullError, "EIO": UnreadableError}[error]
        assert outcome.error in (typed.__name__, UnreadableError.__name__), (event, outcome)
    bench.assert_goes_on(committed=outcome.status == "returned")


@pytest.mark.parametrize(
    ("error", "ever_after"),
    [
        ("EIO", False),
        ("ENOSPC", True),
        pytest.param("EIO", True, marks=pytest.mark.slow),
        pytest.param("ENOSPC", False, marks=pytest.mark.slow),
    ],
)
def test_a_failure_at_any_file_event_is_a_typed_error_and_the_last_checkpoint_stays(bench, error, ever_after):
    for event in bench.events:
        fails_well(bench, event, error, ever_after=ever_after)


def test_a_full_disk_is_called_a_full_disk(bench):
    writes = [e for e in bench.events if e.call in ("fallocate", "pwrite64")]
    for event in writes:
        outcome = bench.at(event, "error=ENOSPC", ever_after=True)
        assert (outcome.status, outcome.error) == ("raised", "DiskFullError"), event
        bench.assert_goes_on(committed=False)


def test_short_writes_are_not_believed(bench):
    for event in [e for e in bench.events if e.call == "pwrite64"]:
        assert bench.at(event, "retval=100").status == "returned", event
        bench.assert_goes_on(committed=True)


def test_a_write_that_is_always_short_is_an_error_and_not_a_checkpoint(bench):
    for event in [e for e in bench.events if e.call == "pwrite64"]:
        outcome = bench.at(event, "retval=100", ever_after=True)
        assert (outcome.status, outcome.error) == ("raised", "UnreadableError"), event
        bench.assert_goes_on(committed=False)


def test_a_file_system_that_cannot_reserve_is_written_to_all_the_same(bench):
    for event in [e for e in bench.events if e.call == "fallocate"]:
        assert bench.at(event, "error=EOPNOTSUPP", ever_after=True).status == "returned"
        bench.assert_goes_on(committed=True)


def test_a_file_system_that_cannot_sync_folders_is_written_to_all_the_same(bench):
    folders = [e for e in bench.events if e.call == "fsync" and ".tmp" not in e.text]
    assert len(folders) >= 5
    for event in folders:
        assert bench.at(event, "error=EINVAL").status == "returned", event
        bench.assert_goes_on(committed=True)


def test_a_file_system_without_locks_is_written_to_and_that_is_said(bench):
    outcome = bench.at(FileEvent("fcntl", 1, ""), "error=ENOLCK", ever_after=True)
    assert outcome.status == "returned"

    def action() -> None:
        raise SystemExit(" ".join(open_store(bench.folder).reports))

    bench.put_back()
    outcome = run_with_fault(action, FileEvent("fcntl", 1, ""), "error=ENOLCK", ever_after=True)
    assert "cannot be locked" in outcome.message


def test_a_killed_first_save_of_all_can_be_started_again(tmp_path):
    folder = tmp_path / "digits"

    def action() -> None:
        store = open_store(folder)
        store.save(snapshot(100))

    action()
    shutil.rmtree(folder)
    events = file_events(action, tmp_path / "log")
    for event in events:
        shutil.rmtree(folder)
        assert run_with_fault(action, event, "signal=SIGKILL").status == "killed", event
        store = open_store(folder)
        newest = store.newest()
        assert newest is None or newest.manifest.step == 100
        store.save(snapshot(200))
        store.close()
        assert_no_debris(folder)


def killed_at_every_event(tmp_path: Path, make: Callable[[Path], None], action: Callable[[], None]) -> list[int]:
    """Kill the action at each of its file events; the steps of the newest checkpoint after each."""
    folder, original = tmp_path / "digits", tmp_path / "original"
    make(original)

    def put_back() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)

    put_back()
    action()
    put_back()
    steps = []
    for event in file_events(action, tmp_path / "log"):
        put_back()
        assert run_with_fault(action, event, "signal=SIGKILL").status == "killed", event
        store = open_store(folder)
        newest = store.newest()
        assert_holds(newest, snapshot(newest.manifest.step))
        steps.append(newest.manifest.step)
        store.save(snapshot(400))
        store.close()
        shutil.rmtree(folder / "quarantine", ignore_errors=True)
        assert_no_debris(folder)
    return steps


def test_killed_while_a_damaged_checkpoint_is_set_aside(tmp_path):
    def make(folder: Path) -> None:
        saved_run(folder, [100, 200])
        flip(folder / next(iter(reversed(make_store(folder).list()[0].manifest.files))), -1)

    def action() -> None:
        store = open_store(tmp_path / "digits")
        assert store.newest().manifest.step == 100
        store.save(snapshot(300))

    assert set(killed_at_every_event(tmp_path, make, action)) == {100, 300}


def test_killed_while_a_save_replaces_one_of_the_same_boundary(tmp_path):
    def action() -> None:
        store = open_store(tmp_path / "digits")
        store.newest()
        store.save(snapshot(200))

    steps = killed_at_every_event(tmp_path, lambda folder: saved_run(folder, [100, 200]), action)
    assert set(steps) == {200}


def test_killed_while_many_are_pruned(tmp_path):
    def action() -> None:
        open_store(tmp_path / "digits", keep=Keep(last=1)).save(snapshot(300))

    steps = killed_at_every_event(tmp_path, lambda folder: saved_run(folder, [10, 20, 30, 40, 200], last=9), action)
    assert set(steps) == {200, 300}


def test_killed_while_the_best_one_is_brought_over_from_an_input(tmp_path):
    before = open_store(tmp_path / "input" / "digits", keep=Keep(1, "max:accuracy"))
    before.save(snapshot(100, metrics={"accuracy": 0.9}))
    before.save(snapshot(200, metrics={"accuracy": 0.8}))
    before.close()

    def action() -> None:
        options = {"inputs": [tmp_path / "input"], "keep": Keep(1, "max:accuracy")}
        store = open_store(tmp_path / "digits", **options)
        assert store.newest().manifest.step == 210
        store.save(snapshot(300, metrics={"accuracy": 0.7}))
        assert sorted(item.manifest.step for item in make_store(tmp_path / "digits").list()) == [100, 300]

    def make(folder: Path) -> None:
        open_store(folder, inputs=[tmp_path / "input"]).save(snapshot(210))

    assert set(killed_at_every_event(tmp_path, make, action)) <= {210, 300}


def test_every_step_of_a_save_is_durable_before_the_next(bench):
    """What no kill can show, since the page cache outlives a process: the order of syncs, for a power cut."""
    did = []
    for event in bench.events:
        names = [Path(name).name for name in re.findall(r'[<"](/[^>"]*)[>"]', event.text)]
        if event.call in ("fsync", "rename", "unlink", "rmdir", "pwrite64"):
            did.append((event.call, re.sub(r"[0-9a-f]{32}", "x", names[0])))
    streamed = ("pwrite64", ".arriving-x.tmp") in did
    name = ".arriving-x.tmp" if streamed else ".x.safetensors.tmp"
    assert did[did.index(("pwrite64", name)) :] == [
        *[("pwrite64", name)] * (2 if streamed else 1),
        ("fsync", name),
        ("rename", name),
        ("fsync", "tensors"),
        ("pwrite64", ".manifest.json.tmp"),
        ("fsync", ".manifest.json.tmp"),
        ("rename", ".manifest.json.tmp"),
        ("fsync", "step-000000300"),
        ("fsync", "checkpoints"),
        ("unlink", "manifest.json"),
        ("rmdir", "step-000000100"),
        ("fsync", "checkpoints"),
        ("unlink", "x.safetensors"),
    ]
