"""Plain containers, arrays, tensors, generators and stateful objects: in place, recursively."""

import collections
import copy
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler as lrs

from perdure.core.errors import CannotCarryError, StateMismatchError
from perdure.tensors.carried import Pickled
from perdure.tensors.encoding import flatten, to_buffers, unflatten
from perdure.training.world.world import World
from world.ways import through_bytes, tracking


def moved(old, new):
    """Save one object, restore another."""
    saved = through_bytes(tracking(thing=old).capture())
    tracking(thing=new).restore(saved)
    return saved


# ---------------------------------------------------------------- in place


def test_nested_containers_arrays_and_leaf_tensors_are_refilled_and_references_stay_good():
    def build(n):
        return {
            "log": {"loss": [n], "acc": collections.deque([n], maxlen=3)},
            "array": np.full(3, n),
            "tensor": torch.full((2,), float(n)),
            "set": {n},
            "pair": ([n], n),
        }

    old, new = build(7), build(0)
    log, loss, acc, array, tensor, some, inner = (
        new["log"], new["log"]["loss"], new["log"]["acc"], new["array"], new["tensor"], new["set"], new["pair"][0],
    )  # fmt: skip
    old["log"]["loss"].append(8)
    moved(old, new)
    assert log is new["log"]
    assert loss == [7, 8]
    assert list(acc) == [7]
    assert array.tolist() == [7, 7, 7]
    assert tensor.tolist() == [7, 7]
    assert some == {7}
    assert inner == [7]
    assert new["pair"] == ([7], 7)


def test_keys_that_are_gone_go_and_order_comes_back():
    old, new = {"b": 1, "a": 2}, {"a": 0, "c": 3}
    moved(old, new)
    assert list(new.items()) == [("b", 1), ("a", 2)]


def test_what_does_not_fit_is_replaced():
    old = {"a": torch.ones(3), "d": collections.deque([1], maxlen=5), "n": np.ones(2), "x": [1]}
    new = {"a": torch.ones(2), "d": collections.deque([1], maxlen=4), "n": np.ones(2, np.float32), "x": (1,)}
    moved(old, new)
    assert new["a"].shape == (3,)
    assert new["d"].maxlen == 5
    assert new["n"].dtype == np.float64
    assert new["x"] == [1]


def test_a_defaultdict_keeps_its_live_factory():
    old, new = collections.defaultdict(list, a=[1]), collections.defaultdict(list)
    moved(old, new)
    new["b"].append(2)
    assert new == {"a": [1], "b": [2]}


def test_a_deque_of_samples_comes_back():
    old, new = collections.deque(maxlen=4), collections.deque(maxlen=4)
    old.extend((torch.full((2,), float(i)), i) for i in range(6))
    moved(old, new)
    assert [(t.tolist(), i) for t, i in new] == [([i, i], i) for i in map(float, range(2, 6))]


def test_a_tracked_container_of_another_sort_is_refused():
    with pytest.raises(
        StateMismatchError, match="thing is a deque with maxlen=4 in the checkpoint and a deque with maxlen=5"
    ):
        moved(collections.deque(maxlen=4), collections.deque(maxlen=5))
    with pytest.raises(StateMismatchError, match="thing is a dict in the checkpoint and a list here"):
        moved({}, [])
    with pytest.raises(StateMismatchError, match=r"thing is a tensor of torch.float32, shape \(2,\)"):
        moved(torch.ones(2), torch.ones(3))


def test_one_live_list_in_two_places_gets_two_lists_if_they_were_two():
    shared = []
    old, new = {"a": [1], "b": [2]}, {"a": shared, "b": shared}
    moved(old, new)
    assert new == {"a": [1], "b": [2]}


def test_one_live_list_in_two_places_stays_one_if_they_were_equal():
    was, shared = [1], []
    new = {"a": shared, "b": shared}
    moved({"a": was, "b": was}, new)
    assert new["a"] is new["b"] is shared
    assert shared == [1]


def test_one_live_tensor_in_two_places_gets_two_tensors_if_they_were_two():
    shared = torch.zeros(2)
    new = {"a": shared, "b": shared, "c": shared[:1]}
    moved({"a": torch.ones(2), "b": torch.full((2,), 2.0), "c": torch.full((1,), 3.0)}, new)
    assert [new[k].tolist() for k in "abc"] == [[1, 1], [2, 2], [3]]


def test_views_of_one_live_array_are_filled_in_place_as_they_were():
    def build(value):
        base = np.full(6, value)
        return {"head": base[:3], "base": base, "tail": base[4:]}

    old, new = build(1), build(0)
    old["base"][:] = range(6)
    base = new["base"]
    moved(old, new)
    assert new["base"] is base
    assert new["head"].tolist() == [0, 1, 2]
    new["tail"][:] = 9
    assert base.tolist() == [0, 1, 2, 3, 9, 9]


def test_ties_between_containers_come_back_where_the_fresh_ones_have_none():
    base = torch.arange(4.0)
    saved = through_bytes(tracking(a={"x": base}, b={"y": base[2:]}).capture())
    a, b = {}, {}
    tracking(a=a, b=b).restore(saved)
    a["x"].fill_(5)
    assert b["y"].tolist() == [5, 5]
    assert saved["a"]["a"]["value"]["x"].tolist() == [0, 1, 2, 3]


MIXED = st.recursive(
    st.integers() | st.text(max_size=3) | st.builds(lambda n: torch.full((2,), float(n)), st.integers(0, 9))
    | st.builds(lambda n: np.full(2, n), st.integers(0, 9)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    | st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3).map(lambda v: collections.deque(v, maxlen=4)),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), MIXED), st.dictionaries(st.sampled_from("abcd"), MIXED))
def test_any_container_becomes_what_was_saved_whatever_it_was(old, new):
    want = repr(old)
    saved = moved(old, new)
    assert repr(new) == want
    moved(old, new)
    assert repr(new) == want
    for value in new.values():  # what was restored does not reach back into what was saved
        if isinstance(value, torch.Tensor):
            value.fill_(-1)
    assert repr(saved["thing"]["thing"]["value"]) == want


# ---------------------------------------------------------------- directly


def test_tensors_and_arrays_are_tracked_directly():
    tensor, array = torch.zeros(3), np.zeros(3)
    saved = through_bytes(tracking(t=torch.ones(3), a=np.ones(3)).capture())
    tracking(t=tensor, a=array).restore(saved)
    assert tensor.tolist() == array.tolist() == [1, 1, 1]


GENERATORS = {
    "torch": (lambda s: torch.Generator().manual_seed(s), lambda g: torch.rand(3, generator=g).tolist()),
    "numpy": (np.random.default_rng, lambda g: g.random(3).tolist()),
    "philox": (lambda s: np.random.Generator(np.random.Philox(s)), lambda g: g.normal(size=3).tolist()),
    "legacy": (np.random.RandomState, lambda g: g.normal(size=3).tolist()),
    "python": (random.Random, lambda g: [g.gauss(0, 1) for _ in range(3)]),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_are_tracked_alone_in_a_list_and_among_plain_values(kind):
    make, draw = GENERATORS[kind]
    old = [make(1), make(2), make(3)]
    for generator in old:
        draw(generator)
    saved = through_bytes(tracking(g=old[0], many=[old[1]], bag={"n": 1, "g": old[2]}).capture())
    want = [draw(generator) for generator in old]
    new, bag = [make(8), make(9)], {}
    tracking(g=new[0], many=[new[1]], bag=bag).restore(saved)
    assert [draw(generator) for generator in (*new, bag["g"])] == want


def test_a_generator_of_another_kind_is_refused():
    with pytest.raises(
        StateMismatchError, match="thing is python generator in the checkpoint and numpy generator here"
    ):
        moved(random.Random(1), np.random.default_rng(1))


def test_generators_come_last_since_other_objects_may_draw_while_they_are_restored():
    generator = torch.Generator().manual_seed(1)

    class Draws:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            torch.rand(1, generator=generator)

    world = tracking(g=generator, d=Draws())
    saved = through_bytes(world.capture())
    want = torch.rand(2, generator=generator)
    world.restore(saved)
    assert torch.equal(torch.rand(2, generator=generator), want)


# ---------------------------------------------------------------- state_dict


class Meter:
    def __init__(self):
        self.values, self.sum = [], torch.zeros(1)

    def state_dict(self):
        return {"values": self.values, "sum": self.sum, "key": len}

    def load_state_dict(self, state):
        self.values, self.sum, self.key = state["values"], state["sum"], state["key"]


def test_an_object_that_keeps_what_it_is_given_does_not_reach_into_the_saved_state():
    old, new = Meter(), Meter()
    old.values.append(1)
    saved = moved(old, new)
    new.values.append(2)
    new.sum += 1
    assert saved["thing"]["thing"]["state"]["values"] == [1]
    assert saved["thing"]["thing"]["state"]["sum"].tolist() == [0]


def test_functions_in_a_state_dict_come_from_the_live_object():
    old, new = Meter(), Meter()
    moved(old, new)
    assert new.key is len


SCHEDULERS = {
    "step": lambda o: lrs.StepLR(o, 2),
    "lambda": lambda o: lrs.LambdaLR(o, lambda n: 0.9**n),
    "two lambdas": lambda o: lrs.MultiplicativeLR(o, lambda n: 0.9),
    "cyclic": lambda o: lrs.CyclicLR(o, 0.1, 1.0, scale_fn=lambda x: x, cycle_momentum=False),
    "one cycle": lambda o: lrs.OneCycleLR(o, 1.0, total_steps=20),
    "sequential": lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o), lrs.CosineAnnealingLR(o, 9)], [3]),
    "chained": lambda o: lrs.ChainedScheduler([lrs.ExponentialLR(o, 0.9), lrs.ConstantLR(o)], optimizer=o),
    "restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 3),
    "poly": lambda o: lrs.PolynomialLR(o, 9),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, 0.3),
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_scheduler_of_torch_goes_on(kind):
    def build():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.9)
        return optimizer, SCHEDULERS[kind](optimizer)

    old, new = build(), build()
    for _ in range(4):
        old[1].step()
    tracking(o=new[0], s=new[1]).restore(through_bytes(tracking(o=old[0], s=old[1]).capture()))
    for _ in range(5):
        assert old[0].param_groups[0]["lr"] == new[0].param_groups[0]["lr"]
        old[1].step()
        new[1].step()


def test_plateau_keeps_its_best_value_and_its_patience():
    def build():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        return optimizer, lrs.ReduceLROnPlateau(optimizer, patience=2)

    old, new = build(), build()
    for loss in (1.0, 1.1, 1.2):
        old[1].step(loss)
    tracking(o=new[0], s=new[1]).restore(through_bytes(tracking(o=old[0], s=old[1]).capture()))
    new[1].step(1.3)
    assert new[0].param_groups[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("used", [False, True])
def test_a_scaler_goes_on_also_before_its_first_use(used):
    old, new = (torch.amp.GradScaler("cpu", init_scale=s, growth_interval=3) for s in (64.0, 2.0))
    if used:
        old.scale(torch.ones(1))
        old._growth_tracker.fill_(2)
    moved(old, new)
    assert new.get_scale() == 64.0
    assert new.state_dict() == old.state_dict()
    new.scale(torch.ones(1))
    assert new._scale.dtype is torch.float32
    moved(old, new)
    assert new.state_dict() == old.state_dict()


def test_a_load_state_dict_that_refuses_is_named():
    class Picky(Meter):
        def load_state_dict(self, state):
            raise KeyError("values2")

    with pytest.raises(StateMismatchError, match=r"thing: KeyError: 'values2'"):
        moved(Meter(), Picky())


def test_the_versions_of_a_modules_state_survive_inside_an_object():
    class Holder:
        def __init__(self):
            self.net = nn.BatchNorm1d(2)

        def state_dict(self):
            return {"net": self.net.state_dict()}

        def load_state_dict(self, state):
            self.versions = state["net"]._metadata
            self.net.load_state_dict(state["net"])

    new = Holder()
    moved(Holder(), new)
    assert new.versions[""]["version"] == 2


# ---------------------------------------------------------------- refused, or opted in


class Thing:
    def __init__(self):
        self.n = 0


def test_an_object_without_a_state_is_refused_at_track_with_what_to_do():
    with pytest.raises(CannotCarryError, match=r"extra of type .*Thing has no state") as caught:
        tracking(extra=Thing())
    assert "state_dict" in caught.value.hint
    assert "perdure.Pickled" in caught.value.hint


def test_an_object_among_plain_values_is_refused_at_track_with_its_place():
    with pytest.raises(CannotCarryError, match=r"bag\['net'\] of type .*Linear is an object among plain values"):
        tracking(bag={"net": nn.Linear(1, 1), "n": 1})


def test_one_bad_object_leaves_the_world_as_it_was():
    world = World()
    with pytest.raises(CannotCarryError):
        world.track({"good": [1], "bad": Thing()})
    assert world.names == set()


def test_a_pickled_object_is_restored_in_place():
    old, new = Thing(), Thing()
    old.n = 5
    holder = Pickled(new)
    moved(Pickled(old), holder)
    assert holder.value is new
    assert new.n == 5


def test_a_pickled_value_without_a_dict_is_replaced_in_its_holder():
    holder = Pickled(frozenset())
    moved(Pickled(frozenset({1})), holder)
    assert holder.value == {1}


# ---------------------------------------------------------------- the whole


def test_names_that_the_checkpoint_or_the_script_lacks_are_named():
    saved = through_bytes(tracking(a=[1], b=[2]).capture())
    world = tracking(a=[], c=[])
    with pytest.raises(StateMismatchError, match="c is tracked here and not in the checkpoint, which holds a, b"):
        world.restore(saved)
    assert world.restore(saved, only={"a"}) == []
    with pytest.raises(StateMismatchError, match="a is plain in the checkpoint and module here"):
        tracking(a=nn.Linear(1, 1)).restore(saved)


def test_only_restores_only_those():
    saved = through_bytes(tracking(a=[1], b=[2]).capture())
    a, b = [], []
    tracking(a=a, b=b).restore(saved, only={"b"})
    assert (a, b) == ([], [2])


def test_tracking_a_name_again_replaces_the_object():
    world = tracking(a=[1])
    world.track({"a": [2]})
    assert world.capture()["a"]["a"]["value"].value == [2]
    assert world.names == {"a"}


def test_tracked_objects_are_known_by_identity_also_inside_a_list():
    first, second = nn.Linear(1, 1), Meter()
    world = tracking(a=first, many={"x": second})
    assert world.is_tracked(first)
    assert world.is_tracked(second)
    assert not world.is_tracked(copy.deepcopy(first))


def test_a_counter_comes_back_and_the_copy_at_the_head_counts_the_same():
    old, new = collections.Counter("aab"), collections.Counter("c")
    assert tracking(c=old).capture_head()["c"]["value"].value == {"a": 2, "b": 1}
    moved(old, new)
    assert new == {"a": 2, "b": 1}
    assert type(new) is collections.Counter


def test_a_container_that_contains_itself_is_refused_with_its_place():
    loop = [1]
    loop.append(loop)
    world = tracking(loop=loop)
    world.capture_head()
    world.notes()
    with pytest.raises(CannotCarryError, match=r"loop\[1\] .*contains itself"):
        through_bytes(world.capture())


def test_a_tensor_that_was_on_a_card_comes_to_the_cpu_where_there_is_none():
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    document, leaves = flatten({"a": {"a": {"kind": "plain", "value": {"h": torch.ones(2)}}}})
    document["a"]["a"]["value"]["h"]["device"] = "cuda:3"
    buffers = {buffer.name: buffer.data for buffer in to_buffers(leaves)}
    live = {"h": None}
    tracking(a=live).restore(unflatten(document, buffers.__getitem__))
    assert live["h"].tolist() == [1, 1]


@pytest.mark.parametrize("known", [False, True], ids=["the fresh dict is empty", "the fresh dict holds it"])
def test_a_container_that_holds_a_weight_of_the_model_still_does(known):
    old, new = nn.Linear(3, 2), nn.Linear(3, 2)
    best, fresh = {"w": old.weight, "row": old.weight.detach()[1]}, {}
    if known:
        fresh |= {"w": new.weight, "row": new.weight.detach()[1]}
    saved = through_bytes(tracking(model=old, best=best).capture())
    world = tracking(best=fresh, model=new)
    for _ in range(2):
        world.restore(saved)
        assert torch.equal(new.weight, old.weight)
        with torch.no_grad():
            new.weight.fill_(3)
        assert fresh["w"].tolist() == [[3.0] * 3] * 2
        assert fresh["row"].tolist() == [3.0] * 3
        assert type(fresh["w"]) is nn.Parameter


def test_state_that_shares_memory_with_its_parameter_still_does():
    def build():
        model = nn.Linear(2, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    (old, old_opt), (new, new_opt) = build(), build()
    old_opt.state[old.weight]["old_p"] = old.weight.data
    tracking(model=new, opt=new_opt).restore(through_bytes(tracking(model=old, opt=old_opt).capture()))
    with torch.no_grad():
        new.weight.fill_(3)
    assert new_opt.state[new.weight]["old_p"].tolist() == [[3.0, 3.0]] * 2


def test_live_views_with_other_strides_than_saved_do_not_overwrite_one_another():
    base = torch.zeros(6)
    new = {"a": base[:3], "b": base[::2]}
    same = torch.arange(3.0)
    moved({"a": same, "b": same}, new)
    assert new["a"].tolist() == new["b"].tolist() == [0, 1, 2]
