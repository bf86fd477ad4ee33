"""The state of optimizers and schedulers in foreign files: does it belong to the live one?

torch's ``state_dict`` of an optimizer knows its parameters by order only, and says nothing of its class. What can
be compared is: sizes of groups, names if there are some, options, shapes of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from perdure.training.foreign.matching import bare_name
from perdure.training.world.names import ParameterNames
from perdure.training.world.optimizers import OptimizerPart
from perdure.training.world.part import Part

_TELLING = ("betas", "momentum", "alpha", "rho", "lambd", "etas", "lr_decay", "nesterov", "momentum_decay")
"""Options that tell one class of optimizer from another; others come and go with versions."""
_LIKE_PARAMETERS = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta"),
    *("sum", "exp_inf", "prev"),
)
"""State of torch's optimizers that has the shape of its parameter."""


def in_live_order(part: OptimizerPart, section: Any, names: ParameterNames) -> Any:
    """The state with its parameters in the order of the live groups, where the file gives their names.

    torch writes ``param_names`` for an optimizer that was made of ``named_parameters()``.
    """
    if not isinstance(section, Mapping) or not isinstance(section.get("param_groups"), list):
        return section
    groups = [
        _ordered(old, _live_names(group, names))
        for old, group in zip(section["param_groups"], _groups(part), strict=False)
    ]
    if len(groups) != len(section["param_groups"]) or None in groups:
        return section
    return {**section, "param_groups": groups}


def _groups(part: OptimizerPart) -> list[dict[str, Any]]:
    return list(getattr(part.value, "param_groups", []))


def _live_names(group: Mapping[str, Any], names: ParameterNames) -> list[str]:
    return [(names.name_of(parameter) or "").partition(".")[2] for parameter in group["params"]]


def _ordered(group: Any, live: list[str]) -> dict[str, Any] | None:
    """A group in the order of the live names; None if the names are not the same ones."""
    named = group.get("param_names") if isinstance(group, Mapping) else None
    if not named or len(named) != len(group["params"]):
        return None
    numbers = {bare_name(name): number for name, number in zip(named, group["params"], strict=True)}
    order = [bare_name(name) for name in live]
    if len(numbers) != len(named) or sorted(numbers) != sorted(order):
        return None
    return {**group, "params": [numbers[name] for name in order]}


def optimizer_differences(part: OptimizerPart, section: Any) -> list[str]:
    """Why the state of an optimizer does not belong to the live one, one sentence each."""
    found = part.order_differences(section)
    if found or not isinstance(section, Mapping) or "param_groups" not in section:
        return found
    return [*_option_differences(part, section), *_shape_differences(part, section)]


def _option_differences(part: OptimizerPart, section: Mapping[str, Any]) -> Iterator[str]:
    for old, live in zip(section["param_groups"], _groups(part), strict=False):
        lacks = [name for name in _TELLING if name in live and name not in old]
        extra = [name for name in _TELLING if name in old and name not in live]
        if lacks or extra:
            words = [f"has {', '.join(extra)}"] * bool(extra) + [f"lacks {', '.join(lacks)}"] * bool(lacks)
            yield f"{part.path} is a {type(part.value).__name__}; the state in the file {' and '.join(words)}"
            return


def _shape_differences(part: OptimizerPart, section: Mapping[str, Any]) -> Iterator[str]:
    state = section.get("state") or {}
    for g, (old, live) in enumerate(zip(section["param_groups"], _groups(part), strict=False)):
        for i, (number, parameter) in enumerate(zip(old["params"], live["params"], strict=False)):
            for key, value in (state.get(number) or {}).items():
                wrong = isinstance(value, torch.Tensor) and value.shape != parameter.shape
                if wrong and key in _LIKE_PARAMETERS:
                    yield (
                        f"{part.path}: parameter {i} of group {g} is of shape {tuple(parameter.shape)}, its {key} "
                        f"in the file of shape {tuple(value.shape)}: other parameters, or another order"
                    )
                    break


def scheduler_differences(part: Part, section: Any) -> list[str]:
    """Why the state of a scheduler does not belong to the live one: torch's would take any dict."""
    if not isinstance(part.value, torch.optim.lr_scheduler.LRScheduler) or not isinstance(section, Mapping):
        return []
    here = _telling(part.value.state_dict())
    there = _telling(section)
    if here == there:
        return []
    words = [f"has {', '.join(sorted(there - here))}"] * bool(there - here)
    words += [f"lacks {', '.join(sorted(here - there))}"] * bool(here - there)
    return [f"{part.path} is a {type(part.value).__name__}; the state in the file {' and '.join(words)}"]


def _telling(state: Mapping[str, Any]) -> set[str]:
    return {key for key in state if not key.startswith("_") and key not in ("verbose", "lr_lambdas", "base_lrs")}
