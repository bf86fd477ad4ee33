"""Windows, hours, slots and machines of the emulator, as the official client meets them."""

import json
import time

import pytest

from perdure.testing.kaggle import Rules, Switches
from perdure.testing.kaggle.hours import hours
from perdure.testing.kaggle.world import EmulatedSession

SLEEP = "import time; open('left', 'w').write('mine'); print('begun', flush=True); time.sleep(60)"
T4 = {"machine_shape": "NvidiaTeslaT4"}
QUOTA = """
r = api.quota_view()
s = lambda d: d.total_seconds()
result = [s(r.gpu_quota.time_used), s(r.gpu_quota.time_reserved), s(r.gpu_quota.total_time_allowed),
          r.quota_refresh_time.timestamp()]
"""
CARDS = """
from perdure.hardware.cards import read_cards
cards = read_cards()
print([card.name for card in cards.cards], cards.trouble_code)
"""


def test_the_window_ends_a_session_hard_and_its_output_is_lost(kaggle):
    emulator, client = kaggle(window_s=0.6)
    client.push("first-script", SLEEP)
    status, message = client.wait("first-script")
    assert (status, message.split(" because")[0]) == ("ERROR", "Your notebook was stopped")
    assert client.call("result = len(api.kernels_list_files(R).files)", R="emulated-user/first-script") == 0
    assert emulator.sessions()[0].how == "window"


def test_or_it_is_kept(kaggle):
    emulator, client = kaggle(window_s=0.6)
    emulator.switch(output_after_kill="kept", timeout_word="CANCEL_ACKNOWLEDGED")
    client.push("first-script", SLEEP)
    assert client.wait("first-script")[0] == "CANCEL_ACKNOWLEDGED"
    assert client.call("result = api.kernels_list_files(R).files[0].name", R="emulated-user/first-script") == "left"


def test_the_time_out_of_a_push_ends_its_session(kaggle):
    emulator, client = kaggle()
    client.push("first-script", SLEEP, timeout=1)
    assert client.wait("first-script")[0] == "ERROR"
    assert emulator.sessions()[0].how == "window"


def test_a_time_out_that_does_not_fire_leaves_the_window(kaggle):
    emulator, client = kaggle(window_s=2.0)
    emulator.switch(ignore_timeout=True)
    client.push("first-script", SLEEP, timeout=1)
    client.wait("first-script")
    (session,) = emulator.sessions()
    assert session.ended_s - session.started_s > 1.9


def test_slots_are_refused_in_an_answer_that_says_200(kaggle):
    emulator, client = kaggle(cpu_slots=1, gpu_slots=1)
    assert client.push("first-script", SLEEP).error == ""
    assert client.push("second-script").error == "Maximum batch CPU session count of 1 reached."
    assert client.push("third-script", SLEEP, **T4).error == ""
    assert client.push("fourth-script", **T4).error == "Maximum batch GPU session count of 1 reached."
    assert len(emulator.sessions()) == 2
    client.wait("first-script", ("RUNNING",))
    client.call("api.kernels_delete(R, no_confirm=True)", R="emulated-user/first-script")
    while client.push("second-script").error:
        time.sleep(0.05)


def test_a_slot_stays_taken_for_a_while_after_a_session(kaggle):
    emulator, client = kaggle(cpu_slots=1)
    emulator.switch(slot_lag_s=60)
    client.push("first-script")
    client.wait("first-script")
    assert "session count of 1 reached" in client.push("second-script").error
    emulator.switch(slot_lag_s=0)
    assert client.push("second-script").error == ""


def test_hours_are_used_while_a_session_runs_and_reserved_for_what_it_may_use(kaggle):
    emulator, client = kaggle(window_s=50, gpu_quota_s=60)
    assert client.call(QUOTA)[:3] == [0, 0, 60]
    client.push("first-script", SLEEP, **T4)
    client.wait("first-script", ("RUNNING",))
    used, reserved, _, refresh = client.call(QUOTA)
    assert 0 < used < 20
    assert used + reserved == pytest.approx(50, abs=0.1)
    assert refresh == pytest.approx(emulator.store.world.born_s + 7 * 86400, abs=0.01)
    first = client.push("second-script", SLEEP, **T4)
    assert first.error == ""  # 50 of 60 are spoken for
    refused = client.push("third-script", **T4)
    assert refused.error == "Maximum batch GPU session count of 2 reached."


def test_a_session_that_would_exceed_the_hours_is_refused_until_they_are_free(kaggle):
    _, client = kaggle(window_s=50, gpu_quota_s=40)
    client.push("first-script", SLEEP, **T4)
    refused = client.push("second-script", **T4).error
    assert refused.startswith("Session cannot start because currently running sessions are projected to exceed")
    assert client.push("third-script").error == ""  # the processor has no hours


def test_hours_that_are_used_up_are_refused_until_the_refresh(kaggle):
    emulator, client = kaggle(gpu_quota_s=3600, gpu_used_s=3600, refresh_every_s=2.0)
    assert client.push("first-script", **T4).error == "Maximum weekly GPU quota of 1.00 hours reached."
    while client.push("first-script", **T4).error:
        time.sleep(0.1)
    assert time.time() >= emulator.store.world.born_s + 2


def test_a_session_is_ended_when_the_hours_are_used_up_where_that_is_switched_on(kaggle):
    emulator, client = kaggle(gpu_quota_s=1.0)
    emulator.switch(quota_kills=True)
    client.push("first-script", SLEEP, **T4)
    client.wait("first-script")
    assert emulator.sessions()[0].how == "killed"


def test_the_command_line_shows_the_hours(kaggle):
    _, client = kaggle(gpu_used_s=3600)
    (gpu, _tpu) = json.loads(client.cli("quota", "--format", "json").stdout)
    assert (gpu["resource"], gpu["used"], gpu["remaining"]) == ("GPU", "1.00h", "29.00h")


@pytest.mark.parametrize(
    ("shape", "cards"),
    [
        ("NvidiaTeslaT4", ["Tesla T4", "Tesla T4"]),
        ("NvidiaL4X1", ["NVIDIA L4"]),
        ("NvidiaTeslaP100", ["Tesla T4", "Tesla T4"]),  # retired, and replaced without a word
    ],
)
def test_a_session_meets_the_cards_of_its_machine(kaggle, shape, cards):
    _, client = kaggle()
    client.push("first-script", CARDS, machine_shape=shape)
    client.wait("first-script")
    assert f"{cards} " in client.log("first-script")


def test_without_an_accelerator_there_is_no_card_whatever_this_machine_has(kaggle):
    emulator, client = kaggle()
    client.push("first-script", CARDS)
    client.wait("first-script")
    assert "[] no-library" in client.log("first-script")
    assert emulator.sessions()[0].resource == "cpu"


def test_another_machine_can_be_given_than_was_asked_for(kaggle):
    emulator, client = kaggle()
    emulator.switch(give_machine="NvidiaTeslaP100")
    client.push("first-script", CARDS, **T4)
    client.wait("first-script")
    assert "['Tesla P100-PCIE-16GB']" in client.log("first-script")
    code = "result = api.kernels_list(mine=True)[0].machine_shape"
    assert client.call(code) == "NvidiaTeslaP100"


def test_a_full_disk_is_felt_by_the_session(kaggle):
    _, client = kaggle(disk_bytes=1_000_000)
    client.push("first-script", "open('big', 'wb').write(bytes(3_000_000)); import time; time.sleep(60)")
    assert client.wait("first-script")[0] == "ERROR"


def test_a_session_waits_in_the_queue(kaggle):
    emulator, client = kaggle(queue_s=0.5)
    client.push("first-script")
    assert client.status("first-script")[0] == "QUEUED"
    client.wait("first-script")
    assert emulator.sessions()[0].started_s - emulator.sessions()[0].pushed_s >= 0.5


def gpu_session(started_s, ended_s=None, timeout_s=None):
    stage = "running" if ended_s is None else "ended"
    return EmulatedSession(1, "s", 1, "NvidiaTeslaT4", "gpu", started_s, stage, timeout_s, started_s, ended_s)


def stand(sessions, now_s, switches=Switches(), **rules):
    return hours(
        "gpu", sessions, Rules(window_s=50, gpu_quota_s=100, refresh_every_s=1000, **rules), switches, 0.0, now_s
    )


def test_a_session_counts_in_the_period_in_which_it_ran():
    over_the_refresh = gpu_session(980, 1030)
    assert stand([gpu_session(980)], 999).used_s == 19
    assert stand([over_the_refresh], 1500).used_s == 30
    assert stand([over_the_refresh], 2500).used_s == 0
    assert stand([], 1500).refresh_at_s == 2000
    assert (stand([], 500, gpu_used_s=40).used_s, stand([], 1500, gpu_used_s=40).used_s) == (40, 0)


def test_a_time_out_shortens_what_is_reserved_or_does_not():
    running = gpu_session(100, timeout_s=20)
    assert stand([running], 105).reserved_s == 15
    assert stand([running], 105, Switches(timeout_reserves=False)).reserved_s == 45
    assert stand([gpu_session(100, 120)], 130).reserved_s == 0
