"""After the first step, what is trained is where it should be, or is named. ``meta`` plays the card."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import perdure
from perdure.core.errors import AcceleratorError
from perdure.training.placement import check_placement
from perdure.training.world.world import World
from training.jobs import Job
from training.test_loops import shuffled

CARD = torch.device("meta")


def world(model, optimizer=None, **more):
    made = World()
    made.track({"model": model, **({"optimizer": optimizer} if optimizer else {}), **more})
    return made


def two_layers():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_a_run_whose_parameters_are_all_on_the_cpu_stops_and_names_them():
    model = two_layers()
    with pytest.raises(AcceleratorError) as caught:
        check_placement(world(model, torch.optim.Adam(model.parameters())), CARD)
    assert "all that it trains is elsewhere: model.0.weight on cpu, model.0.bias on cpu" in caught.value.what
    assert "and 1 more" in caught.value.what
    assert "model.to(run.device)" in caught.value.hint


def test_parameters_that_are_offloaded_on_purpose_are_named_and_no_error():
    model = two_layers()
    (sentence, *_) = check_placement(world(model, torch.optim.Adam(model.parameters())), CARD, card_used=True)
    assert sentence.startswith("not on meta: model.0.weight on cpu")


def test_a_single_layer_and_a_buffer_that_stayed_behind_are_named():
    model = two_layers().to(CARD)
    model[0].bias = nn.Parameter(torch.zeros(3))
    model[1].running_mean = torch.zeros(3)
    found = check_placement(world(model, torch.optim.SGD(model.parameters(), 0.1)), CARD)
    assert found == [
        "not on meta: model.0.bias on cpu (trained elsewhere)",
        "not on meta: model.1.running_mean on cpu (parameters and buffers of modules)",
    ]


def test_an_average_that_is_kept_on_the_host_is_named():
    model = two_layers().to(CARD)
    found = check_placement(world(model, torch.optim.SGD(model.parameters(), 0.1), ema=nn.Linear(1, 1)), CARD)
    assert found == ["not on meta: ema.weight on cpu, ema.bias on cpu (parameters and buffers of modules)"]


def test_state_of_an_optimizer_on_the_host_is_named_and_its_counters_are_not():
    model = nn.Linear(2, 3).to(CARD)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.zeros(()), "exp_avg": torch.zeros(3)}
    found = check_placement(world(model, optimizer), CARD)
    assert found == [
        "not on meta: optimizer exp_avg of model.weight on cpu, optimizer exp_avg of model.bias on cpu "
        "(state of an optimizer)"
    ]


def test_batches_on_another_card_are_said_and_on_the_host_are_not():
    model = nn.Linear(2, 3).to(CARD)
    tracked = world(model, torch.optim.SGD(model.parameters(), 0.1))
    assert check_placement(tracked, CARD, {torch.device("cpu")}) == []
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    assert check_placement(World(), first, {second}) == ["the loader puts batches on cuda:1, and not on cuda:0"]


def test_on_the_cpu_nothing_is_said():
    assert check_placement(world(two_layers()), torch.device("cpu")) == []


def test_b67_a_run_on_a_card_whose_model_was_never_moved_stops_after_its_first_step(tmp_path):
    run = perdure.Run("job", root=tmp_path, accelerator="cpu")
    run._watch.device = torch.device("cuda:0")  # as if it had proved a card
    with (
        pytest.raises(AcceleratorError, match="the run is to train on cuda:0, but all that it trains is elsewhere"),
        run,
    ):
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(3):
            for (x,) in run.batches(loader):
                job.step(x)
    assert (run.step, job.book["steps"]) == (1, 1)
    assert torch.autocast.__enter__.__qualname__ == "autocast.__enter__"


def test_a_card_that_an_earlier_run_used_more_of_is_seen_to_be_used_again(tmp_path, monkeypatch):
    """A cell that is run again, with parameters that are offloaded on purpose: the peak stays that of before."""
    run = perdure.Run("job", root=tmp_path, accelerator="cpu")
    run._watch.device = torch.device("cuda:0")
    count = {"allocation.all.allocated": 7}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5_000_000)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: dict(count))
    run._watch.begin(0)
    assert not run._watch.card_used
    count["allocation.all.allocated"] = 8
    assert run._watch.card_used
    run._watch.stop()


def test_no_hook_is_put_on_any_module(tmp_path):
    with perdure.Run("job", root=tmp_path) as run:
        job, loader = Job(), shuffled()
        run.track(**job.tracked())
        for _ in run.epochs(2):
            for (x,) in run.batches(loader):
                job.step(x)
                for module in job.model.modules():
                    assert (
                        not module._forward_pre_hooks and not module._forward_hooks and not module._backward_hooks
                    )
