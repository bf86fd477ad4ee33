"""What Kaggle's answers mean, case by case."""

import json

import pytest

from perdure.core.errors import (
    CredentialsError,
    MissingExtraError,
    NotThereError,
    RefusedError,
    TransientPlatformError,
    UncertainError,
)
from perdure.platforms.kaggle.refusals import Fault, error_of, refusal, said

TOO_LARGE = json.dumps(
    {
        "error": {
            "code": 400,
            "message": "The kernel source must be less than 1 megabytes in size.",
            "status": "INVALID_ARGUMENT",
        }
    }
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Maximum batch GPU session count of 2 reached.", "slots-full"),
        ("Maximum batch CPU session count of 5 reached.", "slots-full"),
        ("Maximum batch TPU session count of 1 reached.", "slots-full"),
        ("Maximum weekly GPU quota of 30.00 hours reached.", "quota-exhausted"),
        ("Maximum weekly TPU quota of 20.00 hours reached.", "quota-exhausted"),
        (
            "Session cannot start because currently running sessions are projected to exceed maximum weekly GPU quota"
            " of 30. Cancelling running sessions may allow starting new sessions.",
            "quota-projected",
        ),
        ("The kernel source must be less than 1 megabytes in size.", "source-size"),
        ("The following are not valid dataset sources", "sources"),
        ("Invalid machine shape: NvidiaTeslaK80", "accelerator"),
        ("Notebook not found", "request"),
        ("Kernel not found", "request"),
        ("Something nobody has seen before.", "request"),
        ("", "request"),
    ],
)
def test_each_refusal_has_its_code_and_keeps_kaggles_words(text, code):
    error = refusal(text, "alice/job-1")
    assert isinstance(error, RefusedError) and error.code == code
    assert "alice/job-1" in error.what and text in error.what


def test_a_refusal_for_an_unknown_owner_says_what_to_look_at():
    assert "credentials" in refusal("Notebook not found", "x").hint


HTTP = [
    # status, body, changes something, error, text in it
    (400, TOO_LARGE, True, RefusedError, "less than 1 megabytes"),
    (400, "", True, RefusedError, "HTTP 400"),
    (401, "", True, CredentialsError, "does not accept"),
    (403, "Permission 'kernels.get' was denied", False, NotThereError, "or not for this account"),
    (404, "", False, NotThereError, "or not for this account"),
    (408, "", True, UncertainError, "408"),
    (408, "", False, TransientPlatformError, "408"),
    (409, '{"error": "exists"}', True, RefusedError, "exists"),
    (413, "<html>nginx</html>", True, RefusedError, "too large"),
    (429, "", True, TransientPlatformError, "asks to wait"),
    (500, "", True, UncertainError, "500"),
    (502, "<html>bad gateway</html>", True, UncertainError, "502"),
    (503, '{"error": {"message": "try later"}}', False, TransientPlatformError, "try later"),
]


@pytest.mark.parametrize(("status", "body", "acts", "kind", "text"), HTTP)
def test_each_status_has_its_error(status, body, acts, kind, text):
    fault = Fault.from_dict({"kind": "http", "status": status, "message": body})
    error = error_of(fault, "alice/job-1", acts=acts)
    assert type(error) is kind
    assert text in error.what and "alice/job-1" in error.what and "<html>" not in error.what


def test_too_large_a_source_has_its_code_whatever_the_answer_looks_like():
    for status, body in [(400, TOO_LARGE), (413, "<html>")]:
        error = error_of(Fault("http", status, said(body)), "x", acts=True)
        assert isinstance(error, RefusedError) and error.code == "source-size"


def test_too_many_calls_keep_the_seconds_that_were_asked_for():
    error = error_of(Fault("http", 429, "", 37.0), "x", acts=True)
    assert type(error) is TransientPlatformError and error.retry_after_s == 37.0


def test_no_hours_left_is_a_refusal_also_as_too_many_calls():
    error = error_of(Fault("http", 429, "Maximum weekly GPU quota of 30.00 hours reached."), "x", acts=True)
    assert isinstance(error, RefusedError) and error.code == "quota-exhausted"


@pytest.mark.parametrize(
    ("kind", "acts", "error"),
    [
        ("unsent", True, TransientPlatformError),
        ("unsent", False, TransientPlatformError),
        ("lost", True, UncertainError),
        ("lost", False, TransientPlatformError),
        ("something new", True, UncertainError),
        ("credentials", False, CredentialsError),
        ("import", False, MissingExtraError),
        ("disk", False, TransientPlatformError),  # full for a while: no reason to call the user
        ("local", True, TransientPlatformError),
    ],
)
def test_without_an_answer_only_what_changes_something_is_uncertain(kind, acts, error):
    assert type(error_of(Fault(kind, message="why"), "x", acts=acts)) is error


def test_the_message_of_a_nested_error_is_found_and_a_long_one_is_cut():
    assert said(TOO_LARGE) == "The kernel source must be less than 1 megabytes in size."
    assert said('{"code": 404, "message": "gone"}') == "gone"
    assert said("<!DOCTYPE html><p>") == ""
    assert len(said("a" * 5000)) == 300
