"""Seeds of batches, and how one travels to the loader worker that reads the batch.

Worker processes have generators of their own, which die with the session. So in every session, the first
included, a worker is seeded anew for each batch, from a seed that is part of the checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import get_worker_info

from perdure.data.generators import owned_by

_owned: dict[int, list[Any]] = {}
_present: list[int] = []


def call_seed(*parts: object) -> int:
    """Seed of one pass over a loader.

    It is a hash of torch's global generator as the pass begins, which is looked at and not drawn from, so that
    training's own stream is not moved.

    Args:
        parts: What tells this pass from others that begin under the same generator.

    Returns:
        0 to 2**63 - 1.
    """
    digest = xxhash.xxh3_64(torch.get_rng_state().numpy().tobytes())
    digest.update(repr(parts).encode())
    return digest.intdigest() >> 1


def batch_seed(seed: int, batch: int) -> int:
    """Seed of one batch of a pass, 0 to 2**63 - 1."""
    return xxhash.xxh3_64(f"{seed}/{batch}".encode()).intdigest() >> 1


class Stamped:
    """Indices of a batch with the seed it is to be read under.

    A DataLoader pickles what its sampler yields once for each fetch, and the worker unpickles it in its main
    thread directly before the fetch (torch 2.6 to 2.13; a test holds it). So the worker is seeded at the right
    moment and the data set receives the plain indices.

    Args:
        seed: From ``batch_seed``.
        index: What the sampler yielded.
    """

    def __init__(self, seed: int, index: Any) -> None:
        self.seed = seed
        self.index = index

    def __reduce__(self) -> tuple[Callable[[int, Any], Any], tuple[int, Any]]:
        return arrive, (self.seed, self.index)


def arrive(seed: int, index: Any) -> Any:
    """Seed the generators of a worker process and hand on the plain indices."""
    info = get_worker_info()
    if info is not None:  # anyone else who unpickles it, a debugger say, is not to be seeded
        _seed_light(seed)
        if info.id not in _owned:
            _owned[info.id] = owned_by([info.dataset])
        for place, generator in enumerate(_owned[info.id]):
            reseed(generator, batch_seed(seed, place))
        _present[:] = [seed]
    return index


class SeededCollate:
    """A ``collate_fn`` that owns generators, in a worker process: seeded for each batch, as the data set is.

    Args:
        collate: The user's.
        generators: Those it owns.
    """

    def __init__(self, collate: Callable[[Any], Any], generators: Sequence[Any]) -> None:
        self.collate = collate
        self.generators = generators

    def __call__(self, samples: Any) -> Any:
        for seed in _present:
            for place, generator in enumerate(self.generators):
                reseed(generator, batch_seed(seed, -1 - place))
        return self.collate(samples)


def reseed(generator: Any, seed: int) -> None:
    """Seed a generator of any of ``GENERATOR_TYPES`` in place."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed % 2**32)


def _seed_light(seed: int) -> None:
    # not torch.manual_seed: that also asks for CUDA, which a forked worker must leave alone
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
