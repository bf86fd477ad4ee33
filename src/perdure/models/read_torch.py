"""Reads what torch writes: files of torch.save, TorchScript, programs of torch.export."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from perdure.models.contents import Contents, Forward, damaged, not_safe
from perdure.models.formats import Example, Port, Signature
from perdure.models.program_safety import why_unsafe
from perdure.models.zips import check_zip

_MODEL_KEYS = ("model_state_dict", "model", "state_dict", "net", "net_state_dict", "ema", "module")
"""Where hand-written checkpoints keep the model."""

Tensors = list[tuple[str, torch.Tensor]]

_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod)\.")
_NO_CHECKSUMS = "this old format of torch has no checksums, so damage in the numbers would not show"


def read_pth(path: Path, trust: bool) -> Contents:
    """A file of torch.save, in the zip format or the old one; with the safe loader unless it is trusted.

    Raises:
        UnsafeFileError: Only a pickle with code can make what is in it, and it is not trusted.
        CorruptError: It is damaged, or a pickle of somebody else.
    """
    zipped = zipfile.is_zipfile(path)
    notes = check_zip(path) if zipped else (_NO_CHECKSUMS,)
    content, safe = _load(path, trust, zipped)
    what, tensors, main, facts = _describe(content)
    names = [name for name, _ in tensors]
    if any(_WRAPPERS.search(name) for name in names):
        notes += ("names begin with module. or _orig_mod., as DataParallel and torch.compile make them",)
    safety = "tensors and plain values only" if safe else "it was loaded as a pickle that may run code, as trusted"
    return Contents(what, safety, tensors, safe, main, facts=facts, notes=notes)


def _load(path: Path, trust: bool, zipped: bool) -> tuple[Any, bool]:
    try:
        return _torch_load(path, zipped, weights_only=True), True
    except pickle.UnpicklingError as error:
        if not trust:
            raise not_safe(path, _why(str(error))) from None
    except Exception as error:  # of a file that is cut short it may raise anything
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    try:
        return _torch_load(path, zipped, weights_only=False), False
    except Exception as error:  # a pickle may raise anything
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def _torch_load(path: Path, zipped: bool, *, weights_only: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about pickle protocols and read-only memory
        return torch.load(path, map_location="cpu", weights_only=weights_only, mmap=zipped or None)


def _why(message: str) -> str:
    found = re.search(r"GLOBAL (\S+)", message)
    return f"it holds a {found[1]}" if found else "it holds more than tensors and plain values"


def _describe(
    content: Any,
) -> tuple[str, list[tuple[str, torch.Tensor]], Callable[[str], bool] | None, dict[str, Any]]:
    """What it is, its tensors, which of them are the model's, plain values beside them."""
    if isinstance(content, torch.nn.Module):
        return f"a whole model object, {type(content).__qualname__}", list(content.state_dict().items()), None, {}
    tensors = list(_tensors(content, ""))
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__} with tensors", tensors, None, {}
    if content and all(isinstance(value, torch.Tensor) for value in content.values()):
        return "a state_dict, written by torch.save", tensors, None, {}
    facts = {str(key): value for key, value in content.items() if _is_plain(value)}
    key = next((key for key in _MODEL_KEYS if isinstance(content.get(key), (Mapping, torch.nn.Module))), None)
    what = "a Lightning checkpoint" if "pytorch-lightning_version" in content else "a checkpoint"
    what += f" with {', '.join(str(key) for key in content if str(key) not in facts) or 'no states'}"
    return what, tensors, (lambda name: name.startswith(f"{key}.")) if key else None, facts


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, bool)) or (isinstance(value, str) and len(value) <= 40)


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path or "tensor", value
    elif isinstance(value, torch.nn.Module):
        yield from _tensors(value.state_dict(), path)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _tensors(each, f"{path}[{index}]")


def read_torchscript(path: Path, trust: bool) -> Contents:
    """A TorchScript program. Its code can write files, so it is loaded only when it is trusted."""
    notes = check_zip(path)
    if not trust:
        raise not_safe(path, "it is a TorchScript program, whose code may read and write files")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is deprecated
            model = torch.jit.load(path, map_location="cpu").eval()
    except Exception as error:  # it has no errors of its own
        raise damaged(path, str(error)) from error
    tensors = list(model.state_dict().items())
    return Contents(
        "a TorchScript program", "it was loaded as trusted", tensors, False, notes=notes, forward=_runner(model)
    )


def read_pt2(path: Path, trust: bool) -> Contents:
    """A program of torch.export.

    ``torch.export.load`` can run code in several ways, so the archive is looked through first.
    """
    notes = check_zip(path)
    reason = why_unsafe(path)
    if reason and not trust:
        raise not_safe(path, reason)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
    except Exception as error:  # the reader has no errors of its own
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    tensors = [*program.state_dict.items(), *((n, v) for n, v in program.constants.items() if torch.is_tensor(v))]
    safety = "no pickles in it, and its graph uses operators of torch only"
    return Contents(
        "a program of torch.export: graph and weights",
        f"it was loaded as trusted although {reason}" if reason else safety,
        tensors,
        not reason,
        signature=_signature(program),
        notes=notes,
        forward=_runner(program.module()),
    )


def _signature(program: Any) -> Signature:
    specs = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = [port for name in specs.user_inputs if (port := _port(nodes, str(name)))]
    outputs = [port for name in specs.user_outputs if (port := _port(nodes, str(name)))]
    batch = next((port.shape[0] for port in inputs if port.shape and isinstance(port.shape[0], str)), None)
    return Signature(tuple(_named(each, batch) for each in inputs), tuple(_named(each, batch) for each in outputs))


def _named(port: Port, batch: int | str | None) -> Port:
    """The symbol of the first axis is called by what it is."""
    return Port(port.name, port.dtype, tuple("batch" if size == batch else size for size in port.shape))


def _port(nodes: Mapping[str, Any], name: str) -> Port | None:
    value = nodes[name].meta.get("val") if name in nodes else None
    if not isinstance(value, torch.Tensor):
        return None
    shape = [size if isinstance(size, int) else str(size) for size in value.shape]
    return Port(name, str(value.dtype).removeprefix("torch."), tuple(shape))


def _runner(module: Any) -> Forward:
    def run(example: Example) -> Mapping[str, Any]:
        with torch.no_grad():
            return flat_outputs(module(*example.args, **example.kwargs))

    return run


def flat_outputs(value: Any, name: str = "") -> dict[str, Any]:
    """Nested outputs as one dict; names are keys and positions."""
    if isinstance(value, torch.Tensor):
        return {name or "output": value}
    if isinstance(value, Mapping):
        pairs = [(f"{name}.{key}" if name else str(key), each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(f"{name}[{i}]" if name else f"output_{i}", each) for i, each in enumerate(value)]
    else:
        return {}
    return {inner: leaf for path, each in pairs for inner, leaf in flat_outputs(each, path).items()}
