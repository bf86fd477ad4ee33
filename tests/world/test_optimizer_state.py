"""Optimizers: groups by name, state exactly as it is, wrappers, and parameters that nobody else knows."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lrs

from perdure.core.errors import StateMismatchError
from perdure.training.world.optimizers import _device_of
from world.ways import through_bytes, tracking


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def train(model, *optimizers, steps=3, seed=1):
    """Some steps on data of their own."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.randn(6, 4, generator=generator)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def bits(optimizer, model):
    """Options and state of an optimizer by parameter name."""
    name = {id(p): n for n, p in model.named_parameters()}
    state = {name[id(p)]: {k: copy.deepcopy(v) for k, v in s.items()} for p, s in optimizer.state.items()}
    groups = [
        {**{k: v for k, v in g.items() if k != "params"}, "params": [name[id(p)] for p in g["params"]]}
        for g in optimizer.param_groups
    ]
    return repr((groups, sorted(state.items())))


def moved(old, new):
    """Save (model, optimizer), restore another pair."""
    saved = through_bytes(tracking(model=old[0], optimizer=old[1]).capture())
    tracking(model=new[0], optimizer=new[1]).restore(saved)
    return saved


MAKES = {
    name: getattr(torch.optim, name)
    for name in "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SGD Muon".split()
    if hasattr(torch.optim, name)
}
MAKES["momentum"] = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)
MAKES["amsgrad"] = lambda p: torch.optim.Adam(p, amsgrad=True)
MAKES["fused"] = lambda p: torch.optim.Adam(p, fused=True)
MAKES["foreach"] = lambda p: torch.optim.Adam(p, foreach=True)
MAKES["capturable"] = lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False)
MAKES["tensor betas"] = lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1))


@pytest.mark.parametrize("make", MAKES)
def test_every_optimizer_of_torch_goes_on_bit_for_bit(make):
    def build():
        model = net() if make != "Muon" else nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 2, bias=False))
        return model, MAKES[make](list(model.parameters()))

    old, new = build(), build()
    train(*old)
    moved(old, new)
    assert bits(old[1], old[0]) == bits(new[1], new[0])
    train(*old, seed=2)
    train(*new, seed=2)
    assert bits(old[1], old[0]) == bits(new[1], new[0])
    assert all(torch.equal(a, b) for a, b in zip(old[0].parameters(), new[0].parameters(), strict=True))


def test_state_is_not_cast_to_the_type_of_the_parameter():
    old, new = net().bfloat16(), net().bfloat16()
    opts = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (old, new)]
    for p in old.parameters():
        opts[0].state[p]["momentum_buffer"] = torch.full(p.shape, 1 / 3)
        opts[0].state[p]["master"] = torch.full(p.shape, 1 / 3, dtype=torch.float64)
        opts[0].state[p]["codes"] = torch.ones(3, dtype=torch.uint8)
    moved((old, opts[0]), (new, opts[1]))
    state = opts[1].state[new[0].weight]
    assert state["momentum_buffer"].dtype is torch.float32
    assert state["momentum_buffer"][0, 0] == torch.tensor(1 / 3)
    assert state["master"].dtype is torch.float64
    assert state["codes"].dtype is torch.uint8


def test_groups_are_found_by_name_whatever_their_order_here():
    old, new = net(), net()
    opt = torch.optim.Adam([{"params": old[0].parameters(), "lr": 1.0}, {"params": old[2].parameters(), "lr": 2.0}])
    other = torch.optim.Adam(
        [{"params": new[2].parameters(), "lr": 5.0}, {"params": new[0].parameters(), "lr": 6.0}]
    )
    train(old, opt)
    moved((old, opt), (new, other))
    assert bits(opt, old) == bits(other, new)


def test_a_group_that_was_added_later_comes_back():
    old, new = net(), net()
    opts = [torch.optim.AdamW(m[2].parameters(), lr=0.1) for m in (old, new)]
    opts[0].add_param_group({"params": old[0].parameters(), "lr": 0.5, "weight_decay": 0.0})
    train(old, opts[0])
    moved((old, opts[0]), (new, opts[1]))
    assert bits(opts[0], old) == bits(opts[1], new)


def test_lists_and_dicts_of_groups_stay_the_same_objects():
    old, new = net(), net()
    opts = [torch.optim.SGD(m.parameters(), lr=lr) for m, lr in ((old, 0.1), (new, 0.7))]
    groups, group, params = opts[1].param_groups, opts[1].param_groups[0], opts[1].param_groups[0]["params"]
    moved((old, opts[0]), (new, opts[1]))
    assert opts[1].param_groups is groups
    assert groups[0] is group
    assert group["params"] is params
    assert group["lr"] == 0.1


def test_a_learning_rate_that_is_a_tensor_is_filled_in_place():
    old, new = net(), net()
    opts = [torch.optim.Adam(m.parameters(), lr=torch.tensor(lr)) for m, lr in ((old, 0.1), (new, 0.7))]
    rate = opts[1].param_groups[0]["lr"]
    moved((old, opts[0]), (new, opts[1]))
    assert opts[1].param_groups[0]["lr"] is rate
    assert rate == torch.tensor(0.1)


def test_an_option_of_a_newer_torch_keeps_its_value():
    old, new = net(), net()
    opts = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (old, new)]
    del opts[0].param_groups[0]["amsgrad"]
    moved((old, opts[0]), (new, opts[1]))
    assert opts[1].param_groups[0]["amsgrad"] is False


def test_state_that_the_checkpoint_does_not_have_is_dropped():
    old, new = net(), net()
    opts = [torch.optim.Adam(m.parameters()) for m in (old, new)]
    train(new, opts[1])
    moved((old, opts[0]), (new, opts[1]))
    assert len(opts[1].state) == 0


def test_another_class_of_optimizer_is_refused():
    old, new = net(), net()
    with pytest.raises(StateMismatchError, match="optimizer is of class Adam in the checkpoint and SGD here"):
        moved((old, torch.optim.Adam(old.parameters())), (new, torch.optim.SGD(new.parameters(), lr=0.1)))


def test_the_optimizer_may_be_tracked_before_the_module():
    old, new = net(), net()
    opts = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (old, new)]
    train(old, opts[0])
    saved = through_bytes(tracking(model=old, optimizer=opts[0]).capture())
    world = tracking(optimizer=opts[1])
    assert world.restore(saved, strict=False)
    world.track({"model": new})
    assert world.restore(saved, strict=False) == []
    assert bits(opts[0], old) == bits(opts[1], new)


def test_a_module_that_is_never_tracked_is_named_at_the_boundary():
    old, new = net(), net()
    opts = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (old, new)]
    saved = through_bytes(tracking(model=old, optimizer=opts[0]).capture())
    with pytest.raises(
        StateMismatchError, match=r"trains model\.0\.weight in the checkpoint, which no tracked module"
    ):
        tracking(optimizer=opts[1]).restore(saved)


def test_dicts_of_optimizers_are_tracked_by_key():
    def build():
        nets = {"g": net(), "d": net()}
        return nets, {name: torch.optim.Adam(m.parameters(), lr=0.1) for name, m in nets.items()}

    (old, old_opts), (new, new_opts) = build(), build()
    train(old["g"], old_opts["g"])
    train(old["d"], old_opts["d"], steps=5)
    tracking(nets=new, opts=new_opts).restore(through_bytes(tracking(nets=old, opts=old_opts).capture()))
    for name in old:
        assert bits(old_opts[name], old[name]) == bits(new_opts[name], new[name])


def test_sparse_adam_and_lbfgs_go_on():
    def build():
        model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1))
        return (
            model,
            torch.optim.SparseAdam(model[0].parameters()),
            torch.optim.LBFGS(model[1].parameters(), lr=0.1, max_iter=3, line_search_fn="strong_wolfe"),
        )

    def step(model, sparse, dense, seed):
        data = torch.randint(0, 9, (6,), generator=torch.Generator().manual_seed(seed))

        def closure():
            model.zero_grad()
            loss = (model(data) - 1).square().mean()
            loss.backward()
            return loss

        dense.step(closure)
        closure()
        sparse.step()

    old, new = build(), build()
    for seed in range(3):
        step(*old, seed)
    tracking(model=new[0], a=new[1], b=new[2]).restore(
        through_bytes(tracking(model=old[0], a=old[1], b=old[2]).capture())
    )
    for seed in range(3, 6):
        step(*old, seed)
        step(*new, seed)
    assert all(torch.equal(a, b) for a, b in zip(old[0].parameters(), new[0].parameters(), strict=True))


def test_step_is_on_the_device_only_where_a_kernel_there_counts_it():
    parameter, cpu = torch.zeros(1, device="meta"), torch.device("cpu")
    for group, on_device in (
        ({}, False),
        ({"fused": True}, True),
        ({"capturable": True}, True),
        ({"fused": None}, False),
    ):
        device = _device_of("step", parameter, group, ())
        assert device == (parameter.device if on_device else cpu)
    assert _device_of("exp_avg", parameter, {}, ()) == parameter.device
    assert _device_of("mu_product", parameter, {}, ("mu_product",)) == cpu


# ---------------------------------------------------------------- wrappers


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as published: shares its groups with its base."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, dict(rho=rho, **options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)
        self.rounds = 0

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad, alpha=group["rho"])
        self.zero_grad()
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.rounds += 1


class Lookahead:
    """Slow weights beside fast ones; no torch optimizer itself, and its state_dict forgets ``n``."""

    def __init__(self, inner, k=2):
        self.inner, self.k, self.n = inner, k, 0
        self.slow = [p.detach().clone() for g in inner.param_groups for p in g["params"]]

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()
        self.n += 1
        if self.n % self.k == 0:
            with torch.no_grad():
                for slow, p in zip(self.slow, (p for g in self.param_groups for p in g["params"]), strict=True):
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "slow": self.slow}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        self.slow = state["slow"]


def test_sam_goes_on_and_still_shares_its_groups_with_its_base():
    def build():
        model = net()
        return model, Sam(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(model, opt, seed):
        data = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))

        def closure():
            opt.zero_grad()
            model(data).square().mean().backward()

        opt.step(closure)

    old, new = build(), build()
    fresh = tracking(model=new[0], optimizer=new[1])
    world = tracking(model=old[0], optimizer=old[1])
    for seed in range(3):
        step(*old, seed)
    old[1].param_groups[0]["lr"] = 0.05
    fresh.restore(through_bytes(world.capture()))
    assert new[1].param_groups is new[1].base_optimizer.param_groups
    assert new[1].rounds == 3
    for seed in range(3, 6):
        step(*old, seed)
        step(*new, seed)
    assert all(torch.equal(a, b) for a, b in zip(old[0].parameters(), new[0].parameters(), strict=True))


def test_lookahead_goes_on_with_its_counter_and_slow_weights():
    def build():
        model = net()
        return model, Lookahead(torch.optim.Adam(model.parameters(), lr=0.1))

    old, new = build(), build()
    world, fresh = tracking(model=old[0], optimizer=old[1]), tracking(model=new[0], optimizer=new[1])
    train(*old, steps=3)
    fresh.restore(through_bytes(world.capture()))
    assert new[1].n == 3
    train(*old, seed=2)
    train(*new, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(old[0].parameters(), new[0].parameters(), strict=True))


def test_a_wrapper_whose_inner_optimizer_got_a_group_later_goes_on():
    class Wrapper(torch.optim.SGD):
        def state_dict(self):
            return {**super().state_dict(), "mine": 3}

        def load_state_dict(self, state):
            self.mine = state.pop("mine")
            super().load_state_dict(state)

    old, new = net(), net()
    opts = [Wrapper(m[2].parameters(), lr=0.1, momentum=0.9) for m in (old, new)]
    opts[0].add_param_group({"params": old[0].parameters(), "lr": 0.5})
    train(old, opts[0])
    moved((old, opts[0]), (new, opts[1]))
    assert opts[1].mine == 3
    assert bits(opts[0], old) == bits(opts[1], new)


# ---------------------------------------------------------------- parameters that only the optimizer knows


def with_loss_head():
    model, head = net(), nn.Linear(2, 1)
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": head.parameters(), "lr": 0.5}], lr=0.1)
    return model, head, optimizer


def test_parameters_that_only_the_optimizer_knows_are_saved_with_values_state_and_gradients():
    (model, head, optimizer), (new, new_head, new_optimizer) = with_loss_head(), with_loss_head()
    train(nn.Sequential(model, head), optimizer)
    moved((model, optimizer), (new, new_optimizer))
    for a, b in zip(head.parameters(), new_head.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.grad, b.grad)
        assert repr(optimizer.state[a]) == repr(new_optimizer.state[b])


def test_they_are_told_of_once_with_the_line_to_add():
    model, _, optimizer = with_loss_head()
    world = tracking(model=model, optimizer=optimizer)
    (note,) = world.notes()
    assert "2 parameters that no tracked module has" in note
    assert "run.track(" in note
    assert world.notes() == []


def test_another_number_of_them_is_refused():
    model, _, optimizer = with_loss_head()
    new, more = net(), nn.Linear(2, 1, bias=False)
    other = torch.optim.Adam([{"params": new.parameters()}, {"params": more.parameters()}])
    with pytest.raises(StateMismatchError, match=r"group \[1\] has 2 parameters in the checkpoint and 1 here"):
        moved((model, optimizer), (new, other))


def test_another_shape_of_one_of_them_is_refused():
    model, _, optimizer = with_loss_head()
    new, more = net(), nn.Linear(3, 1)
    other = torch.optim.Adam([{"params": new.parameters()}, {"params": more.parameters()}])
    with pytest.raises(StateMismatchError, match=r"shape \(1, 2\) in the checkpoint and .* shape \(1, 3\) here"):
        moved((model, optimizer), (new, other))


# ---------------------------------------------------------------- with schedulers


def test_a_scheduler_goes_on_and_neither_warns_nor_steps_twice():
    def build():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, lrs.OneCycleLR(optimizer, 0.5, total_steps=10)

    old, new = build(), build()
    worlds = [tracking(model=m, optimizer=o, scheduler=s) for m, o, s in (old, new)]
    for _ in range(4):
        train(*old[:2], steps=1)
        old[2].step()
    worlds[1].restore(through_bytes(worlds[0].capture()))
    for _ in range(5):
        old[2].step()
        new[2].step()
        assert old[1].param_groups[0]["lr"] == new[1].param_groups[0]["lr"]
        assert old[1].param_groups[0]["momentum"] == new[1].param_groups[0]["momentum"]


@pytest.mark.slow
def test_a_hundred_thousand_small_tensors_do_not_take_minutes():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            for index in range(100_000):
                self.register_parameter(f"p{index}", nn.Parameter(torch.empty(1), requires_grad=False))

    world, fresh = tracking(model=Many()), tracking(model=Many())
    fresh.restore(through_bytes(world.capture()))
