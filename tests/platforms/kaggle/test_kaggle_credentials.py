"""Where credentials would come from, as the official client looks for them."""

import json

import pytest

from perdure.core.errors import ConfigError
from perdure.platforms.kaggle.client import Client
from perdure.platforms.kaggle.credentials import credentials_source


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".kaggle").mkdir()
    return tmp_path


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def test_without_any_there_are_none(tmp_path):
    assert credentials_source({"HOME": str(tmp_path)}) is None


def test_an_access_token_in_its_file_is_found(home):
    path = home / ".kaggle/access_token"
    path.write_text("\n")
    assert credentials_source({"HOME": str(home)}) is None
    path.write_text("secret\n")
    assert credentials_source({"HOME": str(home)}) == str(path)


def test_kaggle_json_is_found_where_the_client_looks(home, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(home / ".kaggle/kaggle.json", {"username": "alice", "key": "secret"})
    assert credentials_source({"HOME": str(home)}) == str(home / ".kaggle/kaggle.json")
    assert credentials_source({"HOME": str(home), "KAGGLE_CONFIG_DIR": str(other)}) is None
    write(other / ".config/kaggle/kaggle.json", {"username": "alice", "key": "secret"})
    assert credentials_source({"HOME": str(other)}) == str(other / ".config/kaggle/kaggle.json")


def test_half_a_key_is_none(home):
    write(home / ".kaggle/kaggle.json", {"username": "alice"})
    assert credentials_source({"HOME": str(home)}) is None
    assert credentials_source({"HOME": str(home), "KAGGLE_KEY": "secret"}) == "KAGGLE_KEY"


def test_variables_win_over_files(home):
    write(home / ".kaggle/kaggle.json", {"username": "alice", "key": "secret"})
    assert credentials_source({"HOME": str(home), "KAGGLE_API_TOKEN": "secret"}) == "KAGGLE_API_TOKEN"


def test_an_environment_that_the_client_ignores_is_refused():
    with pytest.raises(ConfigError, match="real Kaggle"):
        Client({"KAGGLE_API_ENVIRONMENT": "TEST"})
