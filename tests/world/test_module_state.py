"""Modules: everything in them, by names that do not change when they are wrapped."""

import copy
import functools

import pytest
import torch
from torch import nn

from perdure.core.errors import CannotCarryError, StateMismatchError
from world.ways import through_bytes, tracking


def moved(old, new, **options):
    """Save one module, restore another."""
    saved = through_bytes(tracking(model=old).capture())
    tracking(model=new).restore(saved, **options)
    return saved


def equal(a, b):
    """Whether two modules hold the same bits."""
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


# ---------------------------------------------------------------- names

WRAPS = {
    "bare": lambda m: m,
    "DataParallel": nn.DataParallel,
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "both": lambda m: nn.DataParallel(torch.compile(m, backend="eager")),
}


@pytest.mark.parametrize("new", WRAPS)
@pytest.mark.parametrize("old", WRAPS)
def test_a_wrapped_model_loads_into_any_other_wrapping(old, new):
    source, target = net(), net()
    saved = moved(WRAPS[old](source), WRAPS[new](target))
    assert set(saved["model"]["model"]["parameters"]) == {n for n, _ in source.named_parameters()}
    assert equal(source, target)


def test_a_wrapper_deep_inside_leaves_no_trace_in_the_names():
    class Outer(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.body = wrap(net())

    source, target = Outer(WRAPS["both"]), Outer(WRAPS["bare"])
    moved(source, target)
    assert torch.equal(source.body.module._orig_mod[0].weight, target.body[0].weight)


def test_a_child_called_module_keeps_its_name():
    model = torch.optim.swa_utils.AveragedModel(net())
    assert "module.0.weight" in tracking(model=model).state_dicts()["model"]


def test_names_that_would_become_one_keep_what_they_were():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))
            self._orig_mod = nn.Module()
            self._orig_mod.w = nn.Parameter(torch.ones(1))

    world = tracking(model=Both())
    assert {n: p.item() for n, p in world.parameters().items()} == {"model.w": 0.0, "model._orig_mod.w": 1.0}


def test_a_module_reached_by_two_ways_has_two_names_and_one_that_holds_itself_has_an_end():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, shared)
    model.add_module("parent", model)
    world = tracking(model=model)
    assert {"model.0.weight", "model.1.weight"} <= set(world.parameters())


def test_dicts_and_lists_of_modules_are_tracked_by_key_and_position():
    nets = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}
    more = [nn.Linear(1, 1), nn.Linear(1, 1)]
    saved = through_bytes(tracking(nets=nets, more=more).capture())
    fresh_nets, fresh_more = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}, [nn.Linear(1, 1), nn.Linear(1, 1)]
    world = tracking(nets=fresh_nets, more=fresh_more)
    world.restore(saved)
    assert set(world.modules) == {"nets.g", "nets.d", "more.0", "more.1"}
    assert all(equal(nets[k], fresh_nets[k]) for k in nets)
    assert all(equal(a, b) for a, b in zip(more, fresh_more, strict=True))


# ---------------------------------------------------------------- parameters and buffers


def test_parameters_and_buffers_are_filled_in_place():
    model = net()
    before = [t.data_ptr() for t in (*model.parameters(), *model.buffers())]
    moved(net(), model)
    assert [t.data_ptr() for t in (*model.parameters(), *model.buffers())] == before


def test_buffers_that_state_dict_leaves_out_are_saved():
    def build():
        model = nn.Linear(1, 1)
        model.register_buffer("seen", torch.zeros(3), persistent=False)
        return model

    old, new = build(), build()
    old.seen.add_(2)
    moved(old, new)
    assert new.seen.tolist() == [2, 2, 2]
    assert "seen" not in new.state_dict()


def test_a_buffer_made_after_the_build_is_registered_as_it_was():
    old, new = nn.Linear(1, 1), nn.Linear(1, 1)
    new.mask = None
    old.register_buffer("mask", torch.ones(2), persistent=False)
    old.register_buffer("kept", torch.ones(3))
    moved(old, new)
    assert new.mask.tolist() == [1, 1]
    assert set(new.state_dict()) == {"weight", "bias", "kept"}


def test_a_buffer_that_grew_or_changed_its_type_is_replaced():
    old, new = nn.Linear(1, 1), nn.Linear(1, 1)
    for model, peak in ((old, torch.arange(8)), (new, torch.empty(0))):
        model.register_buffer("peak", peak)
    moved(old, new)
    assert new.peak.tolist() == list(range(8))
    assert new.peak.dtype is torch.int64


def test_a_buffer_that_was_none_and_one_that_became_none():
    old, new = nn.Linear(1, 1), nn.Linear(1, 1)
    old.register_buffer("a", None)
    new.register_buffer("a", torch.ones(1))
    old.register_buffer("b", torch.ones(1))
    new.register_buffer("b", None)
    moved(old, new)
    assert new.a is None
    assert new.b.tolist() == [1]


def test_an_expanded_buffer_is_replaced_since_it_cannot_be_filled():
    old, new = nn.Linear(1, 1), nn.Linear(1, 1)
    old.register_buffer("m", torch.full((1, 3), 2.0).expand(4, 3))
    new.register_buffer("m", torch.ones(1, 3).expand(4, 3))
    moved(old, new)
    assert new.m.tolist() == [[2.0] * 3] * 4


def test_buffers_that_share_memory_still_do():
    def build():
        model = nn.Module()
        bank = torch.zeros(2, 6)
        model.register_buffer("row", bank[1])
        model.register_buffer("bank", bank)
        return model

    old, new = build(), build()
    old.row.add_(3)
    moved(old, new)
    new.row.add_(1)
    assert new.bank[1].tolist() == [4.0] * 6


def test_tied_weights_stay_tied_and_a_lost_tie_is_refused():
    def build(tie):
        model = nn.ModuleDict({"emb": nn.Embedding(5, 4), "out": nn.Linear(4, 5, bias=False)})
        if tie:
            model["out"].weight = model["emb"].weight
        return model

    old, new = build(True), build(True)
    moved(old, new)
    assert new["out"].weight is new["emb"].weight
    assert equal(old, new)
    with pytest.raises(
        StateMismatchError, match=r"emb.weight and out.weight are one tensor in the checkpoint and 2 here"
    ):
        moved(old, build(False))


def test_a_lazy_model_gets_its_shapes_from_the_checkpoint_and_its_optimizer_need_not_know():
    def build():
        model = nn.Sequential(nn.LazyLinear(9), nn.Tanh(), nn.LazyBatchNorm1d(), nn.LazyLinear(3))
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    data = torch.randn(4, 6)
    old, old_opt = build()
    for _ in range(2):
        old_opt.zero_grad()
        old(data).sum().backward()
        old_opt.step()
    new, new_opt = build()
    saved = through_bytes(tracking(model=old, optimizer=old_opt).capture())
    tracking(model=new, optimizer=new_opt).restore(saved)
    for model, optimizer in ((old, old_opt), (new, new_opt)):
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
    assert equal(old, new)
    assert type(new[0]) is nn.Linear


def test_a_checkpoint_of_a_model_that_was_still_lazy_says_nothing_of_those_weights():
    new = nn.Sequential(nn.LazyLinear(3))
    saved = through_bytes(tracking(model=nn.Sequential(nn.LazyLinear(3))).capture())
    new(torch.ones(1, 2))
    tracking(model=new).restore(saved)
    assert new[0].weight.shape == (3, 2)


def test_a_model_on_the_meta_device_gets_values_and_its_optimizer_still_holds_it():
    old = net()
    with torch.device("meta"):
        new = net()
    optimizer = torch.optim.SGD(new.parameters(), lr=1.0)
    held = [id(p) for p in new.parameters()]
    moved(old, new)
    assert [id(p) for p in new.parameters()] == held
    assert equal(old, new)
    new(torch.randn(3, 6)).sum().backward()
    before = new[0].weight.clone()
    optimizer.step()
    assert not torch.equal(new[0].weight, before)


def test_tied_weights_on_the_meta_device_stay_tied():
    def build():
        model = nn.ModuleDict({"emb": nn.Embedding(5, 4), "out": nn.Linear(4, 5, bias=False)})
        model["out"].weight = model["emb"].weight
        return model

    old = build()
    with torch.device("meta"):
        new = build()
    moved(old, new)
    assert new["out"].weight is new["emb"].weight
    assert equal(old, new)


def test_a_recurrent_net_on_the_meta_device_gets_values():
    old = nn.LSTM(3, 4)
    with torch.device("meta"):
        new = nn.LSTM(3, 4)
    moved(old, new)
    data = torch.randn(2, 1, 3)
    assert torch.equal(old(data)[0], new(data)[0])


def test_a_parameter_that_the_first_forward_makes_is_made_by_the_restore():
    class Grow(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter("w", None)

    old, new = Grow(), Grow()
    old.w = nn.Parameter(torch.arange(3.0))
    old_opt, new_opt = torch.optim.SGD([torch.zeros(1)], lr=1.0), torch.optim.SGD([torch.zeros(1)], lr=1.0)
    for opt in (old_opt, new_opt):
        opt.param_groups.clear()
    old_opt.add_param_group({"params": [old.w]})
    tracking(model=new, opt=new_opt).restore(through_bytes(tracking(model=old, opt=old_opt).capture()))
    assert new.w.tolist() == [0, 1, 2]
    assert new_opt.param_groups[0]["params"][0] is new.w


def test_modules_that_are_not_made_yet_are_listed_and_come_at_the_boundary():
    class Grow(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(2, 3), None

    old, new = Grow(), Grow()
    old.head = nn.Linear(3, 1)
    saved = through_bytes(tracking(model=old).capture())
    world = tracking(model=new)
    found = world.restore(saved, strict=False)
    assert torch.equal(new.body.weight, old.body.weight)
    assert [line for line in found if "head.weight is in the checkpoint (shape (1, 3)) and not here" in line]
    with pytest.raises(
        StateMismatchError, match=r"head\.bias.*\n.*hint: build the missing parts before the loop"
    ) as caught:
        world.restore(saved)
    assert len(caught.value.differences) == 2
    new.head = nn.Linear(3, 1)
    world.restore(saved)
    assert equal(old, new)


def test_each_difference_in_shape_type_and_name_is_listed_and_nothing_is_changed():
    old = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(2, 2), "c": nn.Linear(1, 1)})
    new = nn.ModuleDict({"a": nn.Linear(2, 4), "b": nn.Linear(2, 2).double(), "d": nn.Linear(1, 1)})
    before = copy.deepcopy(new.state_dict())
    with pytest.raises(StateMismatchError) as caught:
        moved(old, new)
    text = "\n".join(caught.value.differences)
    for line in (
        "model: a.weight is shape (3, 2) in the checkpoint and shape (4, 2) here",
        "model: b.weight is torch.float32 in the checkpoint and torch.float64 here",
        "model: c.weight is in the checkpoint (shape (1, 1)) and not here",
        "model: d.weight is here (shape (1, 1)) and not in the checkpoint",
    ):
        assert line in text
    assert all(torch.equal(new.state_dict()[name], before[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16, torch.float64, torch.float8_e4m3fn], ids=str)
def test_parameters_of_any_dtype(dtype):
    old, new = nn.Module(), nn.Module()
    old.w = nn.Parameter(torch.randn(3).to(dtype), requires_grad=False)
    new.w = nn.Parameter(torch.randn(3).to(dtype), requires_grad=False)
    moved(old, new)
    assert torch.equal(old.w.view(torch.uint8), new.w.view(torch.uint8))


def test_subclasses_of_parameter_keep_their_class():
    class Mine(nn.Parameter):
        pass

    old, new = nn.Module(), nn.Module()
    old.w, new.w = Mine(torch.ones(2)), Mine(torch.zeros(2))
    moved(old, new)
    assert type(new.w) is Mine
    assert new.w.tolist() == [1, 1]


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
        lambda: nn.ParameterList([nn.Parameter(torch.randn(1)) for _ in range(600)]),
        lambda: nn.ParameterDict({"a": nn.Parameter(torch.randn(2))}),
        lambda: nn.LSTM(3, 4),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.TransformerEncoderLayer(4, 2, 8),
    ],
    ids=["spectral", "weight", "orthogonal", "list", "dict", "lstm", "attention", "transformer"],
)
def test_modules_of_every_make(build):
    old, new = build(), build()
    moved(old, new)
    assert equal(old, new)


def test_extra_state_is_saved_and_given_back():
    class Extra(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = {"scale": torch.ones(1)}

        def get_extra_state(self):
            return self.inner

        def set_extra_state(self, state):
            self.inner = state

    old, new = nn.Sequential(Extra()), nn.Sequential(Extra())
    old[0].inner["scale"].fill_(5)
    saved = moved(old, new)
    assert new[0].inner["scale"].tolist() == [5]
    new[0].inner["scale"].fill_(9)
    assert saved["model"]["model"]["extra"][""] if "" in saved["model"]["model"]["extra"] else True
    assert saved["model"]["model"]["extra"]["0"]["scale"].tolist() == [5]


# ---------------------------------------------------------------- flags, attributes, gradients


def test_train_and_eval_flags_of_each_module_come_back():
    old, new = net().train(), net().train()
    old[1].eval()
    moved(old, new)
    assert [m.training for m in new] == [True, False, True]
    moved(net().eval(), new)
    assert not any(m.training for m in new.modules())


def test_frozen_parameters_come_back_frozen_and_others_not():
    old, new = net(), net()
    old[0].weight.requires_grad_(False)
    new[2].weight.requires_grad_(False)
    moved(old, new)
    assert [n for n, p in new.named_parameters() if not p.requires_grad] == ["0.weight"]


def test_gradients_come_back_and_none_stays_none():
    old, new = net(), net()
    old[0](torch.randn(2, 6)).sum().backward()
    new[2](torch.randn(2, 8)).sum().backward()
    moved(old, new)
    assert torch.equal(new[0].weight.grad, old[0].weight.grad)
    assert new[2].weight.grad is None


def test_sparse_gradients_come_back_sparse():
    old, new = nn.Embedding(5, 2, sparse=True), nn.Embedding(5, 2, sparse=True)
    old(torch.tensor([1, 3])).sum().backward()
    moved(old, new)
    assert new.weight.grad.is_sparse
    assert torch.equal(new.weight.grad.to_dense(), old.weight.grad.to_dense())


def test_gradients_come_back_whatever_the_order_of_tracking():
    old, new = net(), net()
    old(torch.randn(4, 6)).sum().backward()
    saved = through_bytes(tracking(model=old, head=old[2]).capture())
    world = tracking(head=new[2])
    world.track({"model": new})
    world.restore(saved)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(old.parameters(), new.parameters(), strict=True))


class Counting(nn.Module):
    def __init__(self, limit=10):
        super().__init__()
        self.calls, self.limit = 0, limit
        self.seen, self.trace, self.last = {"n": [0]}, torch.zeros(2), None
        self.hook = lambda: 0
        self.inner = nn.Linear(1, 1)
        self.same = self.inner.weight

    def forward(self):
        self.calls += 1
        self.seen["n"][0] += 2
        self.trace += 1
        self.last = self.trace * 2


def test_plain_attributes_that_training_changed_come_back_in_place():
    old, new = nn.Sequential(Counting()), nn.Sequential(Counting(limit=99))
    world, fresh = tracking(model=old), tracking(model=new)
    alias, trace = new[0].seen["n"], new[0].trace
    old[0]()
    old[0]()
    fresh.restore(through_bytes(world.capture()))
    assert new[0].calls == 2
    assert alias == [4]
    assert trace.tolist() == [2, 2]
    assert new[0].trace is trace
    assert new[0].last.tolist() == [4, 4]


def test_an_attribute_that_training_left_alone_belongs_to_the_script():
    old, new = Counting(limit=10), Counting(limit=99)
    world = tracking(model=old)
    old()
    tracking(model=new).restore(through_bytes(world.capture()))
    assert new.limit == 99


def test_an_attribute_that_is_a_module_by_now_is_not_hidden():
    old, new = nn.Module(), nn.Module()
    old.head = new.head = 0
    world = tracking(model=old)
    old.head = 1
    saved = through_bytes(world.capture())
    del new.head
    new.head = nn.Linear(1, 1)
    tracking(model=new).restore(
        {"model": {"model": {**saved["model"]["model"], "parameters": {}, "buffers": {}}}}, strict=False
    )
    assert type(new.head) is nn.Linear


def test_the_saved_state_is_not_changed_by_a_restore_and_can_be_restored_again():
    old, new = Counting(), Counting()
    world = tracking(model=old)
    old()
    saved = through_bytes(world.capture())
    fresh = tracking(model=new)
    for _ in range(2):
        fresh.restore(saved)
        assert (new.calls, new.seen["n"], new.trace.tolist()) == (1, [2], [1, 1])
        new()
        with torch.no_grad():
            new.inner.weight.zero_()


def test_a_model_that_is_on_the_meta_device_when_it_is_saved_is_refused():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(CannotCarryError, match=r"model\[\"weight\"\] of type torch.Tensor is on the meta device"):
        through_bytes(tracking(model=model).capture())


def test_parameters_that_hold_nan_or_inf_are_named():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "big": nn.Linear(2, 2)})
    model["h"] = nn.Linear(2, 2).half()
    world = tracking(model=model)
    with torch.no_grad():
        model["big"].weight.fill_(3e38)  # the sum is infinite, the values are not
        model["h"].weight.fill_(6e4)
    assert world.unhealthy() == []
    with torch.no_grad():
        model["a"].weight[0, 0] = float("nan")
        model["b"].bias[1] = float("-inf")
    assert world.unhealthy() == ["model.a.weight", "model.b.bias"]


def test_forward_hooks_and_partials_do_not_disturb():
    model = net()
    model.register_forward_hook(functools.partial(lambda *a, k: None, k=1))
    model.act = functools.partial(torch.relu)
    moved(model, net())
