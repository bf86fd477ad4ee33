# The begin of a hosted session: unpacks the bundle and runs the relay's part that is in it.
# Its text is the head of the source that is pushed (see source.py): one file, the standard library only.
from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections import deque
from typing import IO, Any

MARKER = "perdure-session.json"
TAIL_LINES = 40
TAIL_LINE_LENGTH = 500
LAST_LINES_S = 5.0


def main(order_json: str, cargo: str, name: str, digest: str) -> int:
    """Run the session; returns its exit code."""
    order = json.loads(order_json)
    working = os.getcwd()
    remove_marker(working)
    note(working, order, status="starting", started_s=time.time())
    scratch = tempfile.mkdtemp(prefix="perdure-relay-")
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        unpack(find_cargo(order, cargo, name, digest), scratch)
        code = run(scratch, order_json, working, tail)
    except Exception as error:  # noqa: BLE001 - whatever it is, the marker must say it
        traceback.print_exc()
        reason = f"the session could not begin: {type(error).__name__}: {error}"
        note(working, order, status="failed", reason=reason, exit_code=1, ended_s=time.time())
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    close(working, order, code, tail)
    return code


def find_cargo(order: dict[str, Any], cargo: str, name: str, digest: str) -> bytes:
    """The bundle: out of this file, or from an input that may be mounted late."""
    if cargo:
        data = base64.b64decode(cargo)
        if not fits(data, digest):
            raise ValueError("the bundle in the source does not have its digest")
        return data
    end = time.monotonic() + float(order.get("mount_wait_s", 120.0))
    seen = []
    while True:
        for path in paths_named(name):
            data = b""
            # a mount that is not ready yet is looked at again
            with contextlib.suppress(OSError), open(path, "rb") as file:
                data = file.read()
            if fits(data, digest):
                return data
            seen.append(path)
        if time.monotonic() >= end:
            raise FileNotFoundError(
                f"the bundle {name} is not below {' or '.join(roots())}"
                + (f"; without the right digest: {', '.join(sorted(set(seen)))}" if seen else "")
            )
        time.sleep(1.0)


def roots() -> list[str]:
    """Where inputs are mounted."""
    told = [path for path in os.environ.get("PERDURE_INPUTS", "").split(os.pathsep) if path]
    return told or ["/kaggle/input"]


def paths_named(name: str) -> list[str]:
    """The files of this name below the inputs, at most six folders deep: data sets can be huge."""
    found = []
    for root in roots():
        for folder, folders, names in os.walk(root):
            if folder[len(root) :].count(os.sep) >= 6:
                folders.clear()
            if name in names:
                found.append(os.path.join(folder, name))
    return found


def fits(data: bytes, digest: str) -> bool:
    """Whether the data has this digest."""
    return "sha256:" + hashlib.sha256(data).hexdigest() == digest


def unpack(data: bytes, scratch: str) -> None:
    """Unpack the bundle, outside of the working folder: everything in there becomes output."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(scratch, filter="data")
        else:  # before 3.11.4
            archive.extractall(scratch)


def run(scratch: str, order_json: str, working: str, tail: deque[str]) -> int:
    """Run the relay's part of the session, and hand on what it prints and the signals that come."""
    path = os.path.join(scratch, "order.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(order_json)
    before = os.environ.get("PYTHONPATH")
    library = os.path.join(scratch, "library")
    python_path = library + (os.pathsep + before if before else "")
    environment = {**os.environ, "PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-P", "-m", "perdure.relay.inside", path]
    # through a pipe, because what a child writes by itself does not reach the log of a notebook's kernel
    process = subprocess.Popen(
        command,
        cwd=working,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    handed = hand_on_signals(process)
    # beside, because an orphan of a killed child may keep the pipe open for ever
    reader = threading.Thread(target=copy_lines, args=(process.stdout, tail), daemon=True)
    reader.start()
    try:
        code = process.wait()
        reader.join(LAST_LINES_S)
        return code
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for number, handler in handed.items():
            signal.signal(number, handler)


def hand_on_signals(process: subprocess.Popen[bytes]) -> dict[int, Any]:
    """Hand SIGTERM, SIGINT and SIGHUP on to the child; returns the handlers that were there before."""
    before: dict[int, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        try:
            before[number] = signal.signal(number, lambda got, _: process.send_signal(got))
        except (ValueError, OSError):  # not the main thread: whoever owns it hears them
            break
    return before


def copy_lines(stream: IO[bytes], tail: deque[str]) -> None:
    """Print what the child prints, as it comes, and keep the last lines."""
    rest = b""
    while data := os.read(stream.fileno(), 65536):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > 65536:  # progress bars that never end their line
            lines, rest = [*lines, rest], b""
        if lines:
            keep_and_print(lines, tail)
    if rest:
        keep_and_print([rest], tail)


def keep_and_print(lines: list[bytes], tail: deque[str]) -> None:
    """One piece of output, in whole lines."""
    texts = [line.decode("utf-8", "replace") for line in lines]
    for text in texts:
        shown = text.rstrip("\r").rpartition("\r")[2]
        if shown.strip() and not shown.startswith("@perdure "):
            tail.append(shown[:TAIL_LINE_LENGTH])
    try:
        # ASCII with replacements at worst: a log that cannot hold a character must not end the training
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        joined = "\n".join(texts) + "\n"
        sys.stdout.write(joined.encode(encoding, "replace").decode(encoding, "replace"))
        sys.stdout.flush()
    except (OSError, ValueError):
        pass  # nobody listens any more: go on reading, or the child would block


def close(working: str, order: dict[str, Any], code: int, tail: deque[str]) -> None:
    """Put into the marker what only this process knows."""
    status = read_marker(working).get("status")
    if status in ("starting", "running"):  # the child was killed before it could say how it ended
        reason = f"the session's process was killed by signal {-code}" if code < 0 else f"it ended with code {code}"
        note(working, order, status="failed", reason=reason, exit_code=code, ended_s=time.time(), tail=list(tail))
    elif status in ("failed", "refused"):
        note(working, order, tail=list(tail))


def read_marker(working: str) -> dict[str, Any]:
    """The marker as it is; empty if there is none."""
    try:
        with open(os.path.join(working, MARKER), encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def remove_marker(working: str) -> None:
    """Take away what another session left: this one speaks for itself."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(working, MARKER))


def note(working: str, order: dict[str, Any], **what: Any) -> None:
    """Write into the marker: which session this is, and what is given."""
    identity = {"format": 1, "relay": order["relay"], "session": order["session"], "slug": order["slug"]}
    accelerator = {"asked": order.get("accelerator", {})}
    value = {"accelerator": accelerator, **read_marker(working), **identity, **what}
    path = os.path.join(working, MARKER)
    try:
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
        os.replace(path + ".tmp", path)
    except OSError as error:
        print(f"perdure: warning: {path} cannot be written: {error}", file=sys.stderr)
