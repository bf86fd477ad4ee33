"""``perdure rehearse``: killed sessions, windows, a full disk, and the right verdict on what came of it."""

import json
import signal
import sys
import time
from pathlib import Path
from random import Random

import psutil
import pytest

from perdure.relay.leg import Killer
from perdure.relay.rehearsal import Plan, Rehearsal

SCRIPTS = Path(__file__).parent / "scripts"
RESUMES = """
import time
import torch
import perdure
with perdure.Run("toy", save_every="2 steps", seed=0) as run:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(32, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    run.track(model=model, optimizer=optimizer)
    for epoch in run.epochs(8):
        for (batch,) in run.batches(loader):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
"""


def rehearse(work, *words, window_s=60.0, kills=1, disk_bytes=None, seed=4, sessions_max=20):
    lines = []
    plan = Plan((sys.executable, *map(str, words)), work, window_s, kills, disk_bytes, seed, sessions_max)
    result = Rehearsal(plan, lines.append).run()
    return result, lines


def steps(*faults, count=60):
    return (SCRIPTS / "steps.py", count, *faults)


def test_a_training_that_resumes_rightly_is_identical_through_kills_and_pauses(tmp_path):
    result, lines = rehearse(tmp_path, *steps("pauses", count=200), kills=2, disk_bytes=5_000_000)
    assert (result.verdict, result.differences) == ("identical", ())
    hows = [leg.end.how for leg in result.legs]
    assert hows[:2] == ["killed", "killed"]
    assert set(hows[2:-1]) == {"paused"}
    assert hows[-1] == "finished"
    assert result.lost_s is not None
    assert "the final state of steps is the same" in result.reason
    assert lines[0].startswith("session 1: killed hard")


def test_a_generator_that_nothing_depends_on_is_left_out_and_that_is_said(tmp_path):
    result, _ = rehearse(tmp_path, *steps("odd-generator", count=20), kills=0)
    assert result.verdict == "identical"
    assert "steps: generators/python" in result.notes[0]


def test_the_same_seed_kills_at_the_same_shares(tmp_path):
    assert Killer(Random(3))._share == Killer(Random(3))._share


def test_a_resume_that_forgets_a_part_of_the_state_is_found_and_named(tmp_path):
    result, _ = rehearse(tmp_path, *steps("forgets", "pauses", count=80))
    assert result.verdict == "differs"
    assert result.differences[0].where.startswith("steps: ")
    assert any("momentum" in each.where or "model/weight" in each.where for each in result.differences)
    assert len(result.twins) == 2


def test_a_script_that_is_not_deterministic_is_not_blamed_on_the_resume(tmp_path):
    result, _ = rehearse(tmp_path, *steps("unseeded", "pauses", count=80))
    assert result.verdict == "not deterministic"
    assert "seed" in result.reason


def test_a_training_that_needs_more_disk_than_there_is_is_given_up_with_the_reason(tmp_path):
    result, _ = rehearse(tmp_path, *steps("hungry"), kills=0, disk_bytes=800_000)
    assert result.verdict == "not finished"
    assert "no progress in 3 sessions in a row" in result.reason
    assert any("DiskFullError" in line for line in result.tail)


def test_a_training_that_never_saves_is_given_up_after_three_windows(tmp_path):
    result, _ = rehearse(tmp_path, *steps("stuck", count=1000), kills=0, window_s=2.0)
    assert result.verdict == "not finished"
    assert len(result.legs) == 3
    assert "no progress" in result.reason


def test_a_script_that_does_not_use_perdure_is_judged_by_the_files_it_leaves(tmp_path):
    result, _ = rehearse(tmp_path, SCRIPTS / "plain.py", 3, window_s=10)
    assert (result.verdict, result.uses_perdure) == ("identical", False)
    assert [leg.end.how for leg in result.legs] == ["killed", "finished"]
    assert result.lost_steps is None
    assert "the file it leaves is the same" in result.reason


def test_a_script_that_cannot_finish_in_its_window_loses_everything_each_time_and_that_is_said(tmp_path):
    result, _ = rehearse(tmp_path, SCRIPTS / "plain.py", 1.5, kills=0, window_s=0.5)
    assert result.verdict == "not finished"
    assert [leg.end.how for leg in result.legs] == ["window"] * 3
    assert "does not use Perdure" in result.reason
    assert "uninterrupted it takes" in result.reason


def test_files_that_differ_in_each_run_are_not_blamed_on_the_kills(tmp_path):
    result, _ = rehearse(tmp_path, SCRIPTS / "plain.py", 0.3, "unseeded", kills=0)
    assert result.verdict == "not deterministic"
    assert result.differences[0].where == "out/model.bin"


def test_a_script_that_leaves_nothing_cannot_be_called_identical(tmp_path):
    result, _ = rehearse(tmp_path, "-c", "pass", kills=0)
    assert result.verdict == "nothing to compare"


def test_a_script_that_fails_by_itself_is_not_rehearsed_further(tmp_path):
    result, _ = rehearse(tmp_path, "-c", "raise ValueError('mine')", kills=0)
    assert result.verdict == "failed"
    assert result.tail[-1] == "ValueError: mine"


def test_outputs_that_no_later_session_needs_are_dropped(tmp_path):
    result, _ = rehearse(tmp_path, *steps("pauses", count=280), kills=0)
    assert len(result.legs) == 5
    assert len(list((tmp_path / "outputs").iterdir())) <= 3


def test_a_real_run_is_identical_after_a_kill(perdure, tmp_path):
    (tmp_path / "train.py").write_text(RESUMES)
    words = ("--window", "60s", "--kills", "1", "--disk", "50MB", "--seed", "4", "--json")
    done = perdure("rehearse", "train.py", *words, timeout=300)
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"]) == (0, "identical"), done.stdout
    assert document["sessions"][0]["ended"] == "killed"
    assert document["sessions"][-1]["ended"] == "finished"
    assert "session 1: killed hard" in done.stderr


def test_the_command_ends_with_1_and_names_the_difference_where_it_is_not_identical(perdure, tmp_path):
    words = ("--window", "60s", "--kills", "1", "--seed", 4, "--work", tmp_path / "work")
    words = (*words, "--", 80, "forgets", "pauses")
    done = perdure("rehearse", SCRIPTS / "steps.py", *words)
    assert done.returncode == 1
    assert "verdict     differs" in done.stdout
    assert "session-0001  killed" in done.stdout
    assert (tmp_path / "work/sessions/session-0001/log.txt").exists()


def test_a_notebook_is_rehearsed_as_a_script_is(perdure, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    cell = "import time; time.sleep(0.2); open('result', 'w').write('done')"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    (tmp_path / "book.ipynb").write_text(nbformat.writes(book))
    done = perdure("rehearse", "book.ipynb", "--kills", "0", "--json")
    document = json.loads(done.stdout)
    assert (document["verdict"], document["uses_perdure"]) == ("identical", False)


def test_nothing_is_left_when_a_rehearsal_is_stopped(start_perdure, tmp_path):
    script = tmp_path / "sleeps.py"
    script.write_text(
        "import os, time; open(os.environ['PERDURE_SESSION_REPORT'] + '.pid', 'w').write(str(os.getpid())); time.sleep(60)"
    )
    process = start_perdure("rehearse", script, "--work", tmp_path / "work", "--disk", "1MB")
    pids = tmp_path / "work/sessions/session-0001/report.json.pid"
    while not (pids.exists() and pids.read_text()):
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert not psutil.pid_exists(int(pids.read_text()))
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_a_work_folder_that_is_not_empty_is_refused(perdure, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mine").write_text("")
    done = perdure("rehearse", SCRIPTS / "plain.py", "--work", tmp_path / "work", "--", 1)
    assert done.returncode == 2
    assert "not empty" in done.stderr
