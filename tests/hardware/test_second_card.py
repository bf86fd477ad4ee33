"""How to use both cards: what the remedy says is what works where others were trapped."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys

from perdure.hardware.remedies import use_more

LAUNCH = re.search(r"torchrun ((?:--\S+ ?)+?)\d", use_more(2, "1"))


def test_b51_b52_a_script_is_named_and_not_a_cell_and_a_free_port_is_found() -> None:
    assert "needs a script, not a cell" in use_more(2, "1")  # spawned workers do not find classes of a cell
    assert "--nproc-per-node 2" in use_more(2, "1")
    assert "--nproc-per-node 8" in use_more(8, "1")


def test_b52_the_launch_that_is_advised_works_though_the_usual_port_is_taken(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint('ranks', dist.get_world_size())\n"
        "dist.destroy_process_group()\n"
    )
    assert LAUNCH is not None
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody else has it: taken all the same
            taken.bind(("127.0.0.1", 29500))
            taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *LAUNCH[1].split(), "1", str(script)],
            capture_output=True, text=True, timeout=120, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ranks 1" in done.stdout
