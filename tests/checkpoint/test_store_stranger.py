"""A reader written from docs/format.md alone, without a line of the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from snapshots import open_store, snapshot

STRANGER = """
import json, pathlib, re, sys
import xxhash
digest = xxhash.xxh3_128_hexdigest

def manifest(folder):
    data = (folder / "manifest.json").read_bytes()
    body, tail = data[: data.rindex(b',\\n"digest": "')], data[-36:]
    fields = json.loads(data)
    assert fields["format_version"] == 1 and fields["digest"] == digest(body) and tail == b'%s"\\n}\\n' % digest(body).encode()
    return fields

def newer(fields):
    p = fields["position"]
    return p["step"], p["epoch"], p["call"], p["batch"], p["finished"], fields["seq"]

run = pathlib.Path(sys.argv[1])
newest = max((manifest(f) for f in (run / "checkpoints").iterdir() if re.fullmatch(r"step-[0-9]+[\\w-]*", f.name)), key=newer)
for file, size in newest["files"].items():
    data = (run / file).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    assert len(data) == size and digest(data[:start]) == pathlib.Path(file).stem and start % 64 == 0
    digests = header.pop("__metadata__")["xxh3_128"].split()
    regions = sorted((tuple(r["data_offsets"]) for r in header.values()))
    assert [digest(data[start + b : start + e]) for b, e in regions] == digests
out = {}
for e in newest["entries"]:
    data = (run / e["file"]).read_bytes()[e["offset"] : e["offset"] + e["nbytes"]]
    assert digest(data) == e["digest"]
    out[e["name"]] = data.hex()
print(json.dumps({"step": newest["step"], "values": newest["values"], "entries": out}))
"""


def test_a_stranger_can_read_it(tmp_path: Path):
    store = open_store(tmp_path / "digits")
    for step in (1, 2, 3):
        store.save(snapshot(step))
    script = tmp_path / "stranger.py"
    script.write_text(STRANGER)
    done = subprocess.run([sys.executable, "-I", script, tmp_path / "digits"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = snapshot(3)
    assert json.loads(done.stdout) == {
        "step": 3,
        "values": expected.values,
        "entries": {buffer.name: bytes(buffer.data).hex() for buffer in expected.buffers},
    }
