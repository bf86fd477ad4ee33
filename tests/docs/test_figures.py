"""Figures on the pages are those that the benchmarks wrote down, and the benchmarks still run."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from pages import REPOSITORY, benchmark


@pytest.fixture(scope="module")
def export() -> ModuleType:
    return benchmark("export")


def test_the_table_of_exports_is_that_of_the_results(export: ModuleType) -> None:
    table = export.PAGE.read_text().partition(export.BEGIN)[2].partition(export.END)[0].strip()
    results = export.RESULTS / "export.json"
    assert table == (
        export.table(json.loads(results.read_text())) if results.exists() else "Not measured for this version yet."
    )


def test_the_benchmark_of_exports_measures_and_keeps_what_it_found(
    export: ModuleType, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(export, "WIDTH", 64)
    monkeypatch.setattr(export, "WAYS", {name: export.WAYS[name] for name in ("torch.save", "perdure pth")})
    monkeypatch.setattr(export, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(export, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(f"before\n{export.BEGIN}\nold\n{export.END}\nafter\n")
    figures = export.run(0.1, 1, tmp_path)
    export.keep(figures)
    assert set(figures["ways"]) == {"torch.save", "perdure pth"}
    assert figures["ways"]["perdure pth"]["extra_bytes"]["median"] > 10e6, "the process that proves was not seen"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["page.md", "results"]
    page = (tmp_path / "page.md").read_text()
    assert page.startswith(f"before\n{export.BEGIN}\n| way |")
    assert page.endswith(f"{export.END}\nafter\n")
    assert json.loads((tmp_path / "results/export.json").read_text()) == json.loads(json.dumps(figures))


def test_memory_that_is_held_for_a_moment_is_seen(export: ModuleType) -> None:
    with export.memory_watched() as highest:
        held = torch.ones(25_000_000)
        for _ in range(30):
            held += 1
        del held
    assert 80e6 < highest() < 200e6


def test_what_watching_costs_is_said_as_it_was_measured_and_is_below_a_thousandth_of_a_core() -> None:
    figures = json.loads((REPOSITORY / "benchmarks/results/watching.json").read_text())
    page = (REPOSITORY / "docs/performance.md").read_text()
    look, share = figures["look_us"] / 1000, figures["share_of_a_core_percent"]
    assert f"{look:.2f} ms: {share:.3f} % of a core" in page
    assert f"| {figures['step_us']:.1f} µs |" in page
    assert share < 0.1
