"""What the state leaves out is said in the first minute, once, with the line to add."""

import gc

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lrs

from cases.worlds import SCENARIOS, drive
from perdure.data.generators import capture_global
from world.ways import tracking, world_of


class Ema:
    """A moving average, whose ``state_dict`` may forget its counter."""

    def __init__(self, model, whole=True):
        self.model, self.whole = model, whole
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.updates, self.decay = 0, 0.9

    def update(self):
        self.updates += 1
        for n, p in self.model.named_parameters():
            self.shadow[n].lerp_(p.detach() + self.updates, 1 - self.decay)

    def state_dict(self):
        return {"shadow": self.shadow, **({"updates": self.updates} if self.whole else {})}

    def load_state_dict(self, state):
        for n, t in state["shadow"].items():
            self.shadow[n].copy_(t)
        self.updates = state.get("updates", self.updates)


def test_half_a_state_dict_is_found_at_the_first_save_and_said_once():
    model = nn.Linear(2, 2)
    ema = Ema(model, whole=False)
    world = tracking(model=model, ema=ema)
    ema.update()
    (sentence,) = world.first_save_check()
    assert sentence.startswith("changed since track, not in its state_dict: ema.updates;")
    assert "load_state_dict" in sentence
    assert world.first_save_check() == []


def test_a_whole_state_dict_is_not_complained_about_though_the_model_trains_on():
    model = nn.Linear(2, 2)
    ema = Ema(model)
    world = tracking(model=model, ema=ema)
    ema.update()
    with torch.no_grad():
        model.weight.add_(1)
    assert world.first_save_check() == []


def test_a_model_inside_that_nobody_saves_is_found():
    class Teacher:
        def __init__(self):
            self.net, self.seen = nn.Linear(2, 2), torch.Generator()

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    teacher = Teacher()
    world = tracking(teacher=teacher)
    with torch.no_grad():
        teacher.net.weight.add_(1)
    teacher.seen.manual_seed(3)
    (sentence,) = world.first_save_check()
    assert "teacher.net, teacher.seen;" in sentence


def test_attributes_deep_inside_are_found():
    class Inner:
        def __init__(self):
            self.n = 0

    class Outer:
        def __init__(self):
            self.inner, self.many = Inner(), [Inner()]

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    thing = Outer()
    world = tracking(thing=thing)
    thing.inner.n = thing.many[0].n = 1
    (sentence,) = world.first_save_check()
    assert "thing.inner.n, thing.many[0].n;" in sentence


def test_a_load_state_dict_that_refuses_its_own_state_is_said():
    class Broken(Ema):
        def load_state_dict(self, state):
            raise KeyError("shadows")

    (sentence,) = tracking(ema=Broken(nn.Linear(1, 1))).first_save_check()
    assert "ema: its load_state_dict refuses what its state_dict gives (KeyError('shadows'))" in sentence


def test_an_object_that_cannot_be_copied_is_not_checked_and_that_is_said():
    class Locked(Ema):
        def __deepcopy__(self, memo):
            raise TypeError("cannot pickle a lock")

    (sentence,) = tracking(ema=Locked(nn.Linear(1, 1))).first_save_check()
    assert "ema: whether its state_dict is complete could not be checked" in sentence


def test_the_check_changes_neither_the_object_nor_the_random_generators():
    class Draws(Ema):
        def load_state_dict(self, state):
            torch.rand(3)
            super().load_state_dict(state)

    model = nn.Linear(2, 2)
    ema = Draws(model)
    world = tracking(model=model, ema=ema)
    ema.update()
    before = (ema.updates, ema.shadow["weight"].clone(), capture_global()["torch"])
    world.first_save_check()
    assert ema.updates == before[0]
    assert torch.equal(ema.shadow["weight"], before[1])
    assert torch.equal(capture_global()["torch"], before[2])


def test_torchs_own_schedulers_and_scalers_are_known_to_be_whole():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = lrs.LambdaLR(optimizer, lambda n: 0.5)
    world = tracking(o=optimizer, s=scheduler, scaler=torch.amp.GradScaler("cpu"))
    optimizer.step()
    scheduler.step()
    assert world.first_save_check() == []


def build_schedulers(optimizer):
    return lrs.SequentialLR(optimizer, [lrs.ConstantLR(optimizer), lrs.CosineAnnealingLR(optimizer, 9)], [3])


@pytest.mark.parametrize("make", [lambda o: lrs.StepLR(o, 2), lrs.ReduceLROnPlateau, build_schedulers])
def test_a_scheduler_that_nobody_tracked_is_found_and_said_once(make):
    gc.collect()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    world = tracking(model=model, optimizer=optimizer)
    assert world.notes() == []
    scheduler = make(optimizer)
    notes = world.notes()
    found = [note for note in notes if type(scheduler).__name__ in note]
    assert found
    assert all("run.track(scheduler=...)" in note for note in notes)
    assert world.notes() == []


@pytest.mark.parametrize("make", [lambda o: lrs.StepLR(o, 2), build_schedulers])
def test_a_tracked_scheduler_is_not_reported_nor_are_those_inside_of_it(make):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    world = tracking(model=model, optimizer=optimizer, scheduler=make(optimizer))
    assert world.notes() == []


def test_a_tensor_that_belongs_to_a_graph_is_said():
    hidden = torch.ones(2, requires_grad=True) * 2
    world = tracking(carry={"h": [hidden]})
    (note,) = world.notes()
    assert (
        "carry['h'][0] belongs to an autograd graph: only its values are saved; keep carry['h'][0].detach()" in note
    )


class RunningMean:
    """As many RL code bases have it: an object with a state, inside of a module."""

    def __init__(self):
        self.mean, self.count = torch.zeros(2), 0


def test_an_object_with_a_state_inside_of_a_module_is_found():
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    model[1].rms = RunningMean()
    model[1].config = RunningMean()
    world = tracking(model=model)
    assert world.first_save_check() == []
    model[1].rms.count += 1
    (sentence,) = world.first_save_check()
    assert sentence.startswith("model.1.rms.count changed since track and is in no state")
    assert world.first_save_check() == []


def test_a_dict_by_parameters_inside_of_an_optimizer_is_found():
    class Backup(torch.optim.SGD):
        def step(self, closure=None):
            self.backup = {p: p.detach().clone() for g in self.param_groups for p in g["params"]}
            return super().step()

    model = nn.Linear(1, 1)
    optimizer = Backup(model.parameters(), lr=0.1)
    world = tracking(model=model, optimizer=optimizer)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    (sentence,) = world.first_save_check()
    assert sentence.startswith("optimizer.backup changed since track")


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_said_of_trainings_whose_state_is_whole():
    gc.collect()
    gc.freeze()  # what other tests left need not be searched for schedulers, once a scenario
    try:
        for name, scenario in SCENARIOS.items():
            w = scenario["build"]()
            if w["per_epoch"] == 8 or "workers" in name:
                continue  # their state is a plain one, and workers take time to start
            world = world_of(w)
            drive(w, stop=2)
            assert [*world.first_save_check(), *world.notes()] == [], name
    finally:
        gc.unfreeze()
