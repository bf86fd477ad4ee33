"""What was never tried is said where users read, and says what the code says."""

from __future__ import annotations

import re

import pytest
from pages import REPOSITORY, links

from perdure.platforms.kaggle import platform
from perdure.relay.inside.needs import NEEDED

PAGE = REPOSITORY / "docs/reference/untried.md"
TEXT = PAGE.read_text()


@pytest.mark.parametrize("page", ["docs/guides/kaggle.md", "README.md"])
def test_who_reads_about_kaggle_is_led_to_what_was_never_tried(page: str) -> None:
    path = REPOSITORY / page
    targets = {(path.parent / link.partition("#")[0]).resolve() for link in links(path) if "://" not in link}
    assert PAGE in targets


def test_each_assumption_says_where_it_comes_from_and_what_happens_otherwise() -> None:
    rows = [line.strip("| \n").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")]
    assumed = [row for row in rows if len(row) == 3 and row[0] != "assumed"]
    assert len(assumed) > 25
    assert all(re.match(r"(S|M|R|\?)\b|\?|public lists", row[1]) and len(row[2]) > 10 for row in assumed)


def test_the_packages_of_the_image_are_those_that_a_session_needs() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| the image has "))
    assert set(row.partition("has ")[2].partition(" |")[0].split(", ")) == set(NEEDED.values())


def test_every_module_that_confesses_to_be_untried_belongs_to_a_room_of_the_page() -> None:
    """A new place in the code that leans on something untried has to be thought of here."""
    known = {
        "platforms/source.py": "The bundle", "platforms/kaggle/accelerators.py": "Accelerators and hours",
        "platforms/kaggle/platform.py": "Sessions", "platforms/kaggle/refusals.py": "Answers",
        "platforms/kaggle/logs.py": "Sessions", "relay/inside/needs.py": "The bundle", "relay/inside/beat.py": "Sessions",
        "relay/plan.py": "Sessions", "relay/forecast.py": "Accelerators and hours",
    }  # fmt: skip
    root = REPOSITORY / "src/perdure"
    confess = re.compile(r"\b(not|never|ever|here was) tried\b", re.IGNORECASE)
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "testing" not in path.parts and "Kaggle" in (text := path.read_text()) and confess.search(text)
    }
    assert found - known.keys() == set()
    assert all(f"## {room}\n" in TEXT for room in known.values())


def test_the_window_is_the_one_that_the_guide_names() -> None:
    assert platform.WINDOW_S == 12 * 3600
    assert "lasts 12 hours" in (REPOSITORY / "docs/guides/kaggle.md").read_text()
