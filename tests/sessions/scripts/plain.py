"""A training that does not use Perdure: ``plain.py SECONDS [unseeded]``."""

import os
import sys
import time
from pathlib import Path

end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    time.sleep(0.02)
Path("out").mkdir()
Path("out/model.bin").write_bytes(os.urandom(8) if "unseeded" in sys.argv else b"weights")
