"""What goes wrong on Kaggle, switch by switch, through the real client."""

import time
from dataclasses import replace

import pytest

from perdure.core.errors import (
    CredentialsError,
    NotThereError,
    RefusedError,
    TransientPlatformError,
    UncertainError,
)
from perdure.platforms.kaggle import pushing as module
from perdure.platforms.kaggle.client import Client
from perdure.platforms.kaggle.platform import KagglePlatform
from perdure.platforms.source import CARGO_NAME, build_source
from perdure.testing.kaggle import Fault
from platforms.kaggle.bundles import pack, until

SLUG = "perdure-test-1a2b3c4d-1"
SLEEP = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def _queued(emulator):
    """Most of this needs no session that runs: they stay in the queue until ``ended`` waits for one."""
    emulator.switch(never_start=True)


def pushes(emulator):
    return [call for call in emulator.calls() if call.call == "SaveKernel" and call.status]


@pytest.mark.parametrize(
    ("switch", "code"),
    [
        ("gpu-slots", "slots-full"),
        ("cpu-slots", "slots-full"),
        ("quota", "quota-exhausted"),
        ("projected", "quota-projected"),
        ("not-found", "request"),
        ("A new reason that nobody knows.", "request"),
    ],
)
def test_a_refusal_in_an_accepted_answer_is_a_refusal_and_nothing_runs(kaggle, emulator, order, switch, code):
    emulator.switch(refusals=(switch,))
    with pytest.raises(RefusedError) as caught:
        kaggle.submit(order())
    assert caught.value.code == code
    assert emulator.sessions() == () and kaggle.find(SLUG) is None


def test_a_source_that_kaggle_finds_too_large_travels_as_a_data_set(kaggle, emulator, order, ended, cargo):
    """Whether it counts bytes as we do is not known, so its answer decides."""
    pack(cargo, more_bytes=5000)
    small = len(build_source(order().order, None, CARGO_NAME, "sha256:" + 64 * "0"))
    emulator.store.rules = replace(emulator.store.rules, source_bytes=small + 1000)
    handle = kaggle.submit(order())
    assert emulator.store.world.kernels[SLUG].versions["1"]["datasetDataSources"]
    assert ended(handle).state == "complete"


def test_a_source_that_is_too_large_in_any_case_is_refused(kaggle, emulator, order):
    emulator.store.rules = replace(emulator.store.rules, source_bytes=100)
    with pytest.raises(RefusedError) as caught:
        kaggle.submit(order())
    assert caught.value.code == "source-size" and emulator.sessions() == ()


@pytest.mark.parametrize("status", [500, 502, 503])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_server_error_to_a_push_is_uncertain_and_find_tells(kaggle, emulator, order, status, when):
    emulator.switch(faults=(Fault("SaveKernel", when=when, status=status),))
    with pytest.raises(UncertainError):
        kaggle.submit(order())
    assert (kaggle.find(SLUG) is not None) == (when == "after")
    assert len(pushes(emulator)) == 1, "it was not tried again"


@pytest.mark.parametrize("what", ["drop", "stall"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_no_answer_to_a_push_is_uncertain_and_find_tells(kaggle, emulator, order, monkeypatch, what, when):
    monkeypatch.setattr(module, "PUSH_LIMIT_S", 1.0)
    emulator.switch(faults=(Fault("SaveKernel", what, when=when, stall_s=20.0),))
    with pytest.raises(UncertainError):
        kaggle.submit(order(SLEEP))
    assert (kaggle.find(SLUG) is not None) == (when == "after")


@pytest.mark.parametrize("wait", ["7", ""])
def test_too_many_calls_are_transient_with_the_wait_that_was_asked_for(kaggle, emulator, order, wait):
    emulator.switch(faults=(Fault("SaveKernel", status=429, retry_after=wait),))
    with pytest.raises(TransientPlatformError) as caught:
        kaggle.submit(order())
    assert type(caught.value) is TransientPlatformError, "it was not carried out for certain"
    assert caught.value.retry_after_s == (7.0 if wait else None)
    assert emulator.sessions() == ()


def test_a_wait_that_is_given_as_a_date_is_understood(kaggle, emulator):
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    emulator.switch(faults=(Fault("GetAcceleratorQuotaStatistics", status=429, retry_after=date),))
    with pytest.raises(TransientPlatformError) as caught:
        kaggle.quota()
    assert 90 < caught.value.retry_after_s <= 100


@pytest.mark.parametrize("fault", [Fault("*", status=503), Fault("*", "drop"), Fault("*", "stall", stall_s=20.0)])
def test_a_call_that_only_reads_is_transient(emulator, fault):
    client = Client(emulator.environment(), limit_s=1.0)
    emulator.switch(faults=(fault,))
    with pytest.raises(TransientPlatformError) as caught:
        client.call("quota", "x")
    assert type(caught.value) is TransientPlatformError
    assert client.call("quota", "x")["kinds"]["gpu"]
    client.close()


def test_an_unknown_word_is_unknown_and_no_end(kaggle, emulator, order):
    handle = kaggle.submit(order(SLEEP))
    for word, state in [("PREEMPTED", "unknown"), ("NEW_SCRIPT", "unknown"), ("cancelAcknowledged", "stopped")]:
        emulator.switch(status_word=word)
        seen = kaggle.observe(handle)
        assert (seen.state, seen.ended) == (state, state == "stopped")
        assert seen.word.replace("_", "").lower() == word.replace("_", "").lower()
    kaggle.stop(handle, now=True)


@pytest.mark.parametrize("status", [403, 404])
def test_not_there_and_not_permitted_are_one_answer(kaggle, emulator, order, monkeypatch, status):
    monkeypatch.setattr(module, "ALONE_LOOKS", 1)
    emulator.switch(missing_status=status, visible_after_s=60.0)
    handle = kaggle.submit(order(SLEEP))
    assert kaggle.find(SLUG) is None, "it cannot be seen yet"
    assert kaggle.observe(handle).state == "missing"
    with pytest.raises(NotThereError):
        kaggle.logs(handle)
    emulator.switch(visible_after_s=0.0)
    assert kaggle.find(SLUG) == handle


def test_a_source_that_is_refused_in_an_accepted_push_ends_the_session(kaggle, emulator, order):
    with pytest.raises(RefusedError) as caught:
        kaggle.submit(order(SLEEP, datasets=("emulated-user/nothing",), competitions=("none",)))
    assert caught.value.code == "sources"
    assert "emulated-user/nothing, none" in caught.value.what
    assert kaggle.find(SLUG) is None
    (session,) = emulator.sessions()
    assert session.deleted


def test_where_that_session_cannot_be_ended_nobody_may_think_it_never_began(kaggle, emulator, order):
    emulator.switch(faults=(Fault("DeleteKernel", status=500),))
    with pytest.raises(UncertainError, match="could not be deleted"):
        kaggle.submit(order(SLEEP, datasets=("emulated-user/nothing",)))
    assert kaggle.find(SLUG) is not None


@pytest.mark.parametrize("hidden_s", [0.0, 0.5])
def test_a_push_that_started_two_sessions_leaves_none(kaggle, emulator, order, monkeypatch, hidden_s):
    monkeypatch.setattr(module, "ALONE_LOOKS", 100)
    emulator.switch(start_twice=1, visible_after_s=hidden_s)
    with pytest.raises(UncertainError, match="2 times"):
        kaggle.submit(order(SLEEP))
    assert [each.deleted for each in emulator.sessions()] == [True, True]
    assert kaggle.find(SLUG) is None


def test_all_pages_of_an_output_are_read(kaggle, emulator, order, ended, tmp_path):
    many = "for n in range(45): open(f'file-{n:02}.txt', 'w').write('x' * n)"
    emulator.switch(page_most=7)
    handle = kaggle.submit(order(many))
    ended(handle)
    sizes = {file.name: file.size_bytes for file in kaggle.files(handle)}
    assert {f"file-{n:02}.txt": n for n in range(45)}.items() <= sizes.items()
    paths = kaggle.fetch(handle, ["file-00.txt", "file-44.txt"], tmp_path / "out")
    assert [path.stat().st_size for path in paths] == [0, 44]


def test_a_late_output_and_a_late_log_are_empty_and_not_complete(kaggle, emulator, order, ended):
    emulator.switch(output_lag_s=60.0, log_lag_s=60.0)
    handle = kaggle.submit(order("print('x'); open('a.txt', 'w').write('x')"))
    ended(handle)
    assert kaggle.files(handle) == () and kaggle.logs(handle).lines == () and not kaggle.logs(handle).complete
    emulator.switch(output_lag_s=0.0, log_lag_s=0.0)
    assert kaggle.files(handle) and kaggle.logs(handle).complete


BIG = "open('big.bin', 'wb').write(bytes(range(256)) * 20000)"
BIG_BYTES = bytes(range(256)) * 20000


def test_a_download_that_breaks_off_is_gone_on_with(kaggle, emulator, order, ended, tmp_path):
    handle = kaggle.submit(order(BIG))
    ended(handle)
    emulator.switch(faults=(Fault("output", "cut", after_bytes=3_000_000, times=1),))
    (path,) = kaggle.fetch(handle, ["big.bin"], tmp_path / "out")
    assert path.read_bytes() == BIG_BYTES
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["big.bin"], "nothing else is left"


def test_a_download_that_fails_for_good_leaves_no_file_of_that_name_and_is_gone_on_with_later(
    kaggle, emulator, order, ended, tmp_path, monkeypatch
):
    monkeypatch.setattr("perdure.platforms.kaggle.outputs._TRIES", 0)
    handle = kaggle.submit(order(BIG))
    ended(handle)
    emulator.switch(faults=(Fault("output", "cut", after_bytes=3_000_000, times=0),))
    with pytest.raises(TransientPlatformError):
        kaggle.fetch(handle, ["big.bin"], tmp_path / "out")
    assert not (tmp_path / "out/big.bin").exists()
    there = (tmp_path / "out/.big.bin.part").stat().st_size
    assert 0 < there < len(BIG_BYTES)
    emulator.switch(faults=())
    told = []
    (path,) = kaggle.fetch(handle, ["big.bin"], tmp_path / "out", lambda done, total: told.append(done))
    assert path.read_bytes() == BIG_BYTES
    assert min(told) >= there, "it did not begin anew"


def test_a_file_that_is_named_like_half_of_another_is_not_taken_for_it(kaggle, order, ended, tmp_path):
    handle = kaggle.submit(order("open('a', 'w').write('whole')\nopen('a.part', 'w').write('OTHER')\n"))
    ended(handle)
    part, whole = kaggle.fetch(handle, ["a.part", "a"], tmp_path / "out")
    assert (part.read_text(), whole.read_text()) == ("OTHER", "whole")


def test_an_address_that_is_too_old_is_asked_for_anew(kaggle, emulator, order, ended, tmp_path, monkeypatch):
    monkeypatch.setattr("perdure.platforms.kaggle.outputs._TRIES", 0)
    handle = kaggle.submit(order(BIG))
    ended(handle)
    emulator.switch(faults=(Fault("output", status=403),))
    (path,) = kaggle.fetch(handle, ["big.bin"], tmp_path / "out")
    assert path.read_bytes() == BIG_BYTES


@pytest.mark.parametrize("name", ["../away.txt", "/etc/passwd", "a/../../b", ""])
def test_a_name_that_leads_out_of_the_folder_is_refused(kaggle, order, ended, tmp_path, name):
    handle = kaggle.submit(order())
    ended(handle)
    with pytest.raises(RefusedError, match="leads out"):
        kaggle.fetch(handle, [name], tmp_path / "out")


def test_a_file_that_is_not_in_the_output_is_named(kaggle, order, ended, tmp_path):
    handle = kaggle.submit(order())
    ended(handle)
    with pytest.raises(NotThereError, match="weights.bin"):
        kaggle.fetch(handle, ["weights.bin"], tmp_path / "out")


def test_stopping_is_said_not_to_be_possible_where_it_is_not(kaggle, emulator, order):
    handle = kaggle.submit(order(SLEEP))
    stopped = kaggle.stop(handle, now=False)
    assert not stopped.done and "no way" in stopped.what
    assert kaggle.observe(handle).state in ("queued", "running")
    stopped = kaggle.stop(handle, now=True)
    assert stopped.done and "deleted" in stopped.what
    assert kaggle.observe(handle).state == "missing" and emulator.sessions()[0].deleted


SAY_NUMBER = """
import json, os, re, time
number = re.search(r"-(\\d+)-", os.environ["KAGGLE_CONTAINER_NAME"]).group(1)
print("@perdure " + json.dumps({"platform_session": number}), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("cancel", "deleted"), [("works", False), ("forbidden", True), ("missing", True)])
def test_a_session_that_told_its_number_can_perhaps_be_cancelled(kaggle, emulator, order, ended, cancel, deleted):
    emulator.switch(cancel=cancel, never_start=False)
    handle = kaggle.submit(order(SAY_NUMBER))
    until(lambda: kaggle.logs(handle).lines)
    stopped = kaggle.stop(handle, now=False)  # a cancelled session may lose its output: not unless that is wanted
    assert not stopped.done and kaggle.observe(handle).state == "running"
    stopped = kaggle.stop(handle, now=True)
    assert stopped.done and ("deleted" in stopped.what) is deleted
    assert kaggle.observe(handle).state == "missing" if deleted else ended(handle).state == "stopped"


def test_a_session_that_has_ended_needs_no_stop(kaggle, order, ended):
    handle = kaggle.submit(order())
    ended(handle)
    assert kaggle.stop(handle, now=True).done
    assert kaggle.observe(handle).state == "complete", "its output is not thrown away"


def test_a_data_set_that_never_gets_ready_starts_no_session(kaggle, emulator, order, monkeypatch):
    monkeypatch.setattr(module, "SOURCE_BYTES", 100)
    monkeypatch.setattr("perdure.platforms.kaggle.datasets.READY_WITHIN_S", 0.5)
    emulator.switch(dataset_stuck=True)
    with pytest.raises(TransientPlatformError) as caught:
        kaggle.submit(order())
    assert type(caught.value) is TransientPlatformError
    assert emulator.sessions() == ()


@pytest.mark.parametrize("call", ["CreateDataset", "upload", "StartBlobUpload"])
def test_an_upload_that_breaks_off_is_gone_on_with(kaggle, emulator, order, ended, monkeypatch, call):
    monkeypatch.setattr(module, "SOURCE_BYTES", 100)
    emulator.switch(faults=(Fault(call, "drop"),))
    ended(kaggle.submit(order()))


def test_a_server_error_after_the_data_set_was_made_is_no_harm(kaggle, emulator, order, ended, monkeypatch):
    monkeypatch.setattr(module, "SOURCE_BYTES", 100)
    emulator.switch(faults=(Fault("CreateDataset", when="after", status=500),))
    ended(kaggle.submit(order()))


def test_credentials_that_are_not_accepted_are_said_to_be_so(emulator):
    wrong = KagglePlatform(Client(emulator.environment() | {"KAGGLE_KEY": "wrong"}))
    with pytest.raises(CredentialsError, match="does not accept"):
        wrong.quota()
    wrong.close()


def test_an_access_token_is_as_good_as_a_key(emulator):
    by_token = KagglePlatform(Client(emulator.environment(token=True)))
    assert by_token.account() == "emulated-user"
    assert by_token.quota()
    by_token.close()
