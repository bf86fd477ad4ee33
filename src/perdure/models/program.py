"""``.pt2``: graph and weights in one file, by torch.export; runs without the class of the model."""

from __future__ import annotations

from pathlib import Path

from perdure.models.formats import Format, Parity, Source, register
from perdure.models.graph import graph_of, save_program
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
    return prove_graph(source, path, "pt2", "torch.export.load")


PT2 = register(
    Format("pt2", ".pt2", "torch", "graph and weights, by torch.export", _check, full_bytes, _write, _prove)
)
