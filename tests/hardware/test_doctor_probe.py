"""Frameworks are asked in processes of their own: whatever becomes of those is an answer, and nothing is left over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.doctoring import MODERN, P100, T4, cards, on_card, player, torch_begins, torch_on
from perdure.hardware.architectures import has_code_for
from perdure.hardware.probe import CHILD, probe
from perdure.hardware.probed import Probe
from perdure.testing.nvml import FakeNvml

REAL_CHILD = [sys.executable, "-P", str(CHILD)]

FAKE_TORCH = """
import time
print('{{"reason": "what a framework prints"}}')
__version__ = "2.10.0+cu128"
class version:
    cuda, hip = "12.8", None
class _Tensor:
    def __init__(self, place="cpu"): self.place = place
    def to(self, place): return _Tensor(place)
    def cpu(self): return self
    def __matmul__(self, other):
        {kernel}
        return self
    def __sub__(self, other): return self
    def __abs__(self): return self
    def max(self): return {off}
def manual_seed(seed): pass
def randn(*shape): return _Tensor()
def ones(*shape, **how): return _Tensor(how["device"])
def conv2d(images, kernel): return images
float32 = float16 = bfloat16 = None
class _Properties:
    name, major, minor, total_memory = "Tesla P100-PCIE-16GB", 6, 0, 17071734784
class cuda:
    is_available = staticmethod(lambda: {available})
    device_count = staticmethod(lambda: 1)
    get_arch_list = staticmethod(lambda: ["sm_70", "sm_75"])
    get_device_properties = staticmethod(lambda index: _Properties)
    synchronize = staticmethod(lambda place: None)
    @staticmethod
    def init(): raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")
"""


def ask(folder: Path, lines: list, **how) -> Probe:
    return probe("torch", command=player(folder, {"torch": lines}), **how)


def fake_torch(folder: Path, kernel: str = "pass", off: str = "0.0", available: str = "True") -> dict[str, str]:
    """The environment in which ``import torch`` gives a torch that behaves so."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(FAKE_TORCH.format(kernel=kernel, off=off, available=available))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def gone(pid: int) -> bool:
    """Whether a process is gone, or a zombie that its parent will fetch; waits a moment."""
    for _ in range(200):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_an_answer_is_put_together(tmp_path) -> None:
    answer = ask(tmp_path, torch_on(T4, T4))
    assert (answer.installed, answer.version, answer.build) == (True, "2.10.0+cu128", "CUDA 12.8")
    assert answer.architectures == tuple(MODERN)
    assert [device.place for device in answer.devices] == ["cuda:0", "cuda:1"]
    assert answer.devices[1].capability == (7, 5)
    assert (answer.works, answer.trouble) == (True, "")


def test_a_framework_that_is_not_there(tmp_path) -> None:
    assert ask(tmp_path, [{"installed": False}, {"done": True}]).installed is False
    real = probe("no_such_framework", command=REAL_CHILD)
    assert (real.installed, real.trouble) == (False, "")


def test_a_crash_is_named_with_its_place(tmp_path) -> None:
    answer = ask(tmp_path, [*torch_begins(), *on_card(0, T4), "segv"])
    assert answer.trouble == "died of SIGSEGV while running a kernel on cuda:0 (Tesla T4)"
    assert (answer.trouble_code, answer.works) == ("crashed", False)
    assert answer.version == "2.10.0+cu128"


def test_an_exit_is_named_with_its_last_words(tmp_path) -> None:
    answer = ask(tmp_path, [*torch_begins()[:1], "exit 3"])
    assert answer.trouble == "ended with exit code 3 while importing torch: the reason"


def test_a_process_that_ends_before_it_has_told_all_is_no_whole_answer(tmp_path) -> None:
    answer = ask(tmp_path, torch_on(T4)[:-1])
    assert answer.trouble_code == "crashed"
    assert answer.works is False


def test_what_a_framework_prints_is_not_taken_for_an_answer(tmp_path) -> None:
    noise = ["print Hello from TensorFlow", "print 3", 'print ["a"]', "print {half a document", "print "]
    assert ask(tmp_path, [*noise, *torch_on(T4), *noise]).works


def test_a_hang_ends_with_all_that_was_started(tmp_path) -> None:
    start = "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], start_new_session={own}).pid"
    lines = [
        *torch_begins(),
        f"open({str(tmp_path / 'pids')!r}, 'w').write(repr([os.getpid(), {start.format(own=False)}, "
        f"{start.format(own=True)}]))",
        *on_card(0, P100),
        "hang",
    ]
    answer = ask(tmp_path, lines, limit_s=1.0)
    assert answer.trouble_code == "hung"
    assert answer.trouble.startswith(
        "hung while running a kernel on cuda:0 (Tesla P100-PCIE-16GB): nothing came back"
    )
    pids = json.loads((tmp_path / "pids").read_text())
    assert len(pids) == 3
    assert all(gone(pid) for pid in pids)


def test_each_stage_has_its_time_anew(tmp_path) -> None:
    slow = [line for number in range(4) for line in ({"stage": f"number {number}"}, "time.sleep(1)")]
    answer = ask(tmp_path, [*torch_begins(), *slow, {"done": True}], limit_s=3.0)
    assert answer.trouble == ""


def test_an_import_may_take_longer_than_a_kernel(tmp_path) -> None:
    lines = [*torch_begins()[:1], "time.sleep(3)", *torch_on(T4)]
    assert ask(tmp_path, lines, limit_s=2.0, import_limit_s=60.0).works


def test_a_grandchild_that_keeps_the_pipe_open_does_not_hold_the_answer_up(tmp_path) -> None:
    stray = "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)']).pid"
    lines = [*torch_on(T4), f"open({str(tmp_path / 'pid')!r}, 'w').write(str({stray}))"]
    assert ask(tmp_path, lines, limit_s=60.0).works
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_closed_pipe_of_a_process_that_lives_on_is_a_hang(tmp_path) -> None:
    answer = ask(tmp_path, [*torch_begins(), "os.close(1)", "hang"], limit_s=0.5)
    assert answer.trouble_code == "hung"


def test_it_can_be_ended_early(tmp_path) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    assert ask(tmp_path, [*torch_begins(), "hang"], limit_s=500.0, stop=stop).trouble_code == "hung"


def test_a_program_that_cannot_be_started_is_an_answer(tmp_path) -> None:
    answer = probe("torch", command=[str(tmp_path / "nothing")])
    assert answer.trouble == "cannot start a process: No such file or directory"


def test_the_real_child_meets_a_card_without_code(tmp_path) -> None:
    kernel = "raise RuntimeError('CUDA error: no kernel image is available for execution on the device')"
    answer = probe("torch", environment=fake_torch(tmp_path, kernel))
    (device,) = answer.devices
    assert (answer.trouble, answer.architectures) == ("", ("sm_70", "sm_75"))
    assert (answer.version, answer.reason) == ("2.10.0+cu128", "")
    assert (device.name, device.capability, device.works) == ("Tesla P100-PCIE-16GB", (6, 0), False)
    assert device.error == "RuntimeError: CUDA error: no kernel image is available for execution on the device"


def test_the_real_child_compares_with_the_cpu(tmp_path) -> None:
    good, bad, nan = (tmp_path / name for name in ("good", "bad", "nan"))
    for folder in (good, bad, nan):
        folder.mkdir()
    assert probe("torch", environment=fake_torch(good)).works
    wrong = probe("torch", environment=fake_torch(bad, off="0.5")).devices[0]
    assert (wrong.right, wrong.error) == (False, "")
    lost = probe("torch", environment=fake_torch(nan, off="float('nan')")).devices[0]
    assert (lost.right, lost.off) == (False, 1e9)


def test_the_real_child_asks_cuda_why_it_sees_nothing(tmp_path) -> None:
    answer = probe("torch", environment=fake_torch(tmp_path, available="False"))
    assert answer.devices == ()
    assert answer.reason == "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."


def test_the_real_child_ends_when_the_one_that_asks_is_killed(tmp_path) -> None:
    kernel = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid())); time.sleep(600)"
    environment = fake_torch(tmp_path, kernel)
    program = "from perdure.hardware.probe import probe; probe('torch')"
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment)
    pid = _written(tmp_path / "pid")
    parent.kill()
    parent.wait()
    assert gone(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_doctor_that_is_interrupted_leaves_nothing_behind(tmp_path, number: signal.Signals) -> None:
    kernel = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid())); time.sleep(600)"
    environment = {**fake_torch(tmp_path, kernel), "PERDURE_REACH": "off"}
    program = "import sys; from perdure.cli.main import main; sys.exit(main(['doctor']))"
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    pid = _written(tmp_path / "pid")
    parent.send_signal(number)
    out, _ = parent.communicate(timeout=60)
    assert (parent.returncode, out) == (130 if number == signal.SIGINT else -number, b"")
    assert gone(pid)


@pytest.mark.parametrize(
    ("kernel", "code", "states"),
    [
        ("pass", 0, {"torch": "ok", "gpu": "ok"}),
        ("raise RuntimeError('CUDA error: no kernel image is available')", 1, {"torch": "failed", "gpu": "failed"}),
    ],
)
def test_the_command_as_a_whole(fake_folder: Path, tmp_path: Path, kernel: str, code: int, states) -> None:
    """The installed command, NVML by the loader, the real child; played are the card and torch."""
    fake = FakeNvml(fake_folder)
    fake.set(cards(P100))
    environment = {**fake_torch(tmp_path, kernel), **fake.environment, "PERDURE_REACH": "off"}
    for name in ("tensorflow", "keras"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    program = (
        "import sys; from perdure.cli.main import main; sys.exit(main(['doctor', '--require', 'gpu', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == code
    assert {name: checks[name]["state"] for name in states} == states
    assert checks["card 0"]["fact"] == "Tesla P100-PCIE-16GB, 17.2 GB, compute capability 6.0, cuda:0"
    assert checks["keras"]["fact"] == (
        "failed while importing keras: ImportError: libcudart.so.12: cannot open shared object file"
    )


def _written(path: Path) -> int:
    for _ in range(600):
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.05)
    raise AssertionError(f"nobody wrote {path}")


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((6, 0), MODERN, False),
        ((7, 5), MODERN, True),
        ((8, 9), MODERN, True),  # by sm_86
        ((9, 0), ["sm_90a"], True),
        ((9, 1), ["sm_90a"], False),
        ((12, 0), ["sm_80", "compute_90"], True),  # the driver translates
        ((7, 0), ["sm_75"], False),
        ((7, 0), ["compute_80"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 0), ["sm_100f"], False),
        ((9, 0), ["gfx90a"], True),
        ((9, 0), [], True),
    ],
)
def test_which_build_has_code_for_which_card(capability, architectures, runs: bool) -> None:
    assert has_code_for(capability, architectures) is runs


@given(st.tuples(st.integers(5, 12), st.integers(0, 9)))
def test_a_build_for_just_this_card_runs_on_it_and_one_for_a_later_major_does_not(capability) -> None:
    major, minor = capability
    assert has_code_for(capability, [f"sm_{major}{minor}"])
    assert not has_code_for(capability, [f"sm_{major + 1}{minor}", f"compute_{major + 1}{minor}"])
