"""The parity matrix: each kind of model in each format, opened and run in a fresh process by the real runtimes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from zoo import FORMATS, KINDS

from perdure.core.errors import CannotCarryError
from perdure.models.check import check_model
from perdure.models.export import export_model
from perdure.models.formats import Facts

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "export.md"


@pytest.mark.parametrize("name", KINDS)
def test_a_model_comes_back_from_every_format_that_can_hold_it(tmp_path: Path, source, name: str) -> None:
    torch.manual_seed(0)
    kind = KINDS[name]
    model, example = kind.build()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    modes = {key: module.training for key, module in model.named_modules()}
    generator = torch.get_rng_state()

    formats = [format for format in FORMATS if format not in kind.cannot]
    made = export_model(source(model, example), tmp_path, "model", formats, Facts())
    for exported in made:
        assert check_model(exported.path).safe, exported.format
        parity = exported.parity
        assert parity is not None
        assert parity.outputs, exported.format
        assert parity.tensors >= 1
        assert all(each.largest <= each.tolerance * each.scale for each in parity.outputs), exported.format
        size = parity.batches[0]
        assert parity.batches == (size, 1, size + 1), "the batch is dynamic"

    for format, says in kind.cannot.items():
        with pytest.raises(CannotCarryError) as caught:
            export_model(source(model, example), tmp_path, "model", [format], Facts())
        assert re.search(says, str(caught.value)), str(caught.value)

    assert torch.equal(torch.get_rng_state(), generator)
    assert {key: module.training for key, module in model.named_modules()} == modes
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


def test_the_table_in_the_guide_is_this_matrix() -> None:
    rows = re.findall(r"^\| ([^|]+?) +\|(.+)\|$", PAGE.read_text(), re.MULTILINE)
    table = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows if name in KINDS}
    assert table == {
        name: ["no" if format in kind.cannot else "yes" for format in FORMATS] for name, kind in KINDS.items()
    }
