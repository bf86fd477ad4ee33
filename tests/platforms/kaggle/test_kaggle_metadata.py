"""What is pushed says everything itself."""

from pathlib import Path

import pytest
from slugify import slugify

from perdure.core.errors import RefusedError
from perdure.platforms.kaggle.accelerators import accelerator
from perdure.platforms.kaggle.metadata import check_submission, kernel_metadata
from perdure.platforms.protocol import Handle, Submission


def submission(**more):
    return Submission(**({"slug": "perdure-digits-1a2b3c4d-1", "cargo": Path("cargo"), "order": {}} | more))


def test_every_field_is_written_out_and_the_title_is_the_slug():
    wanted = submission(
        internet=True,
        sessions=(Handle("kaggle", "alice/perdure-digits-1a2b3c4d-0", 1),),
        competitions=("digit-recognizer",),
        models=("google/gemma/pyTorch/2b/1",),
    )
    values = kernel_metadata("alice", wanted, accelerator("t4x2"), ["alice/data"])
    assert values == {
        "id": "alice/perdure-digits-1a2b3c4d-1",
        "title": "perdure-digits-1a2b3c4d-1",
        "code_file": "session.py",
        "language": "python",
        "kernel_type": "script",
        "is_private": True,
        "enable_gpu": True,
        "enable_tpu": False,
        "enable_internet": True,
        "machine_shape": "NvidiaTeslaT4",
        "keywords": [],
        "dataset_sources": ["alice/data"],
        "kernel_sources": ["alice/perdure-digits-1a2b3c4d-0"],
        "competition_sources": ["digit-recognizer"],
        "model_sources": ["google/gemma/pyTorch/2b/1"],
        "docker_image_pinning_type": "latest",
    }
    assert slugify(values["title"]) == values["id"].partition("/")[2]


def test_the_processor_alone_is_asked_for_in_so_many_words():
    values = kernel_metadata("alice", submission(), accelerator("none"), [])
    assert values["machine_shape"] == "None"
    assert not values["enable_gpu"] and not values["enable_tpu"] and not values["enable_internet"]


@pytest.mark.parametrize(
    "slug", ["short", "Upper-case-1", "double--dash", "-dash-1", "dash-1-", "a" * 51, "dot.ted-1"]
)
def test_a_slug_that_the_title_would_not_give_is_refused(slug):
    with pytest.raises(RefusedError) as caught:
        check_submission(submission(slug=slug), "kaggle")
    assert caught.value.code == "request" and slug in caught.value.what


@pytest.mark.parametrize(
    "wrong",
    [
        {"datasets": ("data",)},
        {"datasets": ("https://www.kaggle.com/datasets/alice/data",)},
        {"competitions": ("c/digit-recognizer",)},
        {"models": ("google/gemma/pyTorch/2b",)},
        {"sessions": (Handle("local", "/tmp/x"),)},
    ],
)
def test_a_source_that_is_no_name_is_refused_before_anything_is_sent(wrong):
    with pytest.raises(RefusedError) as caught:
        check_submission(submission(**wrong), "kaggle")
    assert caught.value.code == "sources"


def test_sources_as_kaggle_names_them_pass():
    check_submission(submission(datasets=("alice/data", "alice/data/3"), competitions=("titanic",)), "kaggle")
