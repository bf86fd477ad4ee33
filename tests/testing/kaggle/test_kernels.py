"""The official client pushes, watches, fetches and ends kernels on the emulator as it does on Kaggle."""

import json
import threading
import time

import pytest

SLEEP = "import time; open('left', 'w').write('mine'); print('begun', flush=True); time.sleep(60)"
REF = "emulated-user/first-script"


def test_a_pushed_script_runs_as_a_real_process_and_leaves_its_output(kaggle, tmp_path):
    _, client = kaggle()
    source = "import os, pathlib; pathlib.Path('a').mkdir(); open('a/b', 'w').write('mine'); print(os.getpid())"
    pushed = client.push("first-script", source)
    url = "https://www.kaggle.com/code/emulated-user/first-script"
    assert (pushed.error, pushed.version, pushed.url) == ("", 1, url)
    assert client.wait("first-script") == ["COMPLETE", ""]
    client.output("first-script", tmp_path / "out")
    assert (tmp_path / "out/a/b").read_text() == "mine"
    records = json.loads((tmp_path / "out/first-script.log").read_text())
    assert records[0]["stream_name"] == "stdout"
    assert int(records[0]["data"]) > 1
    assert [each["stream_name"] for each in records[1:]] == ["stderr", "stderr"]


def test_a_script_that_fails_is_an_error_and_its_output_is_there_all_the_same(kaggle, tmp_path):
    _, client = kaggle()
    client.push("first-script", "open('left', 'w'); raise ValueError('no')")
    assert client.wait("first-script")[0] == "ERROR"
    client.output("first-script", tmp_path / "out")
    assert "ValueError: no" in (tmp_path / "out/first-script.log").read_text()
    assert (tmp_path / "out/left").exists()


def test_the_session_meets_the_environment_of_a_batch_session_and_no_secrets_of_the_machine(kaggle, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    emulator, client = kaggle()
    source = "import json, os; print(json.dumps(dict(os.environ)))"
    client.push("first-script", source)
    client.wait("first-script")
    seen = json.loads(client.log("first-script").split("[NbConvertApp]")[0])
    (session,) = emulator.sessions()
    assert seen["KAGGLE_KERNEL_RUN_TYPE"] == "Batch"
    assert str(session.id) in seen["KAGGLE_CONTAINER_NAME"]
    assert seen["HTTP_PROXY"] == seen["HTTPS_PROXY"] == "http://127.0.0.1:9"  # internet is off
    assert not {"AWS_SECRET_ACCESS_KEY", "KAGGLE_KEY", "KAGGLE_USERNAME", "PERDURE_WINDOW"} & set(seen)


def test_output_of_one_session_is_a_read_only_input_of_the_next(kaggle, tmp_path):
    _, client = kaggle()
    client.push("first-script", "open('left', 'w').write('mine')")
    client.wait("first-script")
    source = """
import os, pathlib
for path in pathlib.Path(os.environ["PERDURE_INPUTS"]).rglob("*"):
    if path.is_file():
        print(path.relative_to(os.environ["PERDURE_INPUTS"]), path.read_text())
"""
    pushed = client.push("second-script", source, kernel_sources=[REF, "emulated-user/never-there"])
    assert pushed.kernels == ["emulated-user/never-there"]  # and accepted all the same
    client.wait("second-script")
    assert "notebooks/emulated-user/first-script/left mine" in client.log("second-script")


def test_an_output_is_not_to_be_seen_while_the_session_runs_and_its_log_only_in_the_stream(kaggle):
    _, client = kaggle()
    client.push("first-script", SLEEP)
    client.wait("first-script", ("RUNNING",))
    event = client.call("result = next(api.kernels_logs_stream(REF))", REF=REF)
    assert (event["stream_name"], event["data"]) == ("stdout", "begun\n")
    assert client.log("first-script") == ""
    assert client.call("result = len(api.kernels_list_files(REF).files)", REF=REF) == 0


def test_the_stream_ends_with_the_session_and_is_replayed_afterwards(kaggle):
    _, client = kaggle()
    client.push("first-script", "import time; print('one', flush=True); time.sleep(0.4); print('two')")
    client.wait("first-script", ("RUNNING",))
    stream = "result = [each['data'] for each in api.kernels_logs_stream(REF)]"
    live = client.call(stream, REF=REF)
    assert "".join(live).startswith("one\ntwo\n")
    client.wait("first-script")
    assert client.call(stream, REF=REF) == live


def test_a_stream_is_followed_by_the_command_line_and_records_need_not_be_lines(kaggle):
    emulator, client = kaggle()
    emulator.switch(log_chunk_bytes=4)
    client.push("first-script", "print('a long line')")
    client.wait("first-script")
    records = json.loads(client.call("result = api.kernels_logs(REF)", REF=REF))
    assert [each["data"] for each in records[:3]] == ["a lo", "ng l", "ine\n"]


def test_deleting_a_kernel_ends_its_session_and_takes_everything_with_it(kaggle):
    emulator, client = kaggle()
    client.push("first-script", SLEEP)
    client.wait("first-script", ("RUNNING",))
    client.call("api.kernels_delete(REF, no_confirm=True)", REF=REF)
    while emulator.sessions()[0].stage != "ended":
        time.sleep(0.02)
    assert (emulator.sessions()[0].how, emulator.sessions()[0].deleted) == ("killed", True)
    with pytest.raises(Exception, match="Permission 'kernels.get' was denied"):
        client.status("first-script")


def test_a_session_is_cancelled_by_its_number_where_that_is_allowed(kaggle):
    cancel = """
from kagglesdk.kernels.types.kernels_api_service import ApiCancelKernelSessionRequest
request = ApiCancelKernelSessionRequest()
request.kernel_session_id = NUMBER
with api.build_kaggle_client() as kaggle:
    kaggle.kernels.kernels_api_client.cancel_kernel_session(request)
"""
    emulator, client = kaggle()
    client.push("first-script", SLEEP)
    client.wait("first-script", ("RUNNING",))
    number = emulator.sessions()[0].id
    for kind, status in (("forbidden", 403), ("missing", 404)):
        emulator.switch(cancel=kind)
        with pytest.raises(Exception, match=str(status)):
            client.call(cancel, NUMBER=number)
    emulator.switch(cancel="works")
    client.call(cancel, NUMBER=number)
    assert client.wait("first-script")[0] == "CANCEL_ACKNOWLEDGED"


def test_files_come_with_their_sizes_and_in_pages(kaggle, tmp_path):
    emulator, client = kaggle()
    client.push("first-script", "for n in range(5): open(f'file-{n}', 'wb').write(bytes(n))")
    client.wait("first-script")
    emulator.switch(page_most=2)
    listing = """
result, token = [], None
while token != "":
    page = api.kernels_list_files(REF, page_token=token)
    result.append([(each.name, each.size) for each in page.files])
    token = page.next_page_token
"""
    pages = [[("file-0", 0), ("file-1", 1)], [("file-2", 2), ("file-3", 3)], [("file-4", 4)]]
    assert client.call(listing, REF=REF) == [[list(each) for each in page] for page in pages]
    client.output("first-script", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir())[:5] == [f"file-{n}" for n in range(5)]


def test_a_kernel_is_listed_and_read_back_with_its_settings(kaggle):
    _, client = kaggle()
    client.push("first-script", "print(1)", machine_shape="NvidiaTeslaT4", enable_internet=True)
    code = """
import json, pathlib, tempfile
folder = tempfile.mkdtemp()
api.kernels_pull(REF, folder, metadata=True)
meta = json.loads((pathlib.Path(folder) / "kernel-metadata.json").read_text())
listed = [each.ref for each in api.kernels_list(mine=True, sort_by="dateRun")]
result = [(pathlib.Path(folder) / "first-script.py").read_text(), meta, listed]
"""
    source, meta, listed = client.call(code, REF=REF)
    assert (source, listed) == ("print(1)", [REF])
    assert (meta["machine_shape"], meta["enable_internet"], meta["id"]) == ("NvidiaTeslaT4", True, REF)


def test_a_second_push_is_a_second_version_and_does_not_stop_the_first(kaggle):
    emulator, client = kaggle()
    client.push("first-script", SLEEP)
    client.wait("first-script", ("RUNNING",))
    assert client.push("first-script", "print('second')").version == 2
    assert client.wait("first-script")[0] == "COMPLETE"
    assert client.status("first-script/1")[0] == "RUNNING"
    assert len(emulator.sessions()) == 2


def test_a_version_is_saved_without_a_run(kaggle):
    emulator, client = kaggle()
    code = "api.kernels_push = __import__('functools').partial(api.kernels_push, no_run=True)"
    client.call(code)
    try:
        assert client.push("first-script").version == 1
    finally:
        client.call("del api.kernels_push")
    assert emulator.sessions() == ()
    assert client.status("first-script")[0] == "NEW_SCRIPT"


def test_a_notebook_without_a_kernel_name_dies_as_on_kaggle(kaggle):
    _, client = kaggle()
    notebook = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    client.push("first-notebook", notebook, kernel_type="notebook")
    assert client.wait("first-notebook")[0] == "ERROR"
    log = client.log("first-notebook")
    assert "No kernel name found in notebook" in log


def test_the_real_slug_follows_the_title(kaggle):
    _, client = kaggle()
    pushed = client.push("first-script", title="Another Title")
    assert pushed.url.endswith("/another-title")
    with pytest.raises(Exception, match="denied"):
        client.status("first-script")


def test_the_command_line_shows_what_it_shows_on_kaggle(kaggle):
    _, client = kaggle()
    client.push("first-script", "print('hello')")
    client.wait("first-script")
    shown = client.cli("kernels", "status", REF)
    assert shown.stdout.strip() == f'{REF} has status "KernelWorkerStatus.COMPLETE"'
    shown = client.cli("kernels", "logs", "-f", REF)
    assert shown.stdout.startswith("hello\n")


def test_a_follower_of_the_log_that_goes_away_is_not_served_any_longer(kaggle):
    _, client = kaggle()
    client.push("first-script", SLEEP)
    client.wait("first-script", ("RUNNING",))
    before = threading.active_count()
    for _ in range(3):
        client.call("s = api.kernels_logs_stream(REF); next(s); s.close()", REF=REF)
    while threading.active_count() > before:
        time.sleep(0.02)
