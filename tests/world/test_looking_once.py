"""What a save looks at once, or remembers from the save before, is not believed any longer than it is true."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from perdure.checkpoint import values
from perdure.core.errors import CannotCarryError
from perdure.tensors import encoding
from perdure.tensors.encoding import encode
from perdure.tensors.regions import overlapping
from perdure.training import gradients
from perdure.training.gradients import PROOFS, GradientWatch
from world.ways import through_bytes, tracking


def trained(module, **options):
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, **options)
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return optimizer


def saved_parameters(world):
    return through_bytes(world.capture())["model"]["model"]["parameters"]


class TestFromSaveToSave:
    """One world that is saved again and again, as a run does, while what it tracks changes under it."""

    def test_a_parameter_is_replaced_by_another_at_the_same_address(self):
        model = nn.Linear(3, 3, bias=False)
        world = tracking(model=model)
        assert saved_parameters(world)["weight"].shape == (3, 3)
        memory = model.weight.detach()
        model.weight = nn.Parameter(memory.view(9), requires_grad=False)
        assert model.weight.data_ptr() == memory.data_ptr()
        saved = through_bytes(world.capture())["model"]["model"]
        assert torch.equal(saved["parameters"]["weight"], memory.view(9))
        assert saved["frozen"] == ["weight"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda t: t.resize_(2, 2),
            lambda t: t.t_(),
            lambda t: t.set_(torch.arange(5.0)),
            lambda t: setattr(t, "data", torch.arange(7.0).double()),
            lambda t: setattr(t, "data", torch.arange(12.0)[::2]),
            lambda t: t.requires_grad_(not t.requires_grad),
            lambda t: t.fill_(3.0),
        ],
        ids=["resized", "strides", "storage", "another type", "gaps", "requires_grad", "values"],
    )
    def test_a_tensor_is_changed_in_place(self, change):
        tensors = [torch.rand(4, 3), torch.rand(4, 3)]
        world = tracking(bag=tensors)
        before = through_bytes(world.capture())["bag"]["bag"]["value"]
        change(tensors[0])
        after = through_bytes(world.capture())["bag"]["bag"]["value"]
        assert after[0].dtype == tensors[0].dtype
        assert after[0].requires_grad == tensors[0].requires_grad
        assert torch.equal(after[0], tensors[0])
        assert torch.equal(after[1], before[1])

    def test_an_entry_of_the_optimizer_is_replaced(self):
        model = nn.Linear(3, 3)
        optimizer = trained(model)
        world = tracking(model=model, optimizer=optimizer)
        world.capture()
        new = torch.full((2,), 5.0, dtype=torch.float64)
        optimizer.state[model.weight]["exp_avg"] = new
        del optimizer.state[model.bias]["step"]
        state = through_bytes(world.capture())["optimizer"]["optimizer"]["layers"][""]["state"]
        assert state["model.weight"]["exp_avg"].dtype == torch.float64
        assert torch.equal(state["model.weight"]["exp_avg"], new)
        assert set(state["model.bias"]) == {"exp_avg", "exp_avg_sq"}

    def test_modules_come_and_go(self):
        model = nn.Sequential(nn.Linear(3, 3))
        world = tracking(model=model)
        assert set(saved_parameters(world)) == {"0.weight", "0.bias"}
        model.append(nn.Linear(3, 2))
        assert set(saved_parameters(world)) == {"0.weight", "0.bias", "1.weight", "1.bias"}
        del model[0]
        assert set(saved_parameters(world)) == {"0.weight", "0.bias"}
        assert saved_parameters(world)["0.weight"].shape == (2, 3)

    def test_a_constant_attribute_is_replaced_by_an_equal_one_and_by_another(self):
        model = nn.LayerNorm((3, 2))
        model.note = "a"
        world = tracking(model=model)

        def attributes():
            return through_bytes(world.capture())["model"]["model"]["attributes"]

        assert attributes() == {}
        model.normalized_shape = tuple([3, 2])
        assert attributes() == {}
        model.note = "b"
        assert attributes() == {"": {"note": "b"}}
        model.note = "a"
        assert attributes() == {}

    def test_a_tuple_that_holds_a_list_is_not_taken_for_a_constant(self):
        model = nn.Linear(3, 3)
        model.pair = ([1], 2)
        world = tracking(model=model)
        model.pair[0].append(5)
        assert through_bytes(world.capture())["model"]["model"]["attributes"] == {"": {"pair": ([1, 5], 2)}}


class TestOneSave:
    def test_tensors_that_differ_in_one_thing_only_are_told_apart(self):
        base = torch.arange(6.0)
        tensors = [
            base.clone(),
            base.clone().requires_grad_(),
            nn.Parameter(base.clone()),
            nn.Parameter(base.clone(), requires_grad=False),
            base.double(),
            base.reshape(2, 3).clone(),
            base.reshape(2, 3).clone().t(),
            torch.view_as_complex(base.reshape(3, 2).clone()),
            torch.view_as_complex(base.reshape(3, 2).clone()).conj(),
            torch.view_as_complex(base.reshape(3, 2).clone()).conj().imag,
            base.to_sparse(),
            base[:0],
        ]
        back = through_bytes([*tensors, *tensors])
        for old, new in zip([*tensors, *tensors], back, strict=True):
            assert type(new) is type(old)
            assert (new.dtype, new.layout, new.shape) == (old.dtype, old.layout, old.shape)
            assert new.requires_grad == old.requires_grad
            assert torch.equal(new.to_dense().resolve_conj(), old.to_dense().resolve_conj())

    @pytest.mark.filterwarnings("ignore")  # nested and quantised tensors warn that they are prototypes
    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.empty(3, device="meta"),
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
            lambda: torch.ones(3).as_subclass(type("Mine", (torch.Tensor,), {})),
        ],
        ids=["meta", "nested", "quantised", "subclass"],
    )
    def test_what_cannot_be_saved_is_refused_behind_what_can_too(self, make):
        with pytest.raises(CannotCarryError, match="bad"):
            encode({"good": torch.ones(3), "bad": make()})

    def test_what_is_saved_lives_no_longer_than_the_save(self):
        gc.disable()
        try:
            tensor = torch.ones(3)
            encoded = encode({"t": tensor, "a": np.ones(3), "p": nn.Parameter(torch.ones(2))})
            held = [weakref.ref(group.extents[0].value) for group in encoded.groups]
            assert all(ref() is not None for ref in held)
            del encoded
            assert [ref() for ref in held] == [None, None, None]
        finally:
            gc.enable()

    def test_what_was_looked_at_keeps_its_place_when_the_script_moves_on(self):
        tensor, array = torch.arange(6.0), np.arange(6.0)
        encoded = encode({"t": tensor, "a": array})
        tensor.data = torch.zeros(2)
        array.shape = (2, 3)
        leaves = encoded.leaves()
        assert torch.equal(leaves[0].data, torch.arange(6.0))
        assert leaves[1].shape == (6,)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=12))
def test_groups_are_what_overlaps_in_the_order_of_the_state(cuts):
    base = torch.zeros(60, dtype=torch.uint8)
    extents = [group.extents[0] for low, n in cuts for group in encode(base[low : low + n]).groups]
    groups = overlapping(extents)
    at = {id(extent): number for number, extent in enumerate(extents)}
    numbers = [[at[id(extent)] for extent in group] for group in groups]
    assert sorted(n for group in numbers for n in group) == list(range(len(cuts)))
    assert numbers == sorted(sorted(group) for group in numbers)
    touched = [{b for low, n in (cuts[k] for k in group) for b in range(low, low + n)} for group in numbers]
    for group, bytes_ in zip(numbers, touched, strict=True):  # together without a gap, and apart from all others
        assert bytes_ == set(range(min(bytes_), max(bytes_) + 1))
        assert all(bytes_.isdisjoint(other) for other in touched if other is not bytes_), group


PIECES = st.text(alphabet="ab.\"[]'\n", max_size=5)


@given(PIECES, st.lists(PIECES, max_size=3))
def test_the_short_way_to_a_name_gives_the_name(head, keys):
    path = head + "".join(f'["{key}"]' for key in keys)
    parts = ["".join(match).strip("'") for match in encoding._PART.findall(path)] or ["value"]
    assert encoding._name_of(path) == "/".join([parts[0].replace(".", "/"), *parts[1:]])


def test_a_key_that_only_looks_like_a_string_is_kept_as_what_it_is():
    class Text(str):
        __slots__ = ()

    with pytest.raises(CannotCarryError):
        values.encode({Text("a"): 1}, lambda value, path: None)
    assert values.encode({"\udc80": 1}, lambda value, path: None) == {
        "$": "dict",
        "v": [[{"$": "str", "v": "7bKA"}, 1]],
    }


class TestGradientWatch:
    def proved(self, watch, parameters):
        for _ in range(PROOFS):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            watch.stepped = True
            watch.look(parameters)
            for parameter in parameters:
                parameter.grad = None
            watch.before_step(parameters)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        watch.stepped = True
        watch.look(parameters)

    def test_a_new_parameter_with_the_id_of_a_dead_one_has_proved_nothing(self, monkeypatch):
        monkeypatch.setattr(gradients, "WORTH_BYTES", 1)
        watch, old = GradientWatch(), nn.Parameter(torch.ones(3))
        self.proved(watch, [old])
        assert watch.dead() == {id(old)}
        other = nn.Parameter(torch.ones(3))
        other.grad = torch.ones(3)
        watch._known[id(other)] = watch._known[id(old)]  # as if it had been made where the old one was
        watch.stepped = True
        watch.look([other])
        assert watch.dead() == frozenset()

    def test_parameters_that_are_gone_are_forgotten(self):
        watch = GradientWatch()
        for _ in range(20):
            watch.stepped = True
            watch.look([nn.Parameter(torch.ones(3)) for _ in range(10)])
        assert len(watch._known) <= 30
