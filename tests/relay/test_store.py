"""The database of relays: what was written is there, whole, once, and for one writer at a time."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.core.errors import RelayError, StaleError, StoreError
from perdure.platforms.protocol import Handle
from perdure.relay import changes
from perdure.relay.home import Home, find_home
from perdure.relay.lease import Lease
from perdure.relay.migrations import MIGRATIONS, migrate
from perdure.relay.notices import Notice
from perdure.relay.records import RunStand, SessionRecord, Standing
from perdure.relay.slugs import new_relay_id, session_slug
from perdure.relay.standing import standing_after
from perdure.relay.store import Store
from relay.steady import order

NOW_S = 1_800_000_000.0
RUN = RunStand("digits", "paused", 720, 3, "step-000000720", 10, "epochs", 12.5, "the window closes")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home with spaces é")


def session(number: int, stage: str = "collected", **changed: object) -> SessionRecord:
    values = {"accelerator": "t4x2", "window_s": 3600.0, "intended_s": NOW_S, **changed}
    return SessionRecord(number, f"perdure-digits-0123abcd-{number}", stage, **values)  # type: ignore[arg-type]


def test_a_relay_comes_back_as_it_was_put_down(home: Home, tmp_path: Path) -> None:
    asked = order(
        tmp_path,
        arguments=("--epochs", "10", "ünïcode"),
        environment={"A": "1"},
        place={"folder": "/f", "pace": {"poll_s": 1.5}},
        datasets=("me/data",),
        notify=("json://localhost",),
        when_exhausted="cpu",
        expect_s=3600.0,
    )
    with Store(home) as store:
        made = store.create("0123abcd", asked, NOW_S)
        full = session(
            1,
            handle=Handle("kaggle", "me/slug", 3, "https://x"),
            submitted_s=NOW_S + 1,
            started_s=NOW_S + 2,
            ended_s=NOW_S + 3,
            outcome="paused",
            reason="the window closes",
            runs=(RUN,),
            accelerator_s=3599.5,
            tail=("a", "Bär"),
            doubted_s=NOW_S,
            missing_s=NOW_S,
        )
        after = replace(
            made, state="waiting", reason="r", sessions=(full,), standing=standing_after(Standing(numbers=1), full)
        )
        after = replace(after, wake_s=NOW_S + 60, tries=2, stop="kindly", told="kindly")
        written = store.write(made, after, NOW_S)
        assert written == replace(after, revision=made.revision + 1)
    with Store(home) as store:
        assert store.load("0123abcd") == written == store.find("digits") == store.find("0123abcd")
        assert store.load("0123abcd").order == asked
        assert store.names() == ("digits",)


def test_an_argument_or_a_path_that_is_not_utf8_comes_back(home: Home, tmp_path: Path) -> None:
    asked = order(tmp_path, arguments=("caf\udce9",), project=tmp_path / "\udcff")
    with Store(home) as store:
        store.create("1a2b3c4d", asked, NOW_S)
        assert store.load("1a2b3c4d").order == asked


def test_two_relays_cannot_have_one_name(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        store.create(new_relay_id(), order(tmp_path), NOW_S)
        with pytest.raises(RelayError, match="there is a relay 'digits' already"):
            store.create(new_relay_id(), order(tmp_path), NOW_S)
        with pytest.raises(RelayError, match="there is no relay 'other'") as caught:
            store.find("other")
        assert caught.value.hint == "known: digits"


def test_who_read_an_older_revision_overwrites_nothing(home: Home, tmp_path: Path) -> None:
    with Store(home) as one, Store(home) as other:
        seen = one.create("0123abcd", order(tmp_path), NOW_S)
        stopped = other.write(seen, replace(seen, state="stopping"), NOW_S)
        with pytest.raises(StaleError):
            one.write(
                seen, replace(seen, state="active", sessions=(session(1, "intended"),)), NOW_S, [Notice("t", "b")]
            )
        assert one.load("0123abcd") == stopped
        assert one.unsent("0123abcd") == ()


def test_the_database_itself_allows_one_open_session_only(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        relay = store.create("0123abcd", order(tmp_path), NOW_S)
        two = (session(1, "submitted"), session(2, "intended"))
        with pytest.raises(sqlite3.IntegrityError):
            store.write(relay, replace(relay, sessions=two), NOW_S)
        assert store.load("0123abcd") == relay
        store.write(relay, replace(relay, sessions=(session(1, "ended"), session(2, "intended"))), NOW_S)


def _add(home: Home, times: int) -> None:
    with Store(home) as store:
        for _ in range(times):
            while True:
                relay = store.load("0123abcd")
                try:
                    store.write(relay, replace(relay, tries=relay.tries + 1), NOW_S)
                    break
                except StaleError:
                    continue


def test_two_processes_that_write_at_once_lose_no_change(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        store.create("0123abcd", order(tmp_path), NOW_S)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add, args=(home, 10)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    with Store(home) as store:
        assert (store.load("0123abcd").tries, store.load("0123abcd").revision) == (20, 21)


_WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from perdure.relay.home import Home
from perdure.relay.store import Store
store = Store(Home(Path(sys.argv[1])))
while True:
    relay = store.load("0123abcd")
    print(store.write(relay, replace(relay, tries=relay.revision), 1.0).revision, flush=True)
"""


def test_what_a_killed_writer_has_written_is_there(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        store.create("0123abcd", order(tmp_path), NOW_S)
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(home.folder)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = [int(writer.stdout.readline()) for _ in range(20)]
    os.kill(writer.pid, signal.SIGKILL)
    said += [int(line) for line in writer.stdout]
    writer.wait()
    writer.stdout.close()
    with Store(home) as store:
        relay = store.load("0123abcd")
        assert said[-1] <= relay.revision <= said[-1] + 1
        assert relay.tries == relay.revision - 1


def test_an_older_database_is_migrated_and_a_newer_one_left_alone(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        made = store.create("0123abcd", order(tmp_path), NOW_S)
        newer = (*MIGRATIONS, ("ALTER TABLE relays ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'",))
        migrate(store.connection, home.database, newer)
        migrate(store.connection, home.database, newer)
        assert store.run("SELECT colour FROM relays").fetchone()["colour"] == "red"
        assert store.load("0123abcd") == made
    with pytest.raises(RelayError, match=r"written by a newer Perdure \(version 2, known here: 1\)"):
        Store(home)


def test_a_migration_that_fails_in_the_middle_changes_nothing(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        broken = (
            *MIGRATIONS,
            ("ALTER TABLE relays ADD COLUMN colour TEXT", "ALTER TABLE nonsense ADD COLUMN x TEXT"),
        )
        with pytest.raises(sqlite3.OperationalError):
            migrate(store.connection, home.database, broken)
        assert store.run("PRAGMA user_version").fetchone()[0] == 1
        assert "colour" not in [row["name"] for row in store.run("PRAGMA table_info(relays)")]
    Store(home).close()


def test_a_tick_reads_the_sessions_that_matter_and_not_all(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        relay = store.create("0123abcd", order(tmp_path), NOW_S)
        done = [session(n, handle=Handle("k", f"s{n}"), runs=(replace(RUN, step=n),)) for n in range(1, 41)]
        lost = [session(n, "abandoned") for n in range(41, 46)]
        standing = Standing(numbers=46)
        for each in done:
            standing = standing_after(standing, replace(each, outcome="paused"))
        everything = (*done, *lost, session(46, "submitted", handle=Handle("k", "s46")))
        relay = store.write(relay, replace(relay, sessions=everything, standing=standing), NOW_S)
        assert [each.number for each in store.working(relay.id).sessions] == [40, 41, 42, 43, 46]
        store.looked(relay.id, 41, NOW_S)
        assert [each.number for each in store.working(relay.id).sessions] == [40, 42, 43, 44, 46]
        assert len(store.load(relay.id).sessions) == 46


def test_no_query_of_a_tick_scans_the_sessions(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        store.create("0123abcd", order(tmp_path), NOW_S)
        seen: list[str] = []
        store.connection.set_trace_callback(seen.append)
        store.working("0123abcd")
        store.unsent("0123abcd")
        store.connection.set_trace_callback(None)
        selects = [text for text in seen if text.lstrip().startswith("SELECT")]
        assert len(selects) == 5
        for text in selects:
            for row in store.run(f"EXPLAIN QUERY PLAN {text}"):
                assert not row["detail"].startswith("SCAN"), (text, row["detail"])


def test_the_page_describes_every_table_and_column(home: Home) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/relay-database.md").read_text(encoding="utf-8")
    with Store(home) as store:
        tables = {row["name"] for row in store.run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == tables
        for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
            described = [
                name
                for row in re.findall(r"^\| (`.+?) \|", part, re.MULTILINE)
                for name in re.findall(r"`(\w+)`", row)
            ]
            columns = [row["name"] for row in store.run(f"PRAGMA table_info({part.split()[0]})")]
            assert sorted(described) == sorted(columns)
    assert f"version of the tables: **{len(MIGRATIONS)}**" in page


def test_a_number_that_was_taken_back_is_free_again(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        relay = store.create("0123abcd", order(tmp_path), NOW_S)
        first = store.write(relay, changes.intended(relay, "none", 60.0, NOW_S), NOW_S)
        assert [each.slug for each in first.sessions] == ["perdure-digits-0123abcd-1"]
        back = store.write(first, changes.withdrawn(first, 1), NOW_S)
        assert store.load(relay.id) == back
        assert (back.sessions, back.standing.numbers) == ((), 0)


def test_a_full_disk_is_an_error_that_says_so(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        relay = store.create("0123abcd", order(tmp_path), NOW_S)
        pages = store.run("PRAGMA page_count").fetchone()[0]
        store.run(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full"):
            store.write(relay, replace(relay, reason="x" * 1_000_000), NOW_S)
        store.run("PRAGMA max_page_count = 100000")
        assert store.load(relay.id) == relay


def test_a_home_that_cannot_be_made_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open"):
        Store(Home(tmp_path / "file" / "home"))


@pytest.mark.parametrize("keep_bytes", [0, 4096])
def test_a_database_that_is_damaged_is_told_as_that(home: Home, tmp_path: Path, keep_bytes: int) -> None:
    with Store(home) as store:
        store.create("0123abcd", order(tmp_path), NOW_S)
    whole = home.database.read_bytes()
    home.database.write_bytes(whole[:keep_bytes] + b"\xff" * (len(whole) - keep_bytes))
    with pytest.raises(StoreError, match="relays.sqlite: ") as caught, Store(home) as store:
        store.relays()
    assert "damaged" in str(caught.value) and "free some" not in str(caught.value)


def test_the_home_is_where_the_variable_says(tmp_path: Path) -> None:
    assert find_home({"PERDURE_HOME": str(tmp_path)}).database == tmp_path / "relays.sqlite"
    assert find_home({}).folder.name == "perdure"


@pytest.mark.parametrize(
    "name", ["digits", "Ein sehr, sehr langer Name für einen Lauf, der nicht passt", "ä", "x" * 99]
)
def test_a_slug_fits_every_platform(name: str) -> None:
    slug = session_slug(name, "0123abcd", 12345)
    assert 6 <= len(slug) <= 50
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert "--" not in slug
    assert slug.startswith("perdure-") or slug == "perdure-0123abcd-12345"
    assert slug.endswith("-0123abcd-12345")


# the lease


def test_only_one_holds_the_lease_until_it_gives_it_back(home: Home, tmp_path: Path) -> None:
    with Store(home) as store, Store(home) as second:
        store.create("0123abcd", order(tmp_path), NOW_S)
        one, other = Lease(store, "0123abcd"), Lease(second, "0123abcd")
        assert one.take(NOW_S) is None
        holder = other.take(NOW_S + 1e6)  # a living process keeps it, however long it takes
        assert holder is not None
        assert holder.pid == os.getpid()
        other.release()
        assert one.renew(NOW_S + 600)
        one.release()
        assert other.take(NOW_S) is None
        assert not one.renew(NOW_S + 1200)


_HOLDER = """
import sys, time
from pathlib import Path
from perdure.relay.home import Home
from perdure.relay.lease import Lease
from perdure.relay.store import Store
store = Store(Home(Path(sys.argv[1])))
print(Lease(store, "0123abcd").take(float(sys.argv[2])), flush=True)
time.sleep(60)
"""


def test_the_lease_of_a_killed_process_is_taken_at_once(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        store.create("0123abcd", order(tmp_path), NOW_S)
        command = [sys.executable, "-c", _HOLDER, str(home.folder), str(NOW_S)]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "None\n"
        taken = Lease(store, "0123abcd").take(NOW_S)
        assert taken is not None
        assert taken.pid == holder.pid
        holder.kill()
        while holder.poll() is None:
            time.sleep(0.01)
        holder.stdout.close()
        assert Lease(store, "0123abcd").take(NOW_S) is None


def test_the_lease_of_another_machine_is_good_for_its_time(home: Home, tmp_path: Path) -> None:
    with Store(home) as store:
        store.create("0123abcd", order(tmp_path), NOW_S)
        values = ("0123abcd", "token", 1, 5.0, "another-boot pid:[1]", "another-host", NOW_S + 900)
        store.run("INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
        assert Lease(store, "0123abcd").take(NOW_S + 899) is not None
        assert Lease(store, "0123abcd").take(NOW_S + 900) is None
