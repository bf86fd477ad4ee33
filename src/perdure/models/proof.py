"""What must be in a file, and how far its outputs may be from the live model's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from perdure.core.errors import CannotCarryError, ConfigError, CorruptError
from perdure.core.say import warn
from perdure.models._proof_child import digest_of, distance
from perdure.models.formats import Difference, Parity, Source
from perdure.models.graph import first_line, graph_of, own_operators, weightless
from perdure.models.live import Batch, dtype_name, live_of, run_twin
from perdure.models.prover import folder_of, prover_of
from perdure.models.tensors import plain_tensors

TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
    torch.complex64: 1e-4,
    torch.complex128: 1e-9,
}
"""Accepted difference of an output, as a part of its largest value. Other types must be equal."""

# -------------------------------------------------------------------- what should be in a file


def expected_of(source: Source) -> dict[str, tuple[str, list[int], str]]:
    """Name to type, shape and digest of each tensor; once an export."""
    if "expected" not in source.scratch:
        source.scratch["expected"] = {
            name: (str(tensor.dtype), list(tensor.shape), digest_of(tensor))
            for name, tensor in plain_tensors(source).items()
        }
    expected: dict[str, tuple[str, list[int], str]] = source.scratch["expected"]
    return expected


def batches_file(source: Source) -> Path:
    """Inputs and the live model's outputs as a file for the process."""
    if "batches" not in source.scratch:
        batches = [
            {"args": list(b.example.args), "kwargs": dict(b.example.kwargs), "outputs": dict(b.outputs)}
            for b in _tried(source)
        ]
        source.scratch["batches"] = folder_of(source) / "batches.pt"
        torch.save(batches, source.scratch["batches"])
    path: Path = source.scratch["batches"]
    return path


def _tried(source: Source) -> tuple[Batch, ...]:
    """The batches that the graph takes."""
    batches = live_of(source).batches
    return batches if graph_of(source).dynamic else batches[:1]


def graph_file(source: Source) -> Path:
    """The traced graph, without its weights, as a file for the process."""
    if "graph file" not in source.scratch:
        source.scratch["graph file"] = folder_of(source) / "graph.pt2"
        weightless(graph_of(source).program, source.scratch["graph file"])
    path: Path = source.scratch["graph file"]
    return path


# -------------------------------------------------------------------- proving


def prove_weights(source: Source, path: Path, kind: str, loader: str, key: str = "") -> Parity:
    """Prove a file of weights: bit by bit, and by the traced graph that carries them.

    A graph that computes something else than the live model does not condemn the weights; it is said.

    Raises:
        CorruptError: It is not what was written.
    """
    job: dict[str, Any] = {"kind": kind, "path": str(path), "expected": expected_of(source), "key": key}
    answer: Mapping[str, Any] = {"died": True}
    note = _why_no_graph(source)
    if not note:
        answer = prover_of(source).ask(
            {**job, "graph": str(graph_file(source)), "batches": str(batches_file(source))}
        )
        if answer.get("died"):  # of the graph, perhaps: then the weights alone are proved
            note = f"{_NO_PASS}{answer['problems'][0]}"
        elif "no_pass" in answer:
            note = f"{_NO_PASS}{_why_not_there(source, answer['no_pass'])}"
    parity, far = _judged(source, path, loader, prover_of(source).ask(job) if answer.get("died") else answer)
    if note and "live" in source.scratch:
        return _run_here(source, path, kind, key, replace(parity, note=note))
    if far:
        note = f"the weights are right, but the graph that torch.export makes of the model is not: {far[0]}"
        warn(f"{path.name}: {note}")
    return replace(parity, note=note)


def _run_here(source: Source, path: Path, kind: str, key: str, parity: Parity) -> Parity:
    """Run the live model's copy with the weights of the file, where it has no graph to be run elsewhere."""
    found = load_file(path) if kind == "safetensors" else torch.load(path, weights_only=True, mmap=True)
    weights: Mapping[str, torch.Tensor] = found[key] if key else found  # type: ignore[assignment]
    live = live_of(source)
    outputs: dict[str, Difference] = {}
    for batch in live.batches:
        got = run_twin(live.twin, batch.example, weights)
        for name, expected in batch.outputs.items():
            before = outputs.get(name, Difference(name, dtype_name(expected), 0.0, 0.0, 0.0))
            largest, scale = distance(expected, got[name])
            outputs[name] = replace(
                before,
                largest=max(before.largest, largest),
                scale=max(before.scale, scale),
                tolerance=TOLERANCES.get(expected.dtype, 0.0),
            )
    sizes = tuple(batch.size for batch in live.batches)
    note = f"the forward pass was in this process: {parity.note.removeprefix(_NO_PASS)}"
    return replace(parity, outputs=tuple(outputs.values()), batches=sizes, note=note)


_NO_PASS = "no forward pass: "


def _why_no_graph(source: Source) -> str:
    """Why there is no forward pass; empty where there is one."""
    if source.module is None:
        return f"{_NO_PASS}there are only tensors, no model"
    if source.example is None:
        return f"{_NO_PASS}no example was given"
    try:
        names = set(graph_of(source).program.state_dict)
        graph_file(source)
    except (CannotCarryError, ConfigError) as error:
        return f"{_NO_PASS}{error.what}"
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
        return f"{_NO_PASS}torch cannot save its graph: {first_line(error)}"  # each version has limits of its own
    missing = sorted(names - set(source.tensors))
    return f"{_NO_PASS}the graph has {missing[0]}, and the file has not" if missing else ""


def _why_not_there(source: Source, problem: str) -> str:
    if own := own_operators(source):
        return f"its graph calls {own[0]}, whose code a fresh process has not"
    return f"its graph does not run in a fresh process: {problem.splitlines()[0]}"


def prove_graph(source: Source, path: Path, kind: str, loader: str, **more: Any) -> Parity:
    """Prove a file that holds a graph.

    Raises:
        CorruptError: It is not what was written, or its outputs differ.
    """
    job = {"kind": kind, "path": str(path), "expected": expected_of(source), "batches": str(batches_file(source))}
    parity, far = _judged(source, path, loader, prover_of(source).ask({**job, **more}))
    if far:
        raise CorruptError(
            f"the model file gives other numbers than the live model: {path.name}",
            path=path,
            problems=far,
            hint=_HINT_NUMBERS if _repeats_itself(source) else _HINT_RANDOM,
        )
    return parity


def _repeats_itself(source: Source) -> bool:
    """Whether the live model gives the same numbers twice."""
    live = live_of(source)
    again = run_twin(live.twin, live.batches[0].example)
    return all(torch.equal(again[name], first) for name, first in live.batches[0].outputs.items())


def _judged(source: Source, path: Path, loader: str, answer: Mapping[str, Any]) -> tuple[Parity, list[str]]:
    """What the process found, and which outputs are too far from the live model's.

    Raises:
        CorruptError: The file is not what was written.
    """
    if answer.get("perdure"):
        raise AssertionError("the process that proves has imported perdure")
    if answer["problems"]:
        raise CorruptError(
            f"the model file is not what it should be: {path.name}",
            path=path,
            problems=answer["problems"],
            hint=_HINT_BYTES,
        )
    differences = tuple(_differences(source, answer.get("outputs", {})))
    sizes = tuple(batch.size for batch in _tried(source)) if differences else ()
    far = [_too_far(each) for each in differences if not _near(each)]
    return Parity(loader, int(answer.get("tensors", 0)), differences, sizes), far


_HINT_BYTES = (
    "the disk or the memory of this machine is at fault, or the program that wrote it; the file was removed"
)
_HINT_NUMBERS = (
    'the file was removed; the weights alone can be had: "pth" or "safetensors". Outputs that are the place of a '
    "largest value may differ where two values are almost equal"
)
_HINT_RANDOM = (
    "the live model gives other numbers each time, also in eval mode: let it draw random numbers in training only"
)


def _differences(source: Source, outputs: Mapping[str, Mapping[str, float]]) -> list[Difference]:
    if not outputs:
        return []
    live = live_of(source).batches[0].outputs
    return [
        Difference(
            name,
            dtype_name(live[name]),
            found["largest"],
            TOLERANCES.get(live[name].dtype, 0.0),
            found["scale"],
        )
        for name, found in outputs.items()
    ]


def _near(difference: Difference) -> bool:
    return difference.largest <= difference.tolerance * difference.scale


def _too_far(difference: Difference) -> str:
    allowed = difference.tolerance * difference.scale
    return (
        f"output {difference.name} is off by {difference.largest:.3g}, where {allowed:.3g} is allowed "
        f"({difference.tolerance:g} of the largest value, {difference.scale:.3g})"
    )
