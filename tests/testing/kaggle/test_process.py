"""The emulator as a process of its own: killed and started again, it goes on where it was."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest

from perdure.core.errors import PlatformError
from perdure.testing.kaggle import Emulator, Fault, Rules, Switches

SLOW = "import time; print('begun', flush=True); time.sleep(1.5); open('left', 'w').write('mine'); print('done')"


class Running:
    """An emulator in a process of its own."""

    def __init__(self, folder, *flags):
        self.folder = folder
        self._before = self._told().get("pid")
        command = [sys.executable, "-m", "perdure.testing.kaggle", "--folder", str(folder), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert "emulated Kaggle at http://127.0.0.1:" in self.process.stdout.readline()
        self.told = self._told()

    def _told(self):
        try:
            return json.loads((self.folder / "emulator.json").read_text())
        except FileNotFoundError:
            return {}

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_emulator_that_is_killed_goes_on_when_it_is_started_again(tmp_path, client_of, number):
    first = Running(tmp_path / "emulator", "--window-s", "30", "--gpu-quota-s", "60")
    client = client_of(first.told["environment"])
    client.push("first-script", SLOW)
    client.wait("first-script", ("RUNNING",))
    first.end(number)
    second = Running(tmp_path / "emulator")
    try:
        assert second.told["port"] == first.told["port"]  # sessions that run know it
        assert (second.told["window_s"], second.told["rules"]["gpu_quota_s"]) == (30, 60)
        assert client.wait("first-script")[0] == "COMPLETE"
        assert client.log("first-script").startswith("begun\ndone\n[NbConvertApp]")
        client.output("first-script", tmp_path / "out")
        assert (tmp_path / "out/left").read_text() == "mine"
    finally:
        second.end(signal.SIGTERM)


def test_a_session_that_ended_while_the_emulator_was_away_is_found_ended(tmp_path, client_of):
    with Emulator(tmp_path / "emulator", keep_running=True) as emulator:
        client_of(emulator.environment()).push("first-script", SLOW)
        while emulator.sessions()[0].stage == "queued":
            time.sleep(0.02)
    time.sleep(2.0)
    with Emulator(tmp_path / "emulator") as emulator:
        assert client_of(emulator.environment()).wait("first-script")[0] == "COMPLETE"
        assert emulator.sessions()[0].ended_s < time.time()


def test_a_session_started_just_before_the_emulator_died_is_not_started_twice(tmp_path, client_of):
    with Emulator(tmp_path / "emulator", keep_running=True) as emulator:
        client_of(emulator.environment()).push("first-script", SLOW)
        while emulator.sessions()[0].stage == "queued":
            time.sleep(0.02)
    document = json.loads((tmp_path / "emulator/world.json").read_text())
    (session,) = document["sessions"].values()
    session.update(stage="queued", started_s=None, words=[])  # as if it had died before it noted the start
    (tmp_path / "emulator/world.json").write_text(json.dumps(document))
    with Emulator(tmp_path / "emulator") as emulator:
        client = client_of(emulator.environment())
        assert client.wait("first-script")[0] == "COMPLETE"
        assert client.log("first-script").count("begun") == 1


def test_what_a_push_left_that_died_with_the_emulator_is_in_nobodys_way(tmp_path, client_of):
    with Emulator(tmp_path / "emulator") as emulator:
        left = emulator.folder / "sessions" / str(emulator.store.world.next_id + 2)
        left.mkdir(parents=True)
        (left / "script.py").write_text("print('never accepted')")
        client = client_of(emulator.environment())
        assert client.push("first-script").error == ""
        assert [str(each.id) for each in emulator.sessions()] == [left.name]
        client.wait("first-script")
        assert client.log("first-script").startswith("done\n")


def test_closing_the_emulator_ends_its_sessions_unless_they_are_to_go_on(tmp_path, client_of):
    with Emulator(tmp_path / "emulator") as emulator:
        source = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
        client_of(emulator.environment()).push("first-script", source)
        pid = emulator.store.session_folder(emulator.sessions()[0]) / "host/state.json"
        while emulator.sessions()[0].stage == "queued":
            time.sleep(0.02)
    assert json.loads(pid.read_text())["state"] == "ended"


def test_a_folder_is_for_one_emulator(tmp_path):
    with Emulator(tmp_path), pytest.raises(PlatformError, match="another emulator works in"):
        Emulator(tmp_path)


def test_switches_of_a_process_are_set_from_outside(tmp_path, client_of):
    running = Running(tmp_path / "emulator")
    try:
        client = client_of(running.told["environment"])
        from perdure.testing.kaggle.switches import SwitchBoard

        SwitchBoard(tmp_path / "emulator/switches.json").set(Switches(refusals=("quota",)))
        assert "weekly GPU quota" in client.push("first-script").error
    finally:
        running.end(signal.SIGTERM)


def test_nothing_of_it_reaches_beyond_this_machine(tmp_path):
    with Emulator(tmp_path, Rules()) as emulator:
        told = emulator.environment()
        assert told["KAGGLE_API_ENVIRONMENT"] == "LOCALHOST"
        assert told["HTTPS_PROXY"] == told["https_proxy"] == "http://127.0.0.1:9"
        assert told["NO_PROXY"] == told["no_proxy"] == ""
        listening = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True).stdout
        port = f"{emulator.port:04X}"
        (address,) = {
            line.split()[1]
            for line in listening.splitlines()[1:]
            if line.split()[1].endswith(f":{port}") and line.split()[3] == "0A"
        }
        assert address == f"0100007F:{port}"


@pytest.mark.parametrize("kind", [Rules, Switches, Fault])
def test_every_rule_and_switch_is_described(kind):
    page = Path(__file__).parents[3].joinpath("docs/reference/emulator.md").read_text()
    for each in fields(kind):
        assert f"        {each.name}: " in kind.__doc__
        assert kind is Fault or f"`{each.name}`" in page
