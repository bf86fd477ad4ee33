"""A trainer that is not ours: writes ``runs/exp/last.pt`` as torch does (a zip file), in place.

Arguments: ``--steps N``, ``--resume FILE``, ``--pace SECONDS``, ``--torn-from N`` (from that step on each file is cut in half).
"""

import argparse
import time
import zipfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--resume")
parser.add_argument("--pace", type=float, default=0.7)
parser.add_argument("--torn-from", type=int, default=10**9)
options = parser.parse_args()
step = 0
if options.resume:
    with zipfile.ZipFile(options.resume) as archive:
        step = int(archive.read("last/data.pkl").split()[0])
    print(f"resumed at {step} from {options.resume}", flush=True)
folder = Path("runs/exp")
folder.mkdir(parents=True, exist_ok=True)
while step < options.steps:
    step += 1
    with zipfile.ZipFile(folder / "last.pt", "w") as archive:
        archive.writestr("last/data.pkl", f"{step} " + "x" * 2000)
    if step >= options.torn_from:
        data = (folder / "last.pt").read_bytes()
        (folder / "last.pt").write_bytes(data[: len(data) // 2])
    time.sleep(options.pace)
print("done", flush=True)
