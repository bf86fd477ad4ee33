"""An emulator, and the unmodified official client in a process that can reach nothing else."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from perdure.testing.kaggle import Emulator, Rules

PUSH = """
import json, pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "script.py").write_text(SOURCE)
meta = {"id": f"emulated-user/{SLUG}", "title": SLUG, "code_file": "script.py", "language": "python",
        "kernel_type": "script", "is_private": True, "enable_internet": False, **META}
(folder / "kernel-metadata.json").write_text(json.dumps(meta))
r = api.kernels_push(str(folder), timeout=TIMEOUT)
result = {"ref": r.ref, "error": r.error, "version": r.version_number, "url": r.url, "id": r.kernel_id,
          "datasets": r.invalid_dataset_sources, "kernels": r.invalid_kernel_sources,
          "models": r.invalid_model_sources, "competitions": r.invalid_competition_sources}
"""
STATUS = """
r = api.kernels_status(REF)
result = [r.status.name, r.failure_message]
"""
NOWHERE = "http://127.0.0.1:9"
ENDED = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")


class CallError(Exception):
    """What the client raised."""

    def __init__(self, answer):
        super().__init__(f"{answer['error']}: {answer['message']}")
        self.kind, self.status, self.text = answer["error"], answer["status"], answer["text"]
        self.headers = answer["headers"]


class Process:
    """A process that holds the unmodified client; one for all tests, since importing it takes long."""

    def __init__(self, home):
        self.home = home
        self.base = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KAGGLE_CONFIG_DIR": str(home),
            "TMPDIR": str(home),
        }
        nothing = {"KAGGLE_API_ENVIRONMENT": "LOCALHOST", "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE}
        login = {"KAGGLE_USERNAME": "nobody", "KAGGLE_KEY": "none"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("client.py"))],
            env={**self.base, **nothing, **login},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, code):
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Client:
    """The client, signed in at an emulator."""

    def __init__(self, process, environment):
        self._process = process
        self.environment = {**process.base, **environment}
        self.call("import os; os.environ.update(ENV); api.authenticate()", ENV=environment)

    def call(self, code, **values):
        """Run code with ``api`` there, and give what it calls ``result``."""
        head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        answer = self._process.call(head + code)
        if "error" in answer:
            raise CallError(answer)
        return answer["result"]

    def push(self, slug, source="print('done')", timeout=None, **meta):
        values = self.call(PUSH, SLUG=slug, SOURCE=source, META=meta, TIMEOUT=timeout)
        return SimpleNamespace(**values)

    def status(self, slug):
        return self.call(STATUS, REF=f"emulated-user/{slug}")

    def wait(self, slug, words=ENDED):
        while (status := self.status(slug))[0] not in (*words, *ENDED):
            time.sleep(0.05)
        return status

    def output(self, slug, folder, **more):
        code = "result = api.kernels_output(REF, FOLDER, **MORE)[0]"
        return self.call(code, REF=f"emulated-user/{slug}", FOLDER=str(folder), MORE=more)

    def log(self, slug):
        """What a session that has ended printed, as one text; its records need not be lines."""
        text = self.call("result = api.kernels_logs(REF)", REF=f"emulated-user/{slug}")
        return "".join(each["data"] for each in json.loads(text)) if text else ""

    def cli(self, *arguments):
        """The command line of the official client."""
        command = [sys.executable, "-m", "kaggle", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)


@pytest.fixture(scope="session")
def process(tmp_path_factory):
    process = Process(tmp_path_factory.mktemp("client"))
    yield process
    process.close()


@pytest.fixture
def kaggle(tmp_path, process):
    """Starts emulators: ``kaggle(rules..., switches=Switches(...))`` gives the emulator and a client for it."""
    opened = []

    def start(folder="emulator", switches=None, **rules):
        emulator = Emulator(tmp_path / folder, Rules(**rules) if rules else None, switches)
        opened.append(emulator.__enter__())
        return emulator, Client(process, emulator.environment())

    yield start
    for emulator in opened:
        emulator.close()
        assert not (emulator.folder / "trouble.log").exists(), (emulator.folder / "trouble.log").read_text()


@pytest.fixture
def client_of(process):
    """A client for the emulator that an environment leads to."""
    return lambda environment: Client(process, environment)
