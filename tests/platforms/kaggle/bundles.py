"""Bundles for sessions that do what their order says, and waiting for something."""

import io
import random
import tarfile
import time

PROGRAM = """
import json, sys
exec(json.load(open(sys.argv[1]))["do"])
"""


def pack(path, more_bytes=0):
    """A bundle in which the relay's part of a session just does what the order says."""
    files = {
        "library/perdure/__init__.py": b"",
        "library/perdure/relay/__init__.py": b"",
        "library/perdure/relay/inside/__init__.py": b"",
        "library/perdure/relay/inside/__main__.py": PROGRAM.encode(),
    }
    if more_bytes:
        files["project/data.bin"] = random.Random(0).randbytes(more_bytes)
    with tarfile.open(path, "w:xz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def until(is_so, within_s=60.0):
    """Waits for something, and fails where it never comes."""
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
