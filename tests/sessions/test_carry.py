"""A trainer that is not ours: its files are verified, kept, pruned and handed on."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from perdure.core.errors import CorruptError, RunLockedError
from perdure.relay.carry import Carrier, Carry, numbers
from perdure.relay.evidence import problem_of

SCRIPTS = Path(__file__).parent / "scripts"
CARRY = Carry("runs/**/*.pt", "--resume {path}")
TRAIN = ("run", "--root", "root", "--carry", "runs/**/last.pt", "--resume-with", "--resume {path}")


def carrier(root="root", *, inputs=(), command=("python", "train.py")):
    return Carrier(CARRY, command, root=Path(root), inputs=[Path(path) for path in inputs])


def checkpoint(path, text="weights", mtime_s=None):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", text)
    if mtime_s is not None:
        os.utime(path, (mtime_s, mtime_s))
    return path


def index(root):
    (found,) = Path(root).glob("carried/*/index.json")
    return json.loads(found.read_text())["files"]


def last_step(path):
    with zipfile.ZipFile(path) as archive:
        return int(archive.read("last/data.pkl").split()[0])


def test_a_trainer_that_was_cut_off_by_its_window_goes_on_from_its_own_file(perdure, tmp_path):
    first = perdure(*TRAIN, "--window", "8s", "--", sys.executable, SCRIPTS / "trainer.py")
    assert first.returncode == 75, first.stderr
    assert "exactness is not promised" in first.stderr
    reached = last_step(tmp_path / "runs/exp/last.pt")
    second = perdure(*TRAIN, "--window", "6s", "--", sys.executable, SCRIPTS / "trainer.py")
    resumed = int(re.search(r"resumed at (\d+) from runs/exp/last.pt", second.stdout).group(1))
    assert reached - 1 <= resumed <= reached
    assert len(index(tmp_path / "root")) == 2


def test_it_goes_on_in_another_folder_from_the_output_of_the_session_before(perdure, tmp_path):
    perdure(*TRAIN, "--window", "6s", "--", sys.executable, SCRIPTS / "trainer.py")
    (tmp_path / "next").mkdir()
    words = ("--window", "6s", "--input", tmp_path, "--", sys.executable, SCRIPTS / "trainer.py")
    second = perdure(*TRAIN, *words, cwd=tmp_path / "next")
    assert "resumed at" in second.stdout
    assert (tmp_path / "next/runs/exp/last.pt").exists()
    assert index(tmp_path / "next/root")


def test_a_trainer_that_finishes_ends_with_its_own_code(perdure):
    done = perdure(*TRAIN, "--", sys.executable, SCRIPTS / "trainer.py", "--steps", "1")
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_trainer_that_is_stopped_from_outside_is_paused(start_perdure, tmp_path):
    process = start_perdure(*TRAIN, "--", sys.executable, SCRIPTS / "trainer.py")
    while not list(tmp_path.glob("root/carried/*/index.json")):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75


def test_a_torn_file_does_not_replace_the_last_good_one(perdure, tmp_path):
    words = (sys.executable, SCRIPTS / "trainer.py", "--steps", "2", "--torn-from", "2", "--pace", "3")
    done = perdure(*TRAIN, "--", *words)
    assert "is not kept: it is no whole zip file" in done.stderr
    kept = index(tmp_path / "root")[-1]
    (folder,) = (tmp_path / "root/carried").iterdir()
    assert last_step(folder / kept["file"]) == 1


def test_the_newest_by_number_wins_where_times_are_equal(tmp_path):
    with carrier() as first:
        first.resume_arguments()
        checkpoint("runs/step_9000.pt", mtime_s=1000)
        checkpoint("runs/step_10000.pt", mtime_s=1000)
        first.look(last=True)
    assert index("root")[-1]["source"] == "runs/step_10000.pt"


def test_numbers_in_names_are_compared_as_numbers():
    assert numbers("runs/step_10000.pt") > numbers("runs/step_9000.pt")


def test_two_files_are_kept_and_older_ones_go(tmp_path):
    with carrier() as one:
        one.resume_arguments()
        for number in range(5):
            checkpoint("runs/last.pt", f"weights {number}", mtime_s=1000 + number)
            one.look(last=True)
    assert [entry["number"] for entry in index("root")] == [4, 5]
    (folder,) = Path("root/carried").iterdir()
    assert len(list(folder.glob("*.pt"))) == 2


def test_a_damaged_kept_file_is_skipped_and_the_older_one_is_handed_on(tmp_path, capsys):
    with carrier() as one:
        one.resume_arguments()
        for number in range(2):
            checkpoint("runs/last.pt", f"weights {number}", mtime_s=1000 + number)
            one.look(last=True)
    (folder,) = Path("root/carried").iterdir()
    newest = folder / index("root")[-1]["file"]
    data = bytearray(newest.read_bytes())
    data[40] ^= 1
    newest.write_bytes(data)
    with carrier() as two:
        assert two.resume_arguments() == ("--resume", "runs/last.pt")
    assert zipfile.ZipFile("runs/last.pt").read("data.pkl") == b"weights 0"
    assert "its digest differs" in capsys.readouterr().err


def test_when_nothing_verifies_the_trainer_is_not_started_afresh(tmp_path):
    with carrier() as one:
        one.resume_arguments()
        checkpoint("runs/last.pt")
        one.look(last=True)
    (folder,) = Path("root/carried").iterdir()
    (folder / index("root")[0]["file"]).write_bytes(b"")
    with carrier() as two, pytest.raises(CorruptError, match="no carried checkpoint file verifies"):
        two.resume_arguments()


def test_files_that_were_there_before_the_session_are_never_taken(tmp_path):
    checkpoint("runs/pretrained.pt")
    with carrier() as one:
        assert one.resume_arguments() == ()
        one.look(last=True)
    assert not list(Path("root").glob("carried/*/index.json"))


def test_a_file_that_shrank_as_if_stripped_of_its_optimizer_is_not_taken(tmp_path, capsys):
    with carrier() as one:
        one.resume_arguments()
        for text in ("weights and optimizer" * 100, "weights"):
            checkpoint("runs/last.pt", text)
            one.look(last=True)
    assert len(index("root")) == 1
    assert "as if it had been stripped" in capsys.readouterr().err


def test_what_is_in_the_way_of_a_file_that_is_put_back_is_moved_aside(tmp_path):
    with carrier() as one:
        one.resume_arguments()
        checkpoint("runs/last.pt", "good")
        one.look(last=True)
    Path("runs/last.pt").write_bytes(b"torn")
    with carrier() as two:
        two.resume_arguments()
    assert zipfile.ZipFile("runs/last.pt").read("data.pkl") == b"good"
    assert Path("runs/last.pt.replaced").read_bytes() == b"torn"


def test_another_command_is_another_training_and_that_is_said(tmp_path, capsys):
    with carrier(command=("python", "train.py", "--lr", "1")) as one:
        one.resume_arguments()
        checkpoint("runs/last.pt")
        one.look(last=True)
    with carrier(command=("python", "train.py", "--lr", "2")) as two:
        assert two.resume_arguments() == ()
    assert "python train.py --lr 1" in capsys.readouterr().err


def test_two_processes_do_not_carry_one_training(tmp_path, clean_environment):
    code = (
        "from pathlib import Path; from perdure.relay.carry import *\n"
        "Carrier(Carry('runs/**/*.pt', '--resume {path}'), ('python', 'train.py'), root=Path('root'), inputs=[])\n"
        "print('held', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunLockedError):
            carrier()
    finally:
        holder.communicate(b"\n")


def safetensors(size=16, cut=0):
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size - cut)


HDF5 = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK_0 = HDF5 + bytes(32) + struct.pack("<Q", 100)
SUPERBLOCK_2 = HDF5 + b"\x02" + bytes(19) + struct.pack("<Q", 100)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(100), "no whole zip file"),
        (safetensors(), ""),
        (safetensors(cut=1), "should have"),
        (struct.pack("<Q", 10**6) + b"{", "cut off"),
        (SUPERBLOCK_0.ljust(100, b"\0"), ""),
        (SUPERBLOCK_0.ljust(99, b"\0"), "should have 100 bytes"),
        (SUPERBLOCK_2.ljust(100, b"\0"), ""),
        (SUPERBLOCK_2.ljust(99, b"\0"), "should have 100 bytes"),
        (b"\x80\x04N.", ""),
        (b"\x80\x04N", "without its end"),
        (bytes(1000), "no known kind"),
    ],
)
def test_a_checkpoint_file_is_judged_by_its_structure(tmp_path, data, says):
    path = tmp_path / "file"
    path.write_bytes(data)
    assert says in problem_of(path)
    assert bool(says) == bool(problem_of(path))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
def test_a_zip_file_that_was_cut_anywhere_is_not_whole(tmp_path, share):
    path = checkpoint(tmp_path / "last.pt", "x" * 5000)
    assert problem_of(path) == ""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert problem_of(path)


def test_what_torch_and_safetensors_write_is_recognised(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(3)}, tmp_path / "new.pt")
    torch.save({"a": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert [problem_of(tmp_path / name) for name in ("new.pt", "old.pt")] == ["", ""]
