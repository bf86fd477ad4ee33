"""Random generators: the state of each kind as plain data, the global ones, and those that an object owns."""

from __future__ import annotations

import random
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from perdure.core.errors import StateMismatchError

GENERATOR_TYPES = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Objects that draw random numbers and can say and take their state."""

_MAX_DEPTH = 4
_MAX_ITEMS = 64
_MAX_SEEN = 5000
_LEAVES = (
    *(str, bytes, int, float, complex, type(None), np.ndarray, torch.Tensor, torch.nn.Module),
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
)


def state_of(generator: Any) -> dict[str, Any]:
    """State of a generator as plain values, arrays and tensors.

    Args:
        generator: One of ``GENERATOR_TYPES``.
    """
    if isinstance(generator, torch.Generator):
        return {"kind": "torch", "device": str(generator.device), "state": generator.get_state()}
    if isinstance(generator, np.random.Generator):
        return {"kind": "numpy", "state": _copied(generator.bit_generator.state)}
    if isinstance(generator, np.random.RandomState):
        return {"kind": "numpy-legacy", "state": _copied(generator.get_state(legacy=False))}
    version, words, gauss = generator.getstate()
    return {"kind": "python", "version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss}


def set_state(generator: Any, state: Mapping[str, Any]) -> None:
    """Put a state of ``state_of`` back.

    Raises:
        StateMismatchError: It is the state of a generator of another kind.
    """
    kind = state_of(generator)["kind"]
    if kind != state["kind"]:
        raise StateMismatchError(
            "a random generator is of another kind than the one in the checkpoint",
            differences=[f"saved: {state['kind']}, now: {kind}"],
        )
    if isinstance(generator, torch.Generator):
        generator.set_state(state["state"].cpu())
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state["state"]
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state["state"])
    else:
        words = tuple(int(word) for word in state["words"])
        generator.setstate((state["version"], words, state["gauss"]))


def capture_global(*, cuda: bool = True) -> dict[str, Any]:
    """State of the generators that every library shares: python's, numpy's, torch's and each CUDA device's.

    Args:
        cuda: Also the CUDA devices, where CUDA is in use. Asking never initialises CUDA.
    """
    state: dict[str, Any] = {
        "python": state_of(_PYTHON),
        "numpy": state_of(_numpy_global()),
        "torch": torch.get_rng_state(),
    }
    if cuda and torch.cuda.is_initialized():
        state["cuda"] = [torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())]
    return state


def restore_global(state: Mapping[str, Any]) -> None:
    """Put the state of ``capture_global`` back; CUDA devices that are not here are left out."""
    set_state(_PYTHON, state["python"])
    set_state(_numpy_global(), state["numpy"])
    torch.set_rng_state(state["torch"])
    saved = state.get("cuda", [])
    if saved and torch.cuda.is_available():
        for i in range(min(len(saved), torch.cuda.device_count())):
            torch.cuda.set_rng_state(saved[i], i)


def seed_global(seed: int) -> None:
    """Seed python's, numpy's and torch's global generators, every device's included.

    Args:
        seed: 0 to 2**63 - 1.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def owned_by(roots: Iterable[Any]) -> list[Any]:
    """Generators reachable through the attributes of objects such as samplers and data sets, in a fixed order.

    The global generators are never among them. The walk is shallow and looks at the head of long lists only:
    a generator sits beside the samples of a data set, not among them.
    """
    found: list[Any] = []
    seen: set[int] = {id(_PYTHON), id(_numpy_global()), id(torch.default_generator)}
    for root in roots:
        _walk(root, 0, found, seen)
    return found


def _walk(value: Any, depth: int, found: list[Any], seen: set[int]) -> None:
    if id(value) in seen or len(seen) > _MAX_SEEN or isinstance(value, _LEAVES):
        return
    seen.add(id(value))
    if isinstance(value, GENERATOR_TYPES):
        found.append(value)
        return
    if depth == _MAX_DEPTH:
        return
    if isinstance(value, types.MethodType):
        children: Iterable[Any] = [value.__self__]
    elif isinstance(value, Mapping):
        children = list(value.values())[:_MAX_ITEMS]
    elif isinstance(value, (list, tuple)):
        children = value[:_MAX_ITEMS]
    else:
        children = list(getattr(value, "__dict__", {}).values())
    for child in children:
        _walk(child, depth + 1, found, seen)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _numpy_global() -> np.random.RandomState:
    return np.random.mtrand._rand  # numpy.random's own functions are its methods


_PYTHON = random._inst  # the instance behind the module's functions
