"""How many training scenarios does Perdure resume exactly? Makes its line of the table in the README.

    .venv/bin/python benchmarks/exactness.py [SCENARIO]...

Each scenario of tests/cases/worlds.py is driven through the public surface, with a checkpoint after every step.
It is killed with SIGKILL at three different calls, and restarted in a new process under another seed. It is exact
if all three ends have the same bits as its uninterrupted run: parameters, buffers, optimizer, scheduler, the rest.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cases.worlds import SCENARIOS
from training.driving import session
from training.processes import Died, in_new_process

OTHER_SEED = 987654


def ends_alike(name: str, folder: Path) -> list[bool]:
    """Whether the scenario, killed at each of its cuts and resumed, ends as its uninterrupted run."""
    want, _ = in_new_process(session, name, str(folder / "straight"), 0, None)
    return [ends_as(want, name, cut, folder / f"cut-{cut}") for cut in SCENARIOS[name]["cuts"]]


def ends_as(want: str, name: str, cut: int, root: Path) -> bool:
    """Whether one kill and one resume end with this digest of the whole world."""
    in_new_process(session, name, str(root), 0, cut, expect_kill=True)
    try:
        return in_new_process(session, name, str(root), OTHER_SEED, None)[0] == want
    except Died:
        return False


def main(names: list[str]) -> int:
    """Print a line a scenario, then the sum; 1 if any is not exact."""
    warnings.simplefilter("ignore")
    logging.getLogger("perdure").addHandler(logging.NullHandler())  # or each session states where it is
    names = names or list(SCENARIOS)
    exact = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            ends = ends_alike(name, Path(folder))
        exact += all(ends)
        print(f"{name:<28} {'exact' if all(ends) else f'{sum(ends)} of {len(ends)} ends exact'}", flush=True)
    print(f"\nexact: {exact} of {len(names)}")
    return int(exact < len(names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
