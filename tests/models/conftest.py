"""One process that proves, for all exports of a test module: what is shared is only the time that torch takes to load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.models.formats import Source
from perdure.models.live import as_example
from perdure.models.prover import Prover


@pytest.fixture(scope="session")
def prover(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prover]:
    prover = Prover(tmp_path_factory.mktemp("prover"))
    yield prover
    prover.close()


@pytest.fixture
def source(prover: Prover) -> Callable[..., Source]:
    """Makes sources that share the process: of tensors, or of a live model with or without an example."""

    def make(what: Any, example: Any = None, **more: Any) -> Source:
        from perdure.training.export import source_of

        made = (
            Source(what, example=as_example(example), **more)
            if isinstance(what, dict)
            else source_of(what, as_example(example), **more)
        )
        made.scratch["prover"] = prover
        return made

    return make
