"""The small structure at the head of an epoch: what code there may change, copied, and put back before it runs again."""

import collections

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lrs

from perdure.tensors.encoding import flatten
from perdure.training.world.world import HEAD_BYTES
from world.ways import through_bytes, tracking


class Job:
    """A small training, tracked."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        for p in self.model[0].parameters():
            p.requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model[1].parameters(), lr=0.1, momentum=0.9)
        self.optimizer._opt_called = True  # an epoch has been before: schedulers warn otherwise
        self.scheduler = lrs.StepLR(self.optimizer, 1, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.log, self.generator = {"loss": [1]}, torch.Generator().manual_seed(1)
        self.big = collections.deque([torch.zeros(HEAD_BYTES)])
        self.world = tracking(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, scaler=self.scaler,
            log=self.log, generator=self.generator, big=self.big,
        )  # fmt: skip

    def head(self):
        """Code at the head of the epoch: unfreezes."""
        self.model[0].requires_grad_(True)
        self.model.eval()
        self.optimizer.add_param_group({"params": self.model[0].parameters(), "lr": 0.7})
        self.scheduler.step()
        self.log["loss"].append(2)
        return torch.rand(2, generator=self.generator).tolist()

    def body(self):
        """The epoch's steps up to the save."""
        self.model(torch.ones(4, 2)).sum().backward()
        self.optimizer.step()
        self.scaler.scale(torch.ones(1))
        self.scaler._scale.fill_(16.0)
        self.log["loss"].append(3)


def test_code_at_the_head_finds_what_it_found_and_the_boundary_brings_the_rest():
    old, new = Job(), Job()
    head = old.world.capture_head()
    drawn = old.head()
    old.body()
    saved = through_bytes({"objects": old.world.capture(), "head": head})

    assert new.world.restore(saved["objects"], strict=False) == []
    assert len(new.optimizer.param_groups) == 2
    new.world.restore_head(saved["head"])
    assert len(new.optimizer.param_groups) == 1
    assert [p.requires_grad for p in new.model.parameters()] == [False, False, True, True]
    assert new.model.training
    assert new.scheduler.last_epoch == 0
    assert new.scaler.get_scale() == 4.0
    assert new.log == {"loss": [1]}
    assert new.head() == drawn
    new.world.restore(saved["objects"])
    assert new.log == old.log
    assert new.scaler.get_scale() == 16.0
    assert repr(new.optimizer.state_dict()) == repr(old.optimizer.state_dict())
    assert torch.equal(torch.rand(2, generator=new.generator), torch.rand(2, generator=old.generator))


def test_the_head_is_a_copy():
    job = Job()
    head = job.world.capture_head()
    before = repr(flatten(head)[0])
    job.head()
    job.body()
    assert repr(flatten(head)[0]) == before


def test_the_head_is_small_and_prefers_small_objects():
    job = Job()
    head = job.world.capture_head()
    assert "big" not in head
    assert {"model", "optimizer", "scheduler", "scaler", "log", "generator"} <= set(head)
    assert sum(leaf.nbytes for leaf in flatten(head)[1]) < HEAD_BYTES


def test_a_large_stateful_object_is_asked_for_its_state_only_once():
    class Large:
        asked = 0

        def state_dict(self):
            self.asked += 1
            return {"x": torch.zeros(HEAD_BYTES)}

        def load_state_dict(self, state):
            pass

    large = Large()
    world = tracking(large=large)
    assert [world.capture_head() for _ in range(3)] == [{}, {}, {}]
    assert large.asked == 1


def test_a_head_that_cannot_be_resolved_yet_is_left_to_the_boundary():
    old, new = Job(), Job()
    head = through_bytes(old.world.capture_head())
    alone = tracking(optimizer=new.optimizer)
    alone.restore_head(head)
    assert len(new.optimizer.param_groups) == 1


@pytest.mark.parametrize("twice", [False, True])
def test_a_head_can_be_put_back_again(twice):
    old, new = Job(), Job()
    head = through_bytes(old.world.capture_head())
    for _ in range(2 if twice else 1):
        new.head()
        new.world.restore_head(head)
        assert new.log == {"loss": [1]}
        assert len(new.optimizer.param_groups) == 1
