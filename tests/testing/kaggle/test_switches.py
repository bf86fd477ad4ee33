"""Everything that can be switched to go wrong does go wrong, as the official client sees it."""

import time

import pytest

from perdure.testing.kaggle import Fault

REF = "emulated-user/first-script"
SLEEP = "import time; open('left', 'w').write('mine'); print('begun', flush=True); time.sleep(60)"
FILES = "result = [each.name for each in api.kernels_list_files(REF).files]"


def calls(emulator, call):
    return [each.status for each in emulator.calls() if each.call == call]


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ("gpu-slots", "Maximum batch GPU session count of 2 reached."),
        ("cpu-slots", "Maximum batch CPU session count of 5 reached."),
        ("quota", "Maximum weekly GPU quota of 30.00 hours reached."),
        ("projected", "Session cannot start because currently running sessions are projected to exceed maximum"),
        ("not-found", "Notebook not found"),
        ("Some other reason", "Some other reason"),
    ],
)
def test_the_next_push_is_refused_and_the_one_after_it_goes_well(kaggle, refusal, said):
    emulator, client = kaggle()
    emulator.switch(refusals=(refusal,))
    assert client.push("first-script").error.startswith(said)
    assert emulator.sessions() == ()
    assert client.push("first-script").error == ""


def test_a_kernel_of_others_cannot_be_pushed(kaggle):
    _, client = kaggle()
    assert client.push("first-script", id="somebody/first-script").error == "Notebook not found"


def test_a_source_that_is_too_large_is_a_bad_request_whose_reason_is_nested(kaggle):
    emulator, client = kaggle()
    assert client.push("first-script", "#" * 999_999).error == ""
    with pytest.raises(Exception) as caught:
        client.push("second-script", "#" * 1_000_000)
    assert caught.value.status == 400
    assert "must be less than 1 megabytes" in caught.value.text
    assert "megabytes" not in str(caught.value)  # the client hides it
    assert len(emulator.sessions()) == 1
    with pytest.raises(Exception) as caught:
        client.push("second-script", "#" * 12_000_000)
    assert caught.value.text.startswith("<html>")


def test_an_accepted_push_leaves_out_sources_that_are_not_valid(kaggle):
    emulator, client = kaggle()
    client.push("first-script")
    client.wait("first-script")
    emulator.switch(invalid_sources=(REF,))
    pushed = client.push("second-script", kernel_sources=[REF])
    assert (pushed.error, pushed.kernels) == ("", [REF])
    assert emulator.sessions()[1].mounts == {}


def test_an_output_of_a_failed_session_is_no_source_where_that_is_switched_on(kaggle):
    emulator, client = kaggle()
    client.push("first-script", "raise SystemExit(1)")
    client.wait("first-script")
    assert client.push("second-script", kernel_sources=[REF]).kernels == []
    emulator.switch(mount_failed=False)
    assert client.push("third-script", kernel_sources=[REF]).kernels == [REF]


@pytest.mark.parametrize(("status", "retry_after"), [(429, "7"), (429, ""), (503, "")])
def test_a_call_is_turned_away_without_being_carried_out(kaggle, status, retry_after):
    emulator, client = kaggle()
    emulator.switch(faults=(Fault("SaveKernel", status=status, retry_after=retry_after),))
    with pytest.raises(Exception) as caught:
        client.push("first-script")
    assert caught.value.status == status
    assert caught.value.headers.get("Retry-After", "") == retry_after
    assert emulator.sessions() == ()
    assert client.push("first-script").error == ""


@pytest.mark.parametrize("what", ["error", "drop"])
def test_a_push_is_accepted_and_its_answer_never_comes(kaggle, what):
    emulator, client = kaggle()
    emulator.switch(faults=(Fault("SaveKernel", what, when="after"),))
    with pytest.raises(Exception) as caught:
        client.push("first-script")
    assert caught.value.kind == ("HTTPError" if what == "error" else "ProxyError")  # a kind of ConnectionError
    assert client.wait("first-script")[0] == "COMPLETE"
    assert len(emulator.sessions()) == 1


def test_a_silent_server_keeps_a_client_waiting_that_has_no_limit_of_its_own(kaggle):
    emulator, client = kaggle()
    client.push("first-script")
    emulator.switch(faults=(Fault("GetKernelSessionStatus", "stall", stall_s=0.5),))
    began_s = time.monotonic()
    with pytest.raises(Exception, match="RemoteDisconnected"):
        client.status("first-script")
    assert time.monotonic() - began_s >= 0.5


def test_faults_come_after_calls_that_went_well_and_as_often_as_was_asked(kaggle):
    emulator, client = kaggle()
    client.push("first-script")
    emulator.switch(faults=(Fault("GetKernelSessionStatus", skip=1, times=2),))
    seen = []
    for _ in range(4):
        try:
            client.status("first-script")
            seen.append(200)
        except Exception as error:
            seen.append(error.status)
    assert seen == [200, 503, 503, 200]


def test_an_unknown_word_for_the_status_makes_the_client_raise(kaggle):
    emulator, client = kaggle()
    client.push("first-script")
    emulator.switch(status_word="HIBERNATING")
    with pytest.raises(Exception, match="KeyError"):
        client.status("first-script")


def test_what_is_missing_is_forbidden(kaggle):
    emulator, client = kaggle()
    with pytest.raises(Exception, match="Cannot access kernel"):
        client.status("never-there")
    emulator.switch(missing_status=404)
    with pytest.raises(Exception, match="404"):
        client.status("never-there")


def test_a_new_kernel_cannot_be_seen_for_a_while(kaggle):
    emulator, client = kaggle()
    emulator.switch(visible_after_s=0.8)
    client.push("first-script")
    with pytest.raises(Exception, match="denied"):
        client.status("first-script")
    while True:
        try:
            client.status("first-script")
            break
        except Exception:
            time.sleep(0.05)


def test_the_status_that_is_told_is_old(kaggle):
    emulator, client = kaggle()
    emulator.switch(status_lag_s=60)
    client.push("first-script")
    while emulator.sessions()[0].stage != "ended":
        time.sleep(0.02)
    assert client.status("first-script")[0] == "QUEUED"
    emulator.switch(status_lag_s=0)
    assert client.status("first-script")[0] == "COMPLETE"


def test_log_and_files_come_late(kaggle):
    emulator, client = kaggle()
    emulator.switch(log_lag_s=60, output_lag_s=60)
    client.push("first-script", "open('left', 'w'); print('hello')")
    client.wait("first-script")
    assert client.log("first-script") == ""
    assert client.call(FILES, REF=REF) == []
    emulator.switch(log_lag_s=0, output_lag_s=0)
    assert "hello" in client.log("first-script")
    assert client.call(FILES, REF=REF) == ["left"]


def test_a_file_of_the_output_is_cut_short(kaggle, tmp_path):
    emulator, client = kaggle()
    emulator.switch(cut_outputs={"part": 3})
    client.push("first-script", "open('part', 'w').write('abcdef'); open('whole', 'w').write('abcdef')")
    client.wait("first-script")
    client.output("first-script", tmp_path)
    assert (tmp_path / "part").read_text() == "abc"
    assert (tmp_path / "whole").read_text() == "abcdef"


def test_a_download_that_breaks_is_gone_on_with_by_the_client(kaggle, tmp_path):
    emulator, client = kaggle()
    client.push("first-script", "open('big', 'wb').write(bytes(range(256)) * 12_000)")
    client.wait("first-script")
    emulator.switch(faults=(Fault("output", "cut", after_bytes=1_500_000),))
    client.output("first-script", tmp_path)
    assert (tmp_path / "big").read_bytes() == bytes(range(256)) * 12_000
    assert calls(emulator, "output") == [200, 206]


def test_an_address_of_a_file_is_good_for_a_while_only(kaggle, tmp_path):
    _, client = kaggle(url_s=-1)
    client.push("first-script", "open('left', 'w')")
    client.wait("first-script")
    with pytest.raises(Exception, match="400"):
        client.output("first-script", tmp_path)


def test_the_stream_of_a_log_breaks_and_begins_anew(kaggle):
    emulator, client = kaggle()
    client.push("first-script", "import time; print('one', flush=True); time.sleep(0.5); print('two')")
    client.wait("first-script", ("RUNNING",))
    emulator.switch(faults=(Fault("log", "cut", after_bytes=1),))
    shown = client.cli("kernels", "logs", "-f", REF)
    assert shown.stdout.startswith("one\ntwo\n")  # the client leaves out what it has seen


def test_a_session_never_leaves_the_queue(kaggle):
    emulator, client = kaggle()
    emulator.switch(never_start=True)
    client.push("first-script")
    time.sleep(0.4)
    assert client.status("first-script")[0] == "QUEUED"
    client.call("api.kernels_delete(REF, no_confirm=True)", REF=REF)
    assert emulator.sessions()[0].stage == "ended"


def test_a_push_starts_two_sessions(kaggle):
    emulator, client = kaggle()
    emulator.switch(start_twice=1)
    assert client.push("first-script", SLEEP).version == 1
    assert [each.version for each in emulator.sessions()] == [1, 2]
    client.push("second-script")
    assert len(emulator.sessions()) == 3


def test_inputs_are_mounted_late_and_in_the_old_layout(kaggle):
    emulator, client = kaggle()
    client.push("first-script", "open('left', 'w').write('mine')")
    client.wait("first-script")
    emulator.switch(mount_late_s=0.5, old_layout=True)
    source = """
import os, pathlib, time
path = pathlib.Path(os.environ["PERDURE_INPUTS"], "first-script", "left")
print("at first:", path.exists())
while not path.exists():
    time.sleep(0.05)
print(path.read_text())
"""
    client.push("second-script", source, kernel_sources=[REF])
    assert client.wait("second-script")[0] == "COMPLETE"
    assert "at first: False" in client.log("second-script")


def test_the_platforms_clock_may_be_ahead(kaggle):
    emulator, client = kaggle()
    emulator.switch(clock_offset_s=3600)
    client.push("first-script")
    code = "import time; result = api.kernels_list(mine=True)[0].last_run_time.timestamp() - time.time()"
    assert 3500 < client.call(code) < 3700


def test_every_answer_may_take_its_time(kaggle):
    emulator, client = kaggle()
    client.push("first-script")
    emulator.switch(latency_s=0.3)
    began_s = time.monotonic()
    client.status("first-script")
    assert time.monotonic() - began_s >= 0.3


def test_a_wrong_key_is_not_let_in(kaggle):
    emulator, client = kaggle()
    client.environment["KAGGLE_KEY"] = "wrong"
    assert client.cli("kernels", "status", REF).returncode == 1
    assert calls(emulator, "GetKernelSessionStatus") == [401]


def test_an_access_token_is_let_in_and_a_strange_one_is_not(kaggle):
    emulator, client = kaggle()
    client.push("first-script")
    client.wait("first-script")
    client.environment = {
        name: value for name, value in client.environment.items() if name not in ("KAGGLE_KEY", "KAGGLE_USERNAME")
    }
    client.environment["KAGGLE_API_TOKEN"] = emulator.environment(token=True)["KAGGLE_API_TOKEN"]
    assert "COMPLETE" in client.cli("kernels", "status", REF).stdout
    client.environment["KAGGLE_API_TOKEN"] = "KGAT_strange"
    assert client.cli("kernels", "status", REF).returncode == 1
