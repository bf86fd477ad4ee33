"""``.pt2``: graph and weights in one file, by torch.export; runs without the class of the model."""

from __future__ import annotations

from pathlib import Path

from perdure.core.errors import CannotCarryError, CorruptError
from perdure.models.formats import Format, Parity, Source, register
from perdure.models.graph import graph_of, own_operators, save_program
from perdure.models.proof import prove_graph
from perdure.models.tensors import check_graph, check_tensors, full_bytes


def _check(source: Source) -> None:
    check_graph(source, "pt2")
    check_tensors(source, "a pt2 file", {})


def _write(source: Source, path: Path) -> tuple[str, ...]:
    graph = graph_of(source)
    save_program(graph.program, path)
    return graph.notes


def _prove(source: Source, path: Path) -> Parity:
    try:
        return prove_graph(source, path, "pt2", "torch.export.load")
    except CorruptError as error:
        if own := own_operators(source):
            raise CannotCarryError(
                f"a pt2 file cannot hold the operator {own[0]}: only its name, and whoever loads the file has not "
                "the code of it",
                path=type(source.module).__name__,
                type_name=own[0],
                hint='use "pth" or "safetensors", which hold the weights',
            ) from error
        raise


PT2 = register(
    Format("pt2", ".pt2", "torch", "graph and weights, by torch.export", _check, full_bytes, _write, _prove)
)
