"""The client's process can hang, die or babble: a call still ends, with the right error."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from perdure.core.errors import (
    CredentialsError,
    MissingExtraError,
    PlatformError,
    TransientPlatformError,
    UncertainError,
)
from perdure.platforms.kaggle import client as module
from perdure.platforms.kaggle.client import Client
from perdure.testing.kaggle import Fault
from platforms.kaggle.bundles import until

HEAD = """
import json, os, sys, time
def answer(**values): print(json.dumps(values), flush=True)
open("starts", "a").write("x")
for line in sys.stdin:
    call = json.loads(line)
    method, arguments = call["method"], call["arguments"]
"""


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """A client whose process is a script of the test."""
    monkeypatch.setattr(module, "_SPARE_S", 0.2)
    made = []

    def make(body, limit_s=5.0):
        script = tmp_path / "child.py"
        script.write_text(HEAD + body)
        made.append(
            Client(dict(os.environ), command=(sys.executable, str(script)), limit_s=limit_s, start_limit_s=5.0)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def wait_gone(pid):
    until(lambda: not psutil.pid_exists(pid))


def starts(tmp_path):
    return len((tmp_path / "starts").read_text())


@pytest.fixture
def own(tmp_path):
    """The real client's program, without credentials and without any way out."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "",
    }
    made = []

    def make(**more):
        made.append(Client(environment | more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_many_calls_are_answered_by_one_process(scripted, tmp_path):
    client = scripted("    answer(answer={'said': arguments['text'] * 100000})\n")
    for number in range(5):
        assert client.call("echo", "x", text=f"é{number}")["said"] == f"é{number}" * 100000
    assert starts(tmp_path) == 1


@pytest.mark.parametrize(("acts", "error"), [(True, UncertainError), (False, TransientPlatformError)])
def test_one_that_hangs_is_killed_and_the_next_call_gets_another(scripted, tmp_path, acts, error):
    client = scripted("    time.sleep(60) if method == 'hang' else answer(answer={'pid': os.getpid()})\n", 0.2)
    pid = client.call("ask", "x")["pid"]
    with pytest.raises(TransientPlatformError) as caught:
        client.call("hang", "x", acts=acts)
    assert type(caught.value) is error
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert client.call("ask", "x")["pid"] != pid
    assert starts(tmp_path) == 2


@pytest.mark.parametrize(
    "end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "raise ValueError('broken')", "print('no json')"]
)
def test_one_that_dies_or_babbles_in_a_call_leaves_it_uncertain(scripted, end):
    client = scripted(f"    if method == 'end': {end}\n    answer(answer={{}})\n")
    with pytest.raises(UncertainError):
        client.call("end", "alice/job-1", acts=True)
    assert client.call("ask", "x") == {}


def test_what_it_said_last_is_told(scripted):
    client = scripted("    sys.exit('the disk is on fire')\n")
    with pytest.raises(TransientPlatformError, match="the disk is on fire"):
        client.call("ask", "x")


def test_a_call_that_gets_on_is_not_ended(scripted, tmp_path):
    body = """
    for size in range(8):
        open(arguments["path"], "a").write("x")
        time.sleep(0.2)
    answer(answer={})
"""
    path = tmp_path / "growing"
    client = scripted(body, 0.5)
    client.call("load", "x", alive=lambda: path.stat().st_size if path.exists() else 0, path=str(path))
    assert path.stat().st_size == 8
    assert starts(tmp_path) == 1


def test_a_login_that_ran_out_is_renewed_once(scripted, tmp_path):
    client = scripted("""
    old = len(open("starts").read()) == 1 and method != "hello"
    answer(**({"fault": {"kind": "http", "status": 401}} if old else {"answer": {"ok": True}}))
""")
    client.call("hello", "x")
    assert client.call("push", "x", acts=True)["ok"]
    assert starts(tmp_path) == 2


def test_credentials_that_are_not_accepted_are_asked_for_again_at_the_next_call(scripted, tmp_path):
    client = scripted("    answer(fault={'kind': 'http', 'status': 401})\n")
    for _ in range(2):
        with pytest.raises(CredentialsError):
            client.call("status", "x")
    assert starts(tmp_path) == 2


def test_a_program_that_cannot_be_started_is_an_error_of_ours(tmp_path):
    client = Client({}, command=(str(tmp_path / "nothing"),))
    with pytest.raises(PlatformError, match="cannot start"):
        client.call("status", "x")


def test_an_interrupted_call_does_not_answer_the_next_one(scripted):
    client = scripted("    time.sleep(0.3); answer(answer={'method': method})\n")

    def interrupt():
        raise KeyboardInterrupt

    client.call("first", "x")
    with pytest.raises(KeyboardInterrupt):
        client.call("second", "x", alive=interrupt)
    assert client.call("third", "x")["method"] == "third"


def test_too_old_a_client_is_named(scripted):
    client = scripted("    answer(answer={'user': 'alice', 'way': '', 'version': '2.0.2'})\n")
    with pytest.raises(MissingExtraError, match="2.0.2 is too old"):
        client.hello()


def test_without_credentials_the_real_client_neither_asks_nor_exits(own):
    client = own()
    for _ in range(2):
        with pytest.raises(CredentialsError) as caught:
            client.hello()
        assert "~/.kaggle/access_token" in caught.value.hint


def test_a_key_is_enough_to_know_the_user(own):
    said = own(KAGGLE_USERNAME="alice", KAGGLE_KEY="secret", VERBOSE="true").hello()
    assert said["user"] == "alice" and said["way"] == "LEGACY_API_KEY"


@pytest.mark.parametrize("more", [{"KAGGLE_API_TOKEN": "secret"}, {"KAGGLE_USERNAME": "a", "KAGGLE_KEY": "secret"}])
def test_a_server_that_is_not_reached_has_done_nothing_for_certain(own, more):
    with pytest.raises(TransientPlatformError) as caught:
        own(**more).call("delete", "a/job-one", acts=True, ref="a/job-one")
    assert type(caught.value) is TransientPlatformError
    assert "not reached" in caught.value.what and "refused" in caught.value.what
    assert "secret" not in str(caught.value)


def test_its_process_ends_with_ours(scripted, tmp_path):
    client = scripted("    answer(answer={'pid': os.getpid()})\n")
    pid = client.call("ask", "x")["pid"]
    client.close()
    wait_gone(pid)


HELPER = """
import json, os, sys
from perdure.platforms.kaggle.client import Client
from perdure.testing.kaggle import Fault
client = Client(json.loads(sys.argv[1]))
client.hello()
print(client._process._child.pid, flush=True)
client.call("quota", "x")
"""


def test_its_process_ends_in_the_middle_of_a_call_when_ours_is_killed(emulator):
    """Otherwise a push of a controller that is dead could arrive when another has given it up."""
    emulator.switch(faults=(Fault("*", "stall", stall_s=60.0, times=0),))
    told = json.dumps(dict(os.environ) | emulator.environment())
    with subprocess.Popen([sys.executable, "-c", HELPER, told], stdout=subprocess.PIPE, text=True) as helper:
        pid = int(helper.stdout.readline())
        child = psutil.Process(pid)
        until(child.net_connections)  # the call is under way
        helper.kill()
    wait_gone(pid)
