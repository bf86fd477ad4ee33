"""Accelerators by the names that users know; retired ones are explained and never asked for."""

import pytest

from perdure.core.errors import RefusedError
from perdure.hardware import known
from perdure.platforms.kaggle.accelerators import ACCELERATORS, accelerator


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("t4x2", "NvidiaTeslaT4"),
        ("T4 x2", "NvidiaTeslaT4"),
        ("GPU T4 x2", "NvidiaTeslaT4"),
        ("nvidiateslat4", "NvidiaTeslaT4"),
        ("gpu", "NvidiaTeslaT4"),
        ("none", "None"),
        ("cpu", "None"),
        ("tpu-v5e-8", "TpuV5E8"),
        ("TpuV5E8", "TpuV5E8"),
        ("l4x4", "NvidiaL4"),
    ],
)
def test_an_accelerator_is_found_by_its_name_kaggles_word_and_what_people_say(text, word):
    assert accelerator(text).word == word


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("p100", "t4x2"),
        ("NvidiaTeslaP100", "t4x2"),
        ("TpuV38", "tpu-v5e-8"),
        ("tpu-vm-v3-8", "tpu-v5e-8"),
        ("TpuV232", "tpu-v5e-8"),
        ("TpuV2256", "tpu-v5e-8"),
    ],
)
def test_a_retired_accelerator_is_refused_with_the_one_to_take_instead(text, instead):
    with pytest.raises(RefusedError) as caught:
        accelerator(text)
    assert caught.value.code == "accelerator"
    assert "any more" in caught.value.what and instead in caught.value.hint


def test_an_unknown_accelerator_is_refused_with_the_names_there_are():
    with pytest.raises(RefusedError) as caught:
        accelerator("v100")
    assert caught.value.code == "accelerator" and "t4x2, none" in caught.value.hint
    assert "p100" not in caught.value.hint


def test_the_default_comes_first_and_names_are_unique():
    assert ACCELERATORS[0].name == "t4x2" and ACCELERATORS[0].cards == 2
    assert (
        len({each.name for each in ACCELERATORS}) == len({each.word for each in ACCELERATORS}) == len(ACCELERATORS)
    )


def test_the_table_says_what_the_doctors_table_says():
    for each in ACCELERATORS:
        if each.resource is None:
            continue
        doctors = known.ACCELERATORS[each.word]
        assert each.card == doctors.card
        assert bool(each.retired) == bool(doctors.retired)
        assert doctors.count in (0, each.cards)


def test_it_retires_what_the_official_client_retires():
    from kaggle.api import kaggle_api_extended as client

    retired = {each.word.lower() for each in ACCELERATORS if each.retired}
    assert retired == set(client._RETIRED_ACCELERATORS)
