"""What else the doctor looks at: session, cores, memory, disk, inputs, internet; and how it shows all of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import perdure
from perdure.checkpoint.retention import Keep
from perdure.checkpoint.snapshot import Buffer, Snapshot
from perdure.checkpoint.store import Store
from perdure.checkup import machine
from perdure.checkup.checks import Check, Checkup, summary
from perdure.checkup.gather import Question, Unknown, gather
from perdure.checkup.inputs import checkpoints_check, inputs_check, look_at_inputs
from perdure.checkup.internet import address_of, internet_check, reach
from perdure.checkup.session import Instant, clock_check, window_check
from perdure.cli.main import main
from perdure.core.errors import ConfigError
from perdure.core.limits import Limits, Window
from perdure.core.paths import RunPaths
from perdure.core.progress import Position
from perdure.hardware import host
from perdure.testing.clock import FakeClock

DAY_S = 1_796_000_000.0  # in December 2026


# ---- the whole of it, for real

REAL = """
import json, sys
import perdure
checkup = perdure.doctor()
loaded = [name for name in ("torch", "tensorflow", "keras", "jax", "numpy") if name in sys.modules]
import torch
print(json.dumps({"data": checkup.as_data(), "loaded": loaded, "cuda": torch.cuda.is_initialized()}))
"""


def test_b50_a_real_look_loads_no_framework_and_leaves_cuda_alone() -> None:
    """CUDA that is initialised by the way makes later workers fail (accelerate 3524)."""
    done = subprocess.run(
        [sys.executable, "-c", REAL], env={**os.environ, "PERDURE_REACH": "off"}, capture_output=True, check=True
    )
    told = json.loads(done.stdout)
    assert (told["loaded"], told["cuda"]) == ([], False)
    checks = {check["name"]: check for check in told["data"]["checks"]}
    for name in ("torch", "tensorflow", "keras"):
        assert checks[name]["details"]["installed"]
        assert checks[name]["details"]["trouble"] == ""
    assert list(checks)[:4] == ["platform", "python", "window", "clock"]
    assert {"driver", "gpu", "cores", "memory", "shared memory", "disk", "inputs", "checkpoints"} <= set(checks)


# ---- the command


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The command with a checkup that is made up; what was required of it."""
    asked: list[str | None] = []

    def look(*, require: str | None = None) -> Checkup:
        asked.append(require)
        failed = [Check("gpu", "failed", "there is none", "switch it on")] if require else []
        return Checkup((Check("disk", "ok", "100 GB", details={"free": 1}), *failed), require or "")

    monkeypatch.setattr("perdure.cli.doctor.doctor", look)
    return asked


def test_exit_code_0_and_a_line_a_check(made_up, capsys) -> None:
    assert main(["doctor"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "ok       disk  100 GB\n"
    assert captured.err == "1 check, none failed\n"


def test_exit_code_1_and_the_fix_below_what_failed(made_up, capsys) -> None:
    assert main(["doctor", "--require", "gpu"]) == 1
    captured = capsys.readouterr()
    assert captured.out == (
        "ok       disk  100 GB\n"
        "failed   gpu   there is none\n"
        "               fix: switch it on\n"
    )  # fmt: skip
    assert captured.err == "1 of 2 checks failed\n"
    assert made_up == ["gpu"]


def test_json_is_one_document_and_the_exit_code_is_the_same(made_up, capsys) -> None:
    assert main(["doctor", "--json", "--require", "gpu"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["ok"], told["required"]) == (1, False, "gpu")
    assert told["checks"][1] == {
        "name": "gpu", "state": "failed", "fact": "there is none", "fix": "switch it on", "details": {}
    }  # fmt: skip


def test_a_wrong_accelerator_is_a_usage_error(capsys) -> None:
    assert main(["doctor", "--require", "NvidiaTesla4"]) == 2
    assert capsys.readouterr().err == (
        "error: no accelerator is called 'NvidiaTesla4'\nhint: did you mean \"NvidiaTeslaT4\"?\n"
    )


def test_a_wrong_host_is_a_usage_error(monkeypatch, capsys) -> None:
    monkeypatch.setenv("PERDURE_REACH", "nowhere")
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err.startswith("error: PERDURE_REACH must be a host and a port, got 'nowhere'")


# ---- how it shows itself

MIXED = Checkup(
    (
        Check("a", "ok", "fine"),
        Check("bb", "warning", "a <b>fact</b> & more", 'a "fix"'),
        Check("c", "failed", "bad"),
        Check("d", "note", "by the way"),
    )
)


def test_it_prints_itself_as_lines() -> None:
    assert str(MIXED) == (
        "ok       a   fine\n"
        "warning  bb  a <b>fact</b> & more\n"
        '             fix: a "fix"\n'
        "failed   c   bad\n"
        "note     d   by the way"
    )
    assert repr(MIXED) == str(MIXED)
    assert summary(MIXED) == "1 of 4 checks failed, 1 warning"


def test_what_strangers_wrote_stays_on_its_line_and_steers_no_terminal() -> None:
    assert str(Checkup((Check("a", "ok", "x\ny \x1b[2Jz"),))) == "ok       a  x y \\x1b[2Jz"


def test_a_fix_is_said_once_and_that_of_a_note_is_a_hint() -> None:
    checkup = Checkup(
        (Check("a", "failed", "x", "do it"), Check("b", "failed", "y", "do it"), Check("c", "note", "z", "look"))
    )
    assert str(checkup).splitlines()[1::2] == [
        f"{'':<12}fix: do it",
        f"{'':<12}fix: as for a",
        f"{'':<12}hint: look",
    ]


def test_a_notebook_shows_it_as_a_table_with_nothing_of_it_taken_for_html() -> None:
    html = MIXED._repr_html_()
    assert html.count("<tr>") == 4
    assert "a &lt;b&gt;fact&lt;/b&gt; &amp; more" in html
    assert "fix: a &quot;fix&quot;" in html
    assert "<b>" not in html


def test_checks_are_found_by_name() -> None:
    assert MIXED["bb"].fix == 'a "fix"'
    assert ("c" in MIXED, "x" in MIXED) == (True, False)
    with pytest.raises(KeyError):
        MIXED["x"]


def test_markup_in_a_fact_is_shown_as_it_is(monkeypatch, capsys) -> None:
    checkup = Checkup((Check("disk", "ok", "[bold]x[/bold] {y}"),))
    monkeypatch.setattr("perdure.cli.doctor.doctor", lambda *, require: checkup)
    main(["doctor"])
    assert "[bold]x[/bold] {y}" in capsys.readouterr().out


def test_it_is_public() -> None:
    assert perdure.doctor.__module__ == "perdure.checkup.doctor"


# ---- what hangs or fails is a line


def test_a_question_that_hangs_or_fails_costs_the_others_nothing() -> None:
    never = threading.Event()

    def fail() -> None:
        raise OSError("gone")

    answers = gather({"a": Question(never.wait, 0.2), "b": Question(fail, 9), "c": Question(lambda: 3, 9)})
    never.set()
    assert answers == {"a": Unknown("no answer within 0 s"), "b": Unknown("OSError: gone"), "c": 3}


def test_everything_that_fails_is_said_in_its_line(monkeypatch, tmp_path) -> None:
    def fail(*_: object) -> None:
        raise OSError("gone")

    for name in ("read_cards", "look_at_inputs", "look_at_disk", "asked_in_metadata", "reach"):
        monkeypatch.setattr(f"perdure.checkup.doctor.{name}", fail)
    for name in ("usable_cores", "memory", "shared_memory"):
        monkeypatch.setattr(host, name, fail)
    checkup = perdure.doctor(require="gpu")
    said = {check.name: check.fact for check in checkup.checks if "OSError: gone" in check.fact}
    assert set(said) == {
        "driver", "torch", "tensorflow", "keras", "cores", "memory", "shared memory", "disk", "inputs", "internet"
    }  # fmt: skip
    assert not checkup.ok


# ---- session


def window(length_s: float, elapsed_s: float) -> Window:
    clock = FakeClock()
    started_s = clock.monotonic()
    clock.forward(elapsed_s)
    return Window(clock, started_s, length_s)


def test_the_window_counts_from_the_start_of_the_session() -> None:
    assert window_check(window(43200, 2100)).fact == "12 h, began 35 min ago, closes in 11 h 25 min"
    assert window_check(window(float("inf"), 5)).fact == "none: this session may last for ever"
    assert window_check(window(3600, 3300)).state == "warning"
    assert window_check(window(3600, 3700)).state == "failed"


def test_a_clock_that_was_set_is_said() -> None:
    begun = Instant(DAY_S, 100.0)
    assert clock_check(begun, Instant(DAY_S + 9, 109.0)).state == "ok"
    back = clock_check(begun, Instant(DAY_S - 3591, 109.0))
    assert (back.state, "set back by 1 h" in back.fact) == ("warning", True)
    assert "set forward by 5 min" in clock_check(begun, Instant(DAY_S + 309, 109.0)).fact
    assert clock_check(Instant(9.0, 1.0), Instant(10.0, 2.0)).fact == "1970-01-01 00:00 UTC: that is in the past"


# ---- the machine


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """Writes control groups, as they are seen from inside; gives the function."""
    monkeypatch.setattr(host, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(host, "OWN_CGROUP", tmp_path / "self")

    def write(own: str, files: dict[str, str]) -> None:
        (tmp_path / "self").write_text(own)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}),
        ("0::/docker/abc\n", {"cpu.max": "150000 100000\n"}),  # the path is that of the host
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}),
        ("4:cpu,cpuacct:/x\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "150000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}),
        ("", {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}),
    ],
)  # fmt: skip
def test_the_cores_of_a_container_count(cgroups, monkeypatch, own: str, files: dict[str, str]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    cgroups(own, files)
    assert host.usable_cores() == host.Cores(2, 16, "the container may use 1.5")
    assert (
        machine.cores_check(host.usable_cores()).fact
        == "2 of 16 (the container may use 1.5): up to 2 loader workers"
    )


def test_without_a_limit_the_affinity_counts(cgroups, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    cgroups("0::/\n", {"cpu.max": "max 100000\n"})
    assert host.usable_cores() == host.Cores(3, 16, "by this process' affinity")


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/a\n", {"a/memory.max": "500000000", "a/memory.current": "400000000", "a/memory.stat": "inactive_file 50000000\n"}),
        ("5:memory:/a\n", {
            "memory/a/memory.limit_in_bytes": "500000000", "memory/a/memory.usage_in_bytes": "400000000",
            "memory/a/memory.stat": "cache 1\ntotal_inactive_file 50000000\n", "memory/memory.limit_in_bytes": str((1 << 63) - 4096),
        }),
    ],
)  # fmt: skip
def test_the_memory_of_a_container_counts(cgroups, own: str, files: dict[str, str]) -> None:
    cgroups(own, files)
    assert host.memory() == host.Memory(500_000_000, 150_000_000, "the limit of the container")
    check = machine.memory_check(host.memory())
    assert (check.state, check.fact) == ("warning", "150 MB of 500 MB free (the limit of the container)")


def test_damaged_control_groups_are_no_limit(cgroups) -> None:
    cgroups("nonsense\n0::/\n", {"cpu.max": "x y", "memory.max": "much", "memory.stat": "what\n"})
    assert host.usable_cores().usable == len(os.sched_getaffinity(0))
    assert host.memory().why == ""


def test_the_shared_memory_of_a_container_kills_workers() -> None:
    small = machine.shared_memory_check((64_000_000, 64_000_000))
    assert (small.state, "--shm-size" in small.fix) == ("warning", True)
    assert machine.shared_memory_check((8_000_000_000, 7_000_000_000)).state == "ok"
    assert machine.shared_memory_check(None).state == "note"


def test_the_disk_is_that_of_the_budget(tmp_path) -> None:
    (tmp_path / "junk").write_bytes(b"x" * 3_000_000)
    root = tmp_path / "perdure" / "deep"
    check = machine.look_at_disk(root, tmp_path, Limits(disk="5 MB"))
    assert check.state == "warning"
    assert check.fact == f"2.0 MB free for {root}: {tmp_path} holds 3.0 MB of 5.0 MB"
    assert check.details["limit_bytes"] == 5_000_000
    assert machine.look_at_disk(root, tmp_path, Limits(disk="1 MB")).state == "failed"
    elsewhere = machine.look_at_disk(tmp_path / "other", root, Limits(disk="5 MB"))
    assert elsewhere.fact == f"5.0 MB free for {tmp_path / 'other'}: {tmp_path / 'other'} holds 0 B of 5.0 MB"
    assert not root.exists()


def test_a_folder_that_cannot_be_written_to_is_a_failure(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    check = machine.look_at_disk(tmp_path / "runs", None, Limits())
    assert (check.state, check.fact) == ("failed", f"{tmp_path} cannot be written to")
    assert "PERDURE_ROOT" in check.fix


# ---- inputs


def save(root: Path, name: str, steps: tuple[int, ...]) -> RunPaths:
    run = RunPaths(root / name)
    store = Store(run, name, keep=Keep(last=10))
    store.open({})
    for step in steps:
        buffer = Buffer("model/weight", "tensor", "F32", (10,), memoryview(bytes([step]) * 40))
        store.save(Snapshot(Position(step=step, epoch=0), {}, [buffer]))
    store.close()
    return run


def test_b59_checkpoints_are_found_in_both_layouts_of_inputs(tmp_path) -> None:
    """Inputs are mounted at another depth than they were (m45-imf-analysis 18)."""
    inputs = tmp_path / "input"
    save(inputs / "old-slug/perdure", "old", (10,))
    save(inputs / "notebooks/me/relay-1/perdure", "digits", (10, 20))
    (inputs / "datasets/me/images").mkdir(parents=True)
    found = look_at_inputs(tmp_path / "runs", (inputs,))
    assert inputs_check(found, (inputs,)).fact == "3 mounted: datasets/me/images, notebooks/me/relay-1, old-slug"
    check = checkpoints_check(found)
    assert check.state == "ok"
    assert set(check.details["newest"]) == {"old", "digits"}
    assert f"digits at step 20 in {inputs / 'notebooks/me/relay-1/perdure/digits'}" in check.fact


def test_a_damaged_checkpoint_is_said_beside_the_whole_one(tmp_path) -> None:
    run = save(tmp_path / "runs", "digits", (10, 20))
    (run.checkpoints / "step-000000020/manifest.json").write_text("{")
    check = checkpoints_check(look_at_inputs(tmp_path / "runs", ()))
    assert check.state == "warning"
    assert "digits at step 10" in check.fact
    assert "1 is damaged" in check.fact
    assert "perdure verify" in check.fix
    (run.checkpoints / "step-000000010/manifest.json").write_text("{")
    assert checkpoints_check(look_at_inputs(tmp_path / "runs", ())).state == "failed"


def test_a_checkpoint_whose_tensors_were_cut_is_not_the_newest(tmp_path) -> None:
    run = save(tmp_path / "runs", "digits", (10, 20))
    newest = max(run.folder.glob("tensors/*"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-4])
    check = checkpoints_check(look_at_inputs(tmp_path / "runs", ()))
    assert check.fact.startswith("digits at step 10 in ")
    assert "1 is damaged" in check.fact


def test_none_mounted_none_there_and_could_not_look_are_three_answers(tmp_path) -> None:
    (tmp_path / "input").mkdir()
    none = look_at_inputs(tmp_path / "runs", (tmp_path / "input",))
    assert inputs_check(none, (tmp_path / "input",)).fact == f"nothing is mounted below {tmp_path / 'input'}"
    assert inputs_check(look_at_inputs(tmp_path / "runs", ()), ()).state == "ok"
    assert checkpoints_check(none).fact == "none found: a run starts afresh"
    (tmp_path / "runs").symlink_to("runs")
    assert checkpoints_check(look_at_inputs(tmp_path / "runs", ())).state == "failed"


# ---- internet


@pytest.fixture
def server():
    """A port on this machine that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def test_the_internet_is_on_where_the_host_answers(server) -> None:
    check = internet_check(reach(("127.0.0.1", server), {}), "kaggle")
    assert check.state == "ok"
    assert check.fact.startswith(f"on: 127.0.0.1:{server} answers in ")


def test_the_internet_is_off_where_it_does_not(server) -> None:
    check = internet_check(reach(("127.0.0.1", closed_port()), {}), "kaggle")
    assert (check.state, "Connection refused" in check.fact) == ("note", True)
    assert "Notebook options > Internet" in check.fix
    assert internet_check(reach(("127.0.0.1", closed_port()), {}), "local").fix == ""


def test_a_proxy_is_asked_where_there_is_one_and_its_password_is_not_shown(server) -> None:
    proxy = {"https_proxy": f"http://me:secret@127.0.0.1:{server}"}
    check = internet_check(reach(("host.invalid", 443), proxy), "local")
    assert check.fact.startswith(f"on: the proxy 127.0.0.1:{server} answers")
    assert "secret" not in check.fact


def test_which_host_is_asked_can_be_said() -> None:
    assert address_of({}) == ("www.kaggle.com", 443)
    assert address_of({"PERDURE_REACH": "[::1]:8080"}) == ("::1", 8080)
    assert address_of({"PERDURE_REACH": "off"}) is None
    assert internet_check(None, "local").fact == "not looked at: PERDURE_REACH is off"
    with pytest.raises(ConfigError, match="host and a port"):
        address_of({"PERDURE_REACH": "example.org"})


def test_a_host_that_never_answers_does_not_hold_up(monkeypatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: time.sleep(600))
    answer = gather({"internet": Question(lambda: reach(("127.0.0.1", 1), {}), 0.2)})["internet"]
    assert internet_check(answer, "local").fact == "off: no answer within 0 s"
