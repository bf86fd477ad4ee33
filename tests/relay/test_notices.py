"""Notices reach a real receiver, hold no secrets in what goes wrong, and never stop a relay."""

from __future__ import annotations

import builtins
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from perdure.core.errors import ConfigError, MissingExtraError
from perdure.relay.notices import check_urls, notice_of, notify
from perdure.relay.records import Relay, RelayOrder, RunStand, SessionRecord

ORDER = RelayOrder(
    "digits", "t.py", Path("p"), "kaggle", "t4x2", 60.0, Path("/home/me/out"), Path("b"), "xxh3-128:0"
)
RUN = RunStand("digits", "paused", 200, 2, "step-000000200", 1000, "steps")
BEFORE = Relay("1a2b3c4d", ORDER, "active", "", 1, 0.0)


class Receiver(ThreadingHTTPServer):
    """Keeps what is posted; answers with a code, or after a release."""

    def __init__(self, code: int = 200, *, silent: bool = False) -> None:
        received: list[dict] = []
        release = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if silent:
                    release.wait(60)
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        self.received, self.release = received, release
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, secret: str = "") -> str:
        return f"json://{secret}127.0.0.1:{self.server_port}/"

    def __exit__(self, *_) -> None:
        self.release.set()
        self.shutdown()
        self.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_notice_arrives():
    with Receiver() as one, Receiver() as two:
        assert notify([one.url(), two.url()], "digits is done", "step 1000\nthe run is in /out") == ()
        for receiver in (one, two):
            (message,) = receiver.received
            assert (message["title"], message["message"]) == ("digits is done", "step 1000\nthe run is in /out")


def test_a_receiver_that_fails_is_named_without_its_secret_and_others_are_served():
    with Receiver(500) as bad, Receiver() as good:
        problems = notify([bad.url("me:hunter2@"), good.url()], "t", "b")
        assert len(good.received) == 1
    assert problems == ("json://...: it could not be delivered",)


def test_a_receiver_that_never_answers_does_not_hold_a_relay_up():
    with Receiver(silent=True) as slow, Receiver() as good:
        problems = notify([slow.url(), good.url()], "t", "b", limit_s=1.0)
        assert problems == ("json://...: no answer in time",)
        assert len(good.received) == 1


def test_nobody_there_is_a_problem_and_no_error():
    with Receiver() as gone:
        url = gone.url()
    assert notify([url], "t", "b") == ("json://...: it could not be delivered",)


def test_a_wrong_address_is_refused_before_the_start_without_showing_it():
    with pytest.raises(ConfigError) as caught:
        check_urls(["json://localhost", "tgram://secret"])
    assert "secret" not in str(caught.value)
    assert "tgram://..." in str(caught.value)
    with pytest.raises(ConfigError, match="no scheme"):
        check_urls(["me@example.com"])
    assert notify(["me@example.com"], "t", "b") == ("(no scheme): no address that apprise understands",)


def test_without_apprise_the_start_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "apprise":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    check_urls([])
    with pytest.raises(MissingExtraError) as caught:
        check_urls(["json://localhost"])
    assert caught.value.hint == "pip install 'perdure[notices]'"
    assert notify(["json://localhost"], "t", "b") == (
        "notices need apprise: apprise: pip install 'perdure[notices]'",
    )


def _session(number, outcome, **more):
    return SessionRecord(number, f"s-{number}", "collected", "t4x2", 60.0, 0.0, outcome=outcome, **more)


def test_a_session_that_ended_is_told_once():
    ended = _session(1, "paused", reason="the window closes", runs=(RUN,), accelerator_s=5400.0)
    after = replace(BEFORE, sessions=(ended,))
    notice = notice_of(BEFORE, after)
    assert notice.title == "digits: session 1 paused"
    assert notice.body == "the window closes\ndigits: paused, step 200 of 1000\n1 h 30 min of t4x2"
    assert notice_of(after, replace(after, state="waiting", reason="for hours")) is None


def test_a_killed_session_shows_its_last_lines():
    tail = tuple(f"line {n}" for n in range(40))
    after = replace(BEFORE, sessions=(_session(1, "killed", reason="too long", tail=tail),))
    notice = notice_of(BEFORE, after)
    assert notice.title == "digits: session 1 was killed"
    assert notice.body.splitlines() == ["too long", *tail[-10:]]


def test_the_end_and_a_need_are_told_and_a_start_is_not():
    sessions = (_session(1, "finished", runs=(replace(RUN, status="finished", step=1000),)),)
    done = notice_of(replace(BEFORE, sessions=sessions), replace(BEFORE, state="done", sessions=sessions))
    assert done.title == "digits is done"
    assert done.body.endswith("digits: finished, step 1000 of 1000\nthe run is in /home/me/out")
    need = notice_of(BEFORE, replace(BEFORE, state="needs-you", reason="no progress in 3 sessions"))
    assert need.title == "digits needs you"
    assert need.body == "no progress in 3 sessions\nperdure relay status digits says more"
    assert notice_of(replace(BEFORE, state="waiting"), BEFORE) is None
