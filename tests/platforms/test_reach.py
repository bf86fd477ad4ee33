"""A platform by its name and settings, for a process that did not begin the relay."""

import json

import pytest

from perdure.core.errors import ConfigError, PlatformError, RefusedError
from perdure.platforms.protocol import Pace, Platform
from perdure.platforms.reach import reach
from perdure.testing.kaggle import Emulator, Rules


def test_kaggle_is_made_without_asking_anybody(tmp_path):
    place = json.loads(json.dumps({"pace": {"poll_s": 30}}))
    platform: Platform = reach("kaggle", place, {"HOME": str(tmp_path)})
    assert platform.name == "kaggle" and platform.pace == Pace(poll_s=30.0)
    assert platform.window_s("t4x2") == 12 * 3600 and platform.window_s("tpu-v5e-8") == 9 * 3600
    assert platform.accelerators[0].name == "t4x2"
    with pytest.raises(RefusedError):
        platform.window_s("p100")
    assert list(tmp_path.iterdir()) == []


def test_the_emulator_is_reached_by_its_folder_with_its_pace_and_window(tmp_path):
    with Emulator(tmp_path / "emulator", Rules(window_s=10.0)) as running:
        platform = reach("emulator", {"folder": str(tmp_path / "emulator")})
        assert platform.account() == "emulated-user"
        assert platform.name == "emulator" and platform.window_s("none") == 10.0
        assert platform.pace == Pace(**running.rules.pace)
        platform.close()


def test_no_credentials_of_the_user_get_to_the_emulator(tmp_path):
    home = tmp_path / "home/.kaggle"
    home.mkdir(parents=True)
    (home / "access_token").write_text("secret")
    with Emulator(tmp_path / "emulator") as running:
        mine = {"HOME": str(home.parent), "KAGGLE_API_TOKEN": "secret", "NO_PROXY": "localhost"}
        platform = reach("emulator", {"folder": str(tmp_path / "emulator")}, mine)
        assert platform.account() == "emulated-user"
        assert platform.quota()
        assert [call.call for call in running.calls()] == ["GetAcceleratorQuotaStatistics"], "no token was shown"
        platform.close()


def test_an_emulator_that_is_not_there_is_said_how_to_start(tmp_path):
    with pytest.raises(PlatformError) as caught:
        reach("emulator", {"folder": str(tmp_path)})
    assert "python -m perdure.testing.kaggle" in caught.value.hint


def test_this_machine_is_a_platform(tmp_path):
    platform = reach("local", {"folder": str(tmp_path / "local"), "window_s": 10.0})
    assert platform.name == "local" and platform.window_s("none") == 10.0


@pytest.mark.parametrize(
    ("name", "place"), [("colab", {}), ("kaggle", {"pace": {"pol_s": 1}}), ("kaggle", {"pace": {"poll_s": "soon"}})]
)
def test_nonsense_is_the_users_error(name, place):
    with pytest.raises(ConfigError):
        reach(name, place, {})
