"""What a session sent away while it ran is gone on from, where its output does not hold it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from left_outputs import RELAY, FolderPlatform, leave_run

from perdure.checkpoint.verify import verify
from perdure.core.errors import NotThereError, RelayError, TransientPlatformError
from perdure.platforms.protocol import Handle
from perdure.relay.fetching import fetch_run
from perdure.relay.handover import Collected
from perdure.relay.inside.mirror import _hold
from perdure.relay.inside.mirror_files import FilesTarget
from perdure.relay.mirrored import mirror_datasets, with_mirror
from perdure.relay.records import Relay, RelayOrder, RunSource, RunStand, SessionRecord, Standing

LOST = Collected("no-output", "it left no output", whole=False)
SESSION = SessionRecord(2, "s-2", "ended", "none", 60.0, 0.0, handle=Handle("kaggle", "me/s-2", 1))
FIRST = RunStand("digits", "paused", 100, 1, "step-000000100")


def relay_with(mirror: str, **standing) -> Relay:
    order = RelayOrder(
        "digits", "t.py", Path("p"), "kaggle", "none", 60.0, Path("o"), Path("b"), "xxh3-128:0", mirror=mirror
    )
    return Relay(RELAY, order, "active", "", 1, 0.0, sessions=(SESSION,), standing=Standing(**standing))


def send(folder: Path, step: int, url: Path) -> None:
    """What the thread in the session does with its newest checkpoint."""
    kept = _hold(leave_run(folder, [step]) / "checkpoints" / f"step-{step:09d}")
    FilesTarget(str(url), RELAY).put([kept])
    kept.checkpoint.close()


@pytest.fixture
def platform(tmp_path):
    return FolderPlatform(tmp_path / "nothing")


def test_a_run_goes_on_from_the_mirror_when_the_output_is_gone(platform, tmp_path):
    send(tmp_path / "a", 300, tmp_path / "mirror")
    relay = relay_with(str(tmp_path / "mirror"), runs=(RunSource(FIRST, 1),))
    found = with_mirror(platform, relay, SESSION, LOST, 0.0)
    assert found.runs == (RunStand("digits", "running", 300, 3, "step-000000300", mirrored=True),)
    assert found.reason == "it left no output; the mirror holds digits at step 300"
    assert found.outcome == "no-output"


def test_a_mirror_that_holds_less_than_an_output_is_not_used(platform, tmp_path):
    send(tmp_path / "a", 90, tmp_path / "mirror")
    relay = relay_with(str(tmp_path / "mirror"), runs=(RunSource(FIRST, 1),))
    assert with_mirror(platform, relay, SESSION, LOST, 0.0) == LOST
    killed = Collected("killed", "too long", (replace(FIRST, step=95),), whole=False)
    assert with_mirror(platform, relay_with(str(tmp_path / "mirror")), SESSION, killed, 0.0) == killed


def test_half_a_checkpoint_in_a_mirror_does_not_count(platform, tmp_path):
    send(tmp_path / "a", 300, tmp_path / "mirror")
    tensors = next((tmp_path / "mirror" / RELAY / "digits/tensors").iterdir())
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert with_mirror(platform, relay_with(str(tmp_path / "mirror")), SESSION, LOST, 0.0) == LOST


def test_an_output_that_came_whole_needs_no_mirror(platform):
    paused = Collected("paused", "", (FIRST,))
    assert with_mirror(platform, relay_with("nosuchscheme://x"), SESSION, paused, 0.0) == paused


def test_a_mirror_that_cannot_be_read_is_asked_again_and_then_done_without(platform):
    relay = relay_with("nosuchscheme://x")
    assert with_mirror(platform, relay, SESSION, LOST, 3599.0) is None
    found = with_mirror(platform, relay, SESSION, LOST, 3600.0)
    assert "the mirror cannot be read: nosuchscheme://x" in found.reason
    assert found.runs == ()


def test_a_run_that_only_the_mirror_holds_is_fetched_from_there(tmp_path):
    send(tmp_path / "a", 300, tmp_path / "mirror")
    left = tmp_path / "left"
    left.mkdir()
    (left / "notes.txt").write_text("the session after it had nothing left to do")
    stand = replace(FIRST, step=300, checkpoint="step-000000300", mirrored=True)
    relay = relay_with(str(tmp_path / "mirror"), runs=(RunSource(stand, 2),))
    last = SessionRecord(3, "s-3", "collected", "none", 60.0, 0.0, Handle("kaggle", "me/s-3"), outcome="finished")
    relay = replace(relay, sessions=(SESSION, last))
    found = fetch_run(FolderPlatform(left), relay, tmp_path / "out")
    assert found.checkpoints == (tmp_path / "out/digits/checkpoints/step-000000300",)
    assert not verify(found.checkpoints[0]).problems
    assert (tmp_path / "out/notes.txt").is_file()
    with pytest.raises(RelayError, match="lies in the data set"):
        fetch_run(
            FolderPlatform(left), replace(relay, order=replace(relay.order, mirror="kaggle")), tmp_path / "two"
        )


class WithDataSets(FolderPlatform):
    texts: dict[tuple[str, str], str]

    def dataset_text(self, dataset: str, name: str) -> str:
        if "processed" in self.texts.get((dataset, name), ""):
            raise TransientPlatformError("a version is being processed")
        if (dataset, name) not in self.texts:
            raise NotThereError(dataset)
        return self.texts[dataset, name]


def test_a_mirror_in_a_data_set_is_read_by_its_description_and_mounted_for_the_next_session(tmp_path):
    platform = WithDataSets(tmp_path)
    key = (f"me/perdure-{RELAY}-mirror", "perdure-mirror.json")
    platform.texts = {}
    relay = relay_with("kaggle")
    assert with_mirror(platform, relay, SESSION, LOST, 0.0) == LOST  # it was never made
    platform.texts[key] = "processed"
    assert with_mirror(platform, relay, SESSION, LOST, 0.0) is None  # what it holds changes still
    runs = [{"run": "digits", "step": 300, "checkpoint": "step-000000300"}]
    platform.texts[key] = json.dumps({"format": 1, "relay": RELAY, "runs": runs})
    (stand,) = with_mirror(platform, relay, SESSION, LOST, 0.0).runs
    assert (stand.step, stand.checkpoint, stand.mirrored) == (300, "step-000000300", True)
    assert mirror_datasets(relay_with("kaggle", runs=(RunSource(stand, 2),))) == (key[0],)
    assert mirror_datasets(relay_with("kaggle", runs=(RunSource(FIRST, 2),))) == ()
    assert mirror_datasets(relay_with("s3://bucket", runs=(RunSource(stand, 2),))) == ()
