"""The official client pushes, watches and fetches a kernel on the emulator as it does on Kaggle."""

import json


def test_a_pushed_script_runs_as_a_real_process_and_leaves_its_output(kaggle, tmp_path):
    _, client = kaggle()
    source = "import os, pathlib; pathlib.Path('a/b').mkdir(parents=True); open('a/b/c', 'w').write('mine'); print(os.getpid())"
    pushed = client.push("first-script", source)
    assert (pushed.error, pushed.version, pushed.url) == (
        "", 1, "https://www.kaggle.com/code/emulated-user/first-script",
    )  # fmt: skip
    assert client.wait("first-script") == ["COMPLETE", ""]
    client.output("first-script", tmp_path / "out")
    assert (tmp_path / "out/a/b/c").read_text() == "mine"
    records = json.loads((tmp_path / "out/first-script.log").read_text())
    assert records[0]["stream_name"] == "stdout"
    assert int(records[0]["data"]) > 1
