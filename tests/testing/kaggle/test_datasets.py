"""Data sets on the emulator, through the official client and through kagglehub."""

import json
import subprocess
import sys
import time
import zipfile

import pytest

from perdure.testing.kaggle import Fault

REF = "emulated-user/first-data"
CREATE = """
import json, pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
for name, text in FILES.items():
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
meta = {"id": REF, "title": "First data", "licenses": [{"name": "CC0-1.0"}]}
(folder / "dataset-metadata.json").write_text(json.dumps(meta))
if NOTES is None:
    r = api.dataset_create_new(str(folder), quiet=True)
else:
    r = api.dataset_create_version(str(folder), NOTES, quiet=True, delete_old_versions=DELETE)
result = [r.status, r.error]
"""
NAMES = "result = [[each.name, each.total_bytes] for each in api.dataset_list_files(REF).dataset_files]"


def create(client, files, notes=None, delete=False):
    return client.call(CREATE, FILES=files, NOTES=notes, DELETE=delete, REF=REF)


def status(client):
    return client.call("result = api.dataset_status(REF)", REF=REF)


def wait(client):
    while status(client) != "ready":
        time.sleep(0.05)


def test_a_data_set_is_made_becomes_ready_and_is_fetched_again(kaggle, tmp_path):
    _, client = kaggle()
    assert create(client, {"a.txt": "one", "b.bin": bytes(5)}) == ["ok", ""]
    assert status(client) != "ready"
    wait(client)
    assert client.call(NAMES, REF=REF) == [["a.txt", 3], ["b.bin", 5]]
    client.call("api.dataset_download_files(REF, FOLDER, unzip=True)", REF=REF, FOLDER=str(tmp_path / "all"))
    assert (tmp_path / "all/a.txt").read_text() == "one"
    client.call("api.dataset_download_file(REF, 'b.bin', FOLDER)", REF=REF, FOLDER=str(tmp_path / "one"))
    assert (tmp_path / "one/b.bin").read_bytes() == bytes(5)


def test_a_name_that_is_taken_is_an_error_in_an_answer_that_says_200(kaggle):
    _, client = kaggle()
    create(client, {"a.txt": "one"})
    wait(client)
    said, error = create(client, {"a.txt": "two"})
    assert said != "ok"
    assert "already in use" in error


def test_a_second_version_is_forbidden_while_the_first_is_processed(kaggle):
    emulator, client = kaggle()
    emulator.switch(dataset_stuck=True)
    create(client, {"a.txt": "one"})
    with pytest.raises(Exception, match="403"):
        create(client, {"a.txt": "two"}, notes="second")
    assert status(client) == "blobs_received"
    emulator.switch(dataset_stuck=False)
    wait(client)
    assert create(client, {"a.txt": "second"}, notes="second", delete=True) == ["ok", ""]
    wait(client)
    assert client.call(NAMES, REF=REF) == [["a.txt", 6]]
    assert json.loads(client.call("result = api.dataset_status(REF, format='json')", REF=REF)) == {
        "status": "ready",
        "current_version_number": 2,
    }


def test_a_fresh_data_set_may_be_forbidden_for_a_while(kaggle):
    emulator, client = kaggle()
    emulator.switch(dataset_forbidden_s=60)
    create(client, {"a.txt": "one"})
    with pytest.raises(Exception, match="403"):
        status(client)
    emulator.switch(dataset_forbidden_s=0)
    wait(client)


def test_a_data_set_is_an_input_of_a_session_only_when_it_is_ready(kaggle):
    emulator, client = kaggle()
    emulator.switch(dataset_stuck=True)
    create(client, {"a.txt": "one"})
    assert client.push("first-script", dataset_sources=[REF]).datasets == [REF]
    emulator.switch(dataset_stuck=False)
    wait(client)
    source = (
        "import os; print(open(os.environ['PERDURE_INPUTS'] + '/datasets/emulated-user/first-data/a.txt').read())"
    )
    assert client.push("second-script", source, dataset_sources=[REF]).datasets == []
    client.wait("second-script")
    assert client.log("second-script").startswith("one\n")


@pytest.mark.parametrize(
    ("what", "statuses"),
    [
        ("error", [503, 308, 200]),  # the client asks how far it came, and sends the rest
        ("cut", [0, 200]),  # the connection broke: its transport begins again
    ],
)
def test_an_upload_that_breaks_is_gone_on_with(kaggle, what, statuses):
    emulator, client = kaggle()
    emulator.switch(faults=(Fault("upload", what, status=503, after_bytes=1_000_000),))
    create(client, {"big.bin": bytes(3_000_000)})
    wait(client)
    assert client.call(NAMES, REF=REF) == [["big.bin", 3_000_000]]
    assert [each.status for each in emulator.calls() if each.call == "upload"] == statuses


def test_archives_are_unpacked_and_other_files_are_not(kaggle, tmp_path):
    _, client = kaggle()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("in/side.txt", "one")
    packed = (tmp_path / "x.zip").read_bytes()
    create(client, {"x.zip": packed, "y.bin": packed})
    wait(client)
    names = [name for name, _ in client.call(NAMES, REF=REF)]
    assert names == ["x/in/side.txt", "y.bin"]


def test_competitions_and_models_are_folders_that_were_put_there(kaggle):
    emulator, client = kaggle()
    for place in ("competitions/titanic", "models/google/gemma/pyTorch/2b/1"):
        (emulator.folder / place).mkdir(parents=True)
        (emulator.folder / place / "file").write_text(place)
    source = "import os, glob; [print(open(p).read()) for p in glob.glob(os.environ['PERDURE_INPUTS'] + '/**/file', recursive=True)]"
    model = "google/gemma/pyTorch/2b/1"
    pushed = client.push("first-script", source, competition_sources=["titanic", "other"], model_sources=[model])
    assert (pushed.competitions, pushed.models) == (["other"], [])
    client.wait("first-script")
    log = client.log("first-script")
    assert "competitions/titanic" in log
    assert "models/google/gemma" in log


def hub(client, code):
    done = subprocess.run([sys.executable, "-c", code], env=client.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kagglehub_uploads_folders_makes_versions_and_fetches_outputs(kaggle, tmp_path):
    emulator, client = kaggle()
    client.push("first-script", "import os; os.mkdir('a'); open('a/left', 'w').write('mine')")
    (tmp_path / "up/sub").mkdir(parents=True)
    (tmp_path / "up/sub/file.txt").write_text("one")
    (tmp_path / "up/empty").write_text("")
    client.wait("first-script")
    code = f"""
import kagglehub, time
for note in ("first", "second"):
    kagglehub.dataset_upload({REF!r}, {str(tmp_path / "up")!r}, version_notes=note)
    time.sleep(0.7)
print("WHO", kagglehub.whoami()["username"])
print("PATH", kagglehub.dataset_download({REF!r}, output_dir={str(tmp_path / "down")!r}))
print("PATH", kagglehub.notebook_output_download("emulated-user/first-script", output_dir={str(tmp_path / "out")!r}))
print("PATH", kagglehub.notebook_output_download("emulated-user/first-script", path="a/left"))
"""
    said = hub(client, code)
    assert "WHO emulated-user" in said
    assert (tmp_path / "down/sub/file.txt").read_text() == "one"
    assert (tmp_path / "out/a/left").read_text() == "mine"
    assert [each.number for each in emulator.store.world.datasets["first-data"].versions] == [1, 2]


INSIDE = """
import os, pathlib, kagglehub
pathlib.Path("up").mkdir()
pathlib.Path("up/kept.txt").write_text("from inside")
kagglehub.dataset_upload("emulated-user/from-inside", "up")
print("GOT", pathlib.Path(kagglehub.dataset_download("emulated-user/first-data"), "a.txt").read_text())
"""


def test_a_session_with_internet_uploads_with_its_own_token_and_attaches_data(kaggle):
    emulator, client = kaggle()
    create(client, {"a.txt": "one"})
    wait(client)
    client.push("first-script", INSIDE, enable_internet=True)
    status_word, _ = client.wait("first-script")
    log = client.log("first-script")
    assert status_word == "COMPLETE", log
    assert "GOT one" in log
    folder = emulator.store.dataset_folder(emulator.store.world.datasets["from-inside"], 1)
    assert (folder / "kept.txt").read_text() == "from inside"


@pytest.mark.parametrize("internet", [True, False])
def test_without_internet_or_with_a_token_that_is_not_accepted_a_session_uploads_nothing(kaggle, internet):
    emulator, client = kaggle()
    emulator.switch(inside_token=False)
    client.push("first-script", INSIDE, enable_internet=internet)
    assert client.wait("first-script")[0] == "ERROR"
    assert "from-inside" not in emulator.store.world.datasets
