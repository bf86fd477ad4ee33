"""The tensors of a model as files can hold them: dense, contiguous, on the CPU, without hidden memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from perdure.core.errors import CannotCarryError, ConfigError
from perdure.models.formats import Source

HEADROOM_BYTES = 1_000_000
"""What a file holds besides the bytes of its tensors: names, shapes, padding, a graph. Generous."""

Tensors = Mapping[str, torch.Tensor]


def plain_tensors(source: Source) -> dict[str, torch.Tensor]:
    """The tensors of a source, made plain once an export; tied ones are one object.

    On the CPU they are the live memory, not copies, wherever that is plain already.
    """
    if "plain" not in source.scratch:
        source.scratch["plain"] = dict(_plain(source.tensors))
    plain: dict[str, torch.Tensor] = source.scratch["plain"]
    return plain


def _plain(tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    known: dict[tuple[object, ...], torch.Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.data_ptr() if tensor.numel() else name
        key = (tensor.device, place, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        if key not in known:
            known[key] = _solo(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous())
        yield name, known[key]


def _solo(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied if it is a view: torch.save would write the whole storage behind it."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def check_tensors(source: Source, file: str, cannot_hold: Mapping[torch.dtype, str]) -> None:
    """Refuse, before anything is written, what a file cannot hold.

    Args:
        source: The model.
        file: For the message: ``"a safetensors file"``.
        cannot_hold: Type of numbers to what to do instead.

    Raises:
        CannotCarryError: It names the first such tensor, and the format that can.
    """
    for path, tensor in source.tensors.items():
        if tensor.dtype in cannot_hold:
            raise _cannot_hold(file, path, str(tensor.dtype), cannot_hold[tensor.dtype])
        if tensor.layout != torch.strided or tensor.is_quantized or hasattr(tensor, "__tensor_flatten__"):
            raise _cannot_hold("a model file", path, _kind(tensor), "store it as a dense tensor")
        if tensor.is_meta:
            raise _cannot_hold("a model file", path, "meta", "give the model its values before it is exported")


def _kind(tensor: torch.Tensor) -> str:
    if tensor.layout != torch.strided:
        return str(tensor.layout)
    return "quantised" if tensor.is_quantized else type(tensor).__name__


def _cannot_hold(file: str, path: str, kind: str, hint: str) -> CannotCarryError:
    kind = kind.removeprefix("torch.")
    return CannotCarryError(
        f"{file} cannot hold {path}: it is a {kind} tensor", path=path, type_name=kind, hint=hint
    )


def left_out(source: Source) -> tuple[str, ...]:
    """What a file of weights does not hold of a module, for the user."""
    modules = source.module.named_modules() if isinstance(source.module, nn.Module) else ()
    names = [name for name, module in modules if type(module).get_extra_state is not nn.Module.get_extra_state]
    if not names:
        return ()
    return (
        f"the extra state of {', '.join(name or 'the model' for name in names)} is not in it: load strict=False",
    )


def check_graph(source: Source, format: str) -> None:
    """Refuse a format that holds a graph where there is no model to trace, or no example to trace it with.

    Raises:
        ConfigError: Says what is missing.
    """
    if source.module is None:
        raise ConfigError(
            f"the format {format!r} holds the graph of the model, and there are only its tensors here",
            hint='name what builds the model (--model train:build_model), or use "pth" or "safetensors"',
        )
    if source.example is None:
        raise ConfigError(
            f"the format {format!r} holds the graph of the model, which is traced with an example of its inputs",
            hint='give one: example=images; or use "pth" or "safetensors", which need none',
        )


def full_bytes(source: Source) -> int:
    """Bytes of all tensors, tied ones each time: what a format that knows no ties needs."""
    return sum(int(tensor.nbytes) for tensor in source.tensors.values()) + HEADROOM_BYTES


def on_cpu_plain(value: Any) -> Any:
    """The state of an optimizer and the like, as torch's safe loader takes it: CPU tensors, plain values."""
    if isinstance(value, torch.Tensor):
        return _solo(value.detach().cpu())
    if isinstance(value, Mapping):
        return {key: on_cpu_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu_plain(each) for each in value) if type(value) in (list, tuple) else list(value)
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        return value.item()
    return value
