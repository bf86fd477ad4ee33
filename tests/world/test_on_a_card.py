"""From the card to the CPU and back: every tensor goes where it belongs. Needs a card."""

import pytest
import torch
from torch import nn

from world.ways import through_bytes, tracking

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card"),
]


def trained(device, steps=3, **options):
    """Model and optimizer on a device, after some steps."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.LSTM(5, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, **options)
    for step in range(steps):
        optimizer.zero_grad()
        data = torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).to(device)
        model(data)[0].square().mean().backward()
        optimizer.step()
    return model, optimizer


def state(model, optimizer):
    """All of it, on the CPU."""
    tensors = [t.detach().cpu() for t in (*model.parameters(), *model.buffers())]
    return tensors + [v.cpu() for s in optimizer.state.values() for v in s.values()]


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("way", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")], ids="-".join)
def test_state_goes_to_the_device_of_its_parameter_and_step_where_the_step_runs(way, options):
    if "capturable" in options and way != ("cuda", "cuda"):
        pytest.skip("capturable runs on a card only")
    (old, old_opt), (new, new_opt) = trained(way[0], **options), trained(way[1], steps=0, **options)
    tracking(model=new, opt=new_opt).restore(through_bytes(tracking(model=old, opt=old_opt).capture()))
    assert all(torch.equal(a, b) for a, b in zip(state(old, old_opt), state(new, new_opt), strict=True))
    for parameter, saved in new_opt.state.items():
        assert saved["exp_avg"].device == parameter.device
        on_card = way[1] == "cuda" and (options.get("fused") or options.get("capturable"))
        assert saved["step"].device.type == ("cuda" if on_card else "cpu")
    new(torch.randn(6, 4).to(way[1]))[0].square().mean().backward()
    new_opt.step()


def test_a_tensor_without_a_live_counterpart_goes_back_to_the_card():
    saved = through_bytes(tracking(carry={"h": torch.ones(2, device="cuda"), "n": torch.ones(1)}).capture())
    carry = {"h": None}
    tracking(carry=carry).restore(saved)
    assert (carry["h"].device.type, carry["n"].device.type) == ("cuda", "cpu")


def test_a_generator_on_the_card_goes_on():
    old, new = (torch.Generator("cuda").manual_seed(s) for s in (1, 2))
    torch.rand(3, generator=old, device="cuda")
    tracking(g=new).restore(through_bytes(tracking(g=old).capture()))
    assert torch.equal(*(torch.rand(3, generator=g, device="cuda") for g in (old, new)))


def test_gradients_and_parameters_that_hold_nan_on_the_card():
    model, optimizer = trained("cuda")
    world = tracking(model=model, optimizer=optimizer)
    assert world.unhealthy() == []
    other, other_opt = trained("cpu", steps=0)
    tracking(model=other, optimizer=other_opt).restore(through_bytes(world.capture()))
    assert all(
        torch.equal(a.grad.cpu(), b.grad) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    assert world.unhealthy() == ["model.0.weight"]
