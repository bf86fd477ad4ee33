"""After the first step: is what is trained really where it should be? Named by tensor if not.

No hooks: they would be compiled into what ``torch.compile`` makes. What a forward is given need not be looked at
either, because torch refuses one over two devices: where the parameters are is where it was computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch

from perdure.core.errors import AcceleratorError
from perdure.training.world.optimizers import layers
from perdure.training.world.world import World

_SHOWN = 3


def check_placement(
    world: World, device: torch.device, batch: Collection[torch.device] = (), *, card_used: bool = False
) -> list[str]:
    """Compare where tensors are with where the run trains.

    Args:
        world: The tracked objects, after a step.
        device: The run's.
        batch: Where the loader puts the tensors of its batches.
        card_used: The step has put something on the card. Then parameters may be on the host on purpose, as with
            offloading.

    Returns:
        Sentences for the user: what is on another kind of device. An average or a teacher that is kept on the
        host on purpose is one too.

    Raises:
        AcceleratorError: The run is to train on a card, and nothing of what it trains is there.
    """
    if device.type == "cpu":
        return []
    trained, others = _parameters(world)
    wrong = _elsewhere(trained, device)
    if wrong and len(wrong) == len(trained) and not card_used:
        raise AcceleratorError(
            f"the run is to train on {device}, but all that it trains is elsewhere: {_names(wrong)}",
            hint="move the model before the optimizer is made: model.to(run.device); to train on the CPU, say "
            'accelerator="cpu"',
        )
    groups = {
        "trained elsewhere": wrong,
        "state of an optimizer": _state_elsewhere(world, device),
        "parameters and buffers of modules": _elsewhere(others, device),
    }
    found = [f"not on {device}: {_names(names)} ({what})" for what, names in groups.items() if names]
    return [*found, *_other_card(trained, device), *_other_card_of_batch(batch, device)]


def _parameters(world: World) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What optimizers train, and the other tensors of the tracked modules; by name."""
    members = {
        id(parameter)
        for optimizer in world.optimizers.values()
        for _, layer in layers(optimizer)
        for group in layer.param_groups
        for parameter in group["params"]
    }
    parameters = world.parameters()
    trained = {name: value for name, value in parameters.items() if id(value) in members and value.requires_grad}
    others: dict[str, torch.Tensor] = {name: value for name, value in parameters.items() if name not in trained}
    for path, tensors in world.state_dicts().items():
        others |= {f"{path}.{name}": tensor for name, tensor in tensors.items() if f"{path}.{name}" not in trained}
    return dict(trained), others


def _elsewhere(tensors: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.device]:
    """Tensors on another kind of device; models may be spread over several cards."""
    return {name: tensor.device for name, tensor in tensors.items() if tensor.device.type != device.type}


def _state_elsewhere(world: World, device: torch.device) -> dict[str, torch.device]:
    return {
        name: tensor.device
        for name, parameter, tensor in _state(world)
        if parameter.device.type == device.type and tensor.device.type != device.type
    }


def _state(world: World) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Name, parameter and tensor of optimizer state; counters of one element belong on the host."""
    names = world.parameter_names()
    for path, optimizer in world.optimizers.items():
        for _, layer in layers(optimizer):
            state = getattr(layer, "state", None)
            for parameter, values in state.items() if isinstance(state, Mapping) else ():
                if not isinstance(parameter, torch.Tensor) or not isinstance(values, Mapping):
                    continue
                for key, value in values.items():
                    if isinstance(value, torch.Tensor) and value.numel() > 1:
                        yield f"{path} {key} of {names.name_of(parameter) or 'a parameter'}", parameter, value


def _other_card(trained: Mapping[str, torch.Tensor], device: torch.device) -> list[str]:
    cards = {tensor.device for tensor in trained.values()}
    if not cards or any(card.type != device.type for card in cards) or device in cards:
        return []
    return [f"run.device is {device}, but all that is trained is on {_listed(cards)}; only {device} was tested"]


def _other_card_of_batch(batch: Collection[torch.device], device: torch.device) -> list[str]:
    """Batches on the host are the rule, the loop brings them over; on another card they are a mistake."""
    other = {card for card in batch if card.type == device.type} - {device}
    return [f"the loader puts batches on {_listed(other)}, and not on {device}"] if other else []


def _listed(devices: set[torch.device]) -> str:
    return ", ".join(sorted(map(str, devices)))


def _names(found: Mapping[str, torch.device]) -> str:
    shown = [f"{name} on {where}" for name, where in list(found.items())[:_SHOWN]]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
