"""Somebody else's referee, ckpt-chaos, over a small training: nothing fails hard, diverges in silence or is lost.

It watches files that are opened by ``open``; what goes through ``os.write`` and renames it does not see. That half
is played by strace: the whole training process is killed at the n-th system call of each kind.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TRAIN = Path(__file__).parent / "train.py"
CALLS = (
    "write",
    "pwrite64",
    "pwritev",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "fallocate",
    "ftruncate",
)


def train(out, *before):
    command = [*before, sys.executable, str(TRAIN), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_crash_matrix_has_no_hard_fail_no_silent_divergence_and_no_lost_work(tmp_path):
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ckpt-chaos"),
            *("run", "--work", str(tmp_path / "work"), "--jobs", "1", "--timeout", "120", "--max-points", "40"),
            *("--modes", "before,torn", "--step-regex", r"resumed from step (\d+)"),
            *("--result-file", "{out}/final.pt", "--checkpoint-glob", "{out}/chaos/checkpoints/step-*"),
            *("--fail-on", "HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK", "--"),
            *(sys.executable, str(TRAIN), "--out", "{out}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "PASS" in done.stdout


def digest(out):
    return hashlib.sha256((out / "final.pt").read_bytes()).hexdigest()


def test_killed_at_system_calls_that_the_referee_does_not_see_the_training_ends_identically(tmp_path):
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    assert train(tmp_path / "straight").returncode == 0
    want = digest(tmp_path / "straight")
    log = tmp_path / "calls"
    train(tmp_path / "count", "strace", "-f", "-qq", "-o", str(log), "-e", "trace=" + ",".join(CALLS))
    lines = log.read_text().splitlines()
    counts = {call: sum(bool(re.search(rf"\b{call}\(", line)) for line in lines) for call in CALLS}
    outcomes = {}
    for call, count in counts.items():
        for nth in sorted({(count + 1) // 2, count} if count else ()):
            out = tmp_path / f"{call}-{nth}"
            inject = f"inject={call}:signal=SIGKILL:when={nth}"
            train(out, "strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)
            done = train(out)
            outcomes[f"{call} {nth}"] = (done.returncode, done.returncode == 0 and digest(out) == want)
    print(json.dumps(outcomes))
    assert {"write", "fsync", "rename", "unlink", "mkdir"} <= {point.split()[0] for point in outcomes}
    assert {point: result for point, result in outcomes.items() if result != (0, True)} == {}
