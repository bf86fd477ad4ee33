"""The tables of the pages are those of the results, and each benchmark runs and says what the tables need."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from types import ModuleType

import pytest
from pages import REPOSITORY, benchmark

FOLDER = REPOSITORY / "benchmarks"
SMALL = {
    "saving": ["--layers", "1", "--width", "32", "--rounds", "1"],
    "bytes": ["--layers", "1", "--width", "32", "--rounds", "1"],
    "frozen": ["--layers", "2", "--width", "32", "--saves", "2"],
    "memory": ["--layers", "1", "--width", "32", "--saves", "1"],
    "tiny": ["--counts", "5,50", "--rounds", "1"],
    "resume": ["--layers", "1", "--width", "32", "--rounds", "1"],
    "fast_forward": ["--samples", "400", "--at", "20", "--rounds", "1"],
}


@pytest.fixture
def page() -> ModuleType:
    return benchmark("page")


def test_the_tables_of_the_pages_are_those_of_the_results(page):
    for path, text in page.made().items():
        assert path.read_text() == text, f"{path.name}: run benchmarks/page.py"


def test_a_page_without_its_comments_is_an_error_and_nothing_else_of_it_changes(page):
    with pytest.raises(ValueError, match="resume: begin"):
        page.between("nothing here", "resume", "text")
    before = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    assert page.between(before, "x", "new") == before.replace("old", "new")


def test_the_ratios_are_those_of_the_medians(page):
    figures = {OURS: {"still_s": {"median": 0.01}}, "torch.save": {"still_s": {"median": 1.0}}}
    said = "For a checkpoint of ours training stands still for 10.0 ms, 1.0 % of the time for torch.save"
    assert page.stalls({"figures": figures}) == f"{said}."
    figures["moonclip"] = {"still_s": {"median": 0.2}}
    assert (
        page.stalls({"figures": figures}) == f"{said}, 5.0 % of the time for moonclip, the best asynchronous peer."
    )


OURS = "perdure"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs_and_its_table_can_be_made(name, page, tmp_path):
    command = [sys.executable, str(FOLDER / f"{name}.py"), *SMALL[name], "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    table = page.TABLES[name](json.loads(done.stdout))
    assert "perdure" in table or name in ("frozen", "tiny")
    assert "| --- |" in table
    assert list(tmp_path.iterdir()) == [], "it left something behind"


def test_files_are_cold_and_warm_when_it_is_said(page, tmp_path):
    common = benchmark("common")
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1_000_000)
    assert common.cached_bytes(file) == 1_000_000
    left = common.make_cold(tmp_path)
    assert left == common.cached_bytes(file)
    assert common.make_warm(tmp_path) == 0
    assert isinstance(common.parser("", rounds=2), argparse.ArgumentParser)
