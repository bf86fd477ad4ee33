"""``publish`` brings files to Hugging Face and Kaggle and believes only what the place lists afterwards.

The clients are the real ones; the places are small servers on localhost.
"""

import os
import subprocess
import sys

import pytest
from places import HuggingFace, Kaggle, Place

from perdure.core.errors import ConfigError, MissingExtraError, PlatformError, TransientPlatformError
from perdure.models import publish_kaggle
from perdure.models.publish import check_target, publish

HF = "hf://user/repo"
KAGGLE = "kaggle://o/m/pyTorch/digits"


@pytest.fixture
def files(tmp_path):
    """A large file, a small one, and a folder."""
    (tmp_path / "model.pth").write_bytes(os.urandom(5000))
    (tmp_path / "README.md").write_text("# model\n")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "variables.index").write_bytes(b"v" * 300)
    return [tmp_path / "model.pth", tmp_path / "README.md", tmp_path / "saved"]


def content(tmp_path):
    names = ["model.pth", "README.md", "saved/variables.index"]
    return {name: (tmp_path / name).read_bytes() for name in names}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The hub on this machine; the client asks it in the way that needs no storage service beside it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    place = Place(HuggingFace)
    monkeypatch.setenv("HF_ENDPOINT", place.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    yield place
    place.close()


@pytest.fixture
def kaggle(monkeypatch, tmp_path):
    pytest.importorskip("kagglehub")
    place = Place(Kaggle)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, place.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
    monkeypatch.setenv("KAGGLE_API_TOKEN", "kaggle_secret")
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    yield place
    place.close()


@pytest.fixture(params=["hf", "kaggle"])
def there(request):
    """Each of the two places, with a target in it."""
    return (
        (request.getfixturevalue("hub"), HF)
        if request.param == "hf"
        else (request.getfixturevalue("kaggle"), KAGGLE)
    )


# ---------------------------------------------------------------- it arrives, and is listed back


def test_files_arrive_whole_and_are_listed_back(there, files, tmp_path, capfd):
    place, target = there
    published = publish(files, target, message="digits, step 720")
    assert place.files == content(tmp_path)
    assert published.files == {name: len(data) for name, data in content(tmp_path).items()}
    assert published.target == target
    assert capfd.readouterr().out == ""


def test_hugging_face_gives_a_digest_of_each_and_all_are_equal(hub, files):
    published = publish(files, HF, message="digits, step 720")
    assert published.digests == 3
    assert published.url == f"{hub.url}/user/repo/commit/{'1' * 40}"
    assert "3 files, 5.3 kB; listed back with equal names, sizes and the digests of 3" in str(published)
    assert hub.said["commit"]["summary"] == "digits, step 720"


def test_a_new_repository_is_private(hub, files):
    publish(files, HF)
    created = hub.said["create"]
    assert created.get("private") is True or created.get("visibility") == "private"


def test_a_folder_in_the_repository_can_be_named(hub, files):
    publish(files[:1], f"{HF}/exports/best")
    assert list(hub.files) == ["exports/best/model.pth"]


def test_publishing_again_sends_only_what_changed(hub, files, tmp_path):
    publish(files, HF)
    (tmp_path / "README.md").write_text("# better\n")
    hub.asked.clear()
    assert publish(files, HF).digests == 3
    assert hub.files == content(tmp_path)
    publish(files, HF)  # nothing changed: no empty commit, and proved all the same


def test_kaggle_makes_a_second_version_and_waits_until_it_is_shown(kaggle, files, tmp_path):
    publish(files[:1], KAGGLE)
    kaggle.lag = 2
    published = publish(files, KAGGLE, message="second")
    assert kaggle.version == 2
    assert kaggle.said["CreateModelInstanceVersion"]["body"]["versionNotes"] == "second"
    assert published.url.endswith("/models/o/m/pyTorch/digits/2")
    assert published.digests == 0
    assert str(published).endswith("listed back with equal names and sizes")
    assert kaggle.files == content(tmp_path)


# ---------------------------------------------------------------- what is not so is said


def test_a_file_that_arrives_spoilt_is_an_error_that_names_it(hub, files):
    hub.spoil = lambda data: bytes([data[0] ^ 1]) + data[1:]
    with pytest.raises(PlatformError, match=r"hf://user/repo does not hold what was sent") as caught:
        publish(files, HF)
    assert "model.pth has another digest there: sha256:" in str(caught.value)
    assert "README.md has another digest there: git-sha1:" in str(caught.value)


def test_a_file_that_arrives_cut_is_an_error_on_kaggle_too(kaggle, files):
    kaggle.spoil = lambda data: data[:-1]
    with pytest.raises(PlatformError, match=r"model\.pth has 4999 bytes there and 5000 here"):
        publish(files, KAGGLE)


def test_a_file_that_does_not_arrive_is_an_error(hub, files):
    """The hub may ignore a file, by a .gitignore that is there; its client then says nothing."""
    hub.ignored = {"README.md"}
    with pytest.raises(PlatformError, match=r"README\.md is not there"):
        publish(files, HF)


def test_a_version_that_is_never_shown_is_said_and_can_be_tried_again(kaggle, files, monkeypatch):
    publish(files[:1], KAGGLE)
    kaggle.lag = 10**6
    monkeypatch.setattr(publish_kaggle, "PROCESSING_S", 0.0)
    with pytest.raises(TransientPlatformError, match="no new version is shown"):
        publish(files, KAGGLE)


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, PlatformError, "the token is not accepted"),
        (403, PlatformError, "this is not allowed"),
        (429, TransientPlatformError, "status 429"),
    ],
)
def test_a_refusal_says_what_and_what_to_do_and_never_the_token(there, files, status, kind, words):
    place, target = there
    place.trouble = ("create|Create|StartBlob", status)
    with pytest.raises(kind, match=words) as caught:
        publish(files, target)
    assert type(caught.value) is kind
    assert target in str(caught.value)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_without_a_token_nothing_is_asked(there, files, monkeypatch):
    place, target = there
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("KAGGLE_API_TOKEN", raising=False)
    with pytest.raises(PlatformError, match="there is no token for") as caught:
        publish(files, target)
    assert "set " in caught.value.hint
    assert place.asked == []


def test_a_place_that_cannot_be_reached_may_be_tried_again(hub, files):
    hub.close()
    with pytest.raises(TransientPlatformError, match="cannot be reached"):
        publish(files, HF)


def test_without_the_client_the_error_says_what_to_install(files, monkeypatch):
    for name in ("huggingface_hub", "kagglehub"):
        monkeypatch.setitem(sys.modules, name, None)
    for target in (HF, KAGGLE):
        with pytest.raises(MissingExtraError) as caught:
            publish(files, target)
        assert "perdure[publish]" in caught.value.hint


# ---------------------------------------------------------------- before anything is asked


@pytest.mark.parametrize(
    "target",
    ["", "hf", "hf://", "hf://user", "hf://user/../x", "hf://user/re po", "kaggle://o/m/pyTorch", "s3://a/b", "user/repo",
     "kaggle://o/m/pyTorch/v/3", "hf://user//repo"],
)  # fmt: skip
def test_a_target_that_cannot_be_is_refused_with_the_forms(target, files):
    with pytest.raises(ConfigError, match="is no place to publish to") as caught:
        publish(files, target)
    assert "hf://user/repo" in caught.value.hint
    with pytest.raises(ConfigError):
        check_target(target)


def test_a_framework_that_kaggle_does_not_know_is_refused(kaggle, files):
    with pytest.raises(ConfigError, match="knows no framework 'torchy'"):
        publish(files, "kaggle://o/m/torchy/v")
    assert kaggle.asked == []


def test_no_file_a_missing_one_and_two_of_one_name_are_refused(tmp_path, files):
    with pytest.raises(ConfigError, match="there is no file"):
        publish([tmp_path / "missing.pth"], HF)
    with pytest.raises(ConfigError, match="0 files"):
        publish([], HF)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.pth").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"the same name there: model\.pth"):
        publish([files[0], tmp_path / "a" / "model.pth"], HF)


def test_publishing_loads_no_framework():
    code = "import perdure.models.publish, sys; print({'torch', 'keras', 'huggingface_hub'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
