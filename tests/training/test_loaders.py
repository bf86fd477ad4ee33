"""Kinds of loaders, each with no, two, and two persistent workers, cut at four places: exact, or refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from training.jobs import Job, check_exact
from training.processes import Died

N, BATCH = 32, 8


class Augmented(Dataset):
    """Augments with all three generators."""

    def __init__(self, n=N):
        g = torch.Generator().manual_seed(7)
        self.x = torch.randn(n, 4, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(4) + 0.1 * float(np.random.rand()) + 0.1 * random.random()


class Fetching(Augmented):
    """Reads a whole batch at once."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


class OwnGenerator(Augmented):
    """Has a generator of its own."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(3)
        self.g = torch.Generator().manual_seed(4)

    def __getitem__(self, i):
        return self.x[i] + float(self.rng.random()) + torch.randn(4, generator=self.g)


class NumpyOrder(Sampler):
    """An order of its own, from numpy's global generator."""

    def __iter__(self):
        return iter(np.random.permutation(N).tolist())

    def __len__(self):
        return N


class LazyGlobal(Sampler):
    """Draws from torch's global generator with each index, between training's own draws."""

    def __iter__(self):
        for _ in range(N):
            yield int(torch.randint(0, N, ()))

    def __len__(self):
        return N


class Live(Sampler):
    """Carries its own position and generator; goes on where it was, to the end of the pass."""

    def __init__(self):
        self.g, self.order, self.at = torch.Generator().manual_seed(3), [], 0

    def __iter__(self):
        if not self.order:
            self.order = torch.randperm(N, generator=self.g).tolist()
        while self.at < N:
            self.at += 1
            yield self.order[self.at - 1]
        self.order, self.at = [], 0

    def __len__(self):
        return N

    def state_dict(self):
        return dict(g=self.g.get_state(), order=list(self.order), at=self.at)

    def load_state_dict(self, state):
        self.g.set_state(state["g"])
        self.order, self.at = list(state["order"]), state["at"]


class Stream(IterableDataset):
    """Draws from the global generators while it is read; shards over workers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, N, step):
            yield torch.full((4,), float(i)) + torch.randn(4) * 0.1 + random.random()


class Buffered(IterableDataset):
    """Shuffles in a small buffer with torch's global generator: each batch depends on all draws before."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        held = []
        for i in range(first, N, step):
            held.append(torch.full((4,), float(i)))
            if len(held) == 5:
                yield held.pop(int(torch.randint(5, ())))
        yield from held


class Mixing:
    """A collate_fn with generators of its own."""

    def __init__(self):
        self.rng, self.g = np.random.default_rng(8), torch.Generator().manual_seed(9)

    def __call__(self, samples):
        return torch.stack(samples) + float(self.rng.random()) + torch.randn(4, generator=self.g)


class Wrapped(DataLoader):
    """A loader that changes what comes out of it."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 2


class OwnLoader:
    """No DataLoader at all; shuffles with a generator of its own."""

    def __init__(self):
        self.rng = random.Random(5)
        self.x = Augmented().x

    def __iter__(self):
        order = list(range(N))
        self.rng.shuffle(order)
        for i in range(0, N, BATCH):
            yield self.x[order[i : i + BATCH]] + torch.randn(4) * 0.1

    def __len__(self):
        return N // BATCH


def generator(seed=11):
    return torch.Generator().manual_seed(seed)


KINDS = {
    "shuffle": lambda **kw: DataLoader(Augmented(), BATCH, shuffle=True, **kw),
    "sequential": lambda **kw: DataLoader(Augmented(), BATCH, **kw),
    "shuffle_with_generator": lambda **kw: DataLoader(
        Augmented(), BATCH, shuffle=True, generator=generator(), **kw
    ),
    "sampler_with_generator": lambda **kw: DataLoader(
        Augmented(), BATCH, sampler=RandomSampler(range(N), generator=generator()), **kw
    ),
    "replacement": lambda **kw: DataLoader(
        Augmented(), BATCH, sampler=RandomSampler(range(N), replacement=True, num_samples=N), **kw
    ),
    "replacement_with_generator": lambda **kw: DataLoader(
        Augmented(), BATCH, sampler=RandomSampler(range(N), replacement=True, generator=generator()), **kw
    ),
    "weighted": lambda **kw: DataLoader(
        Augmented(), BATCH, sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N), **kw
    ),
    "subset_random": lambda **kw: DataLoader(Augmented(), BATCH, sampler=SubsetRandomSampler(range(N)), **kw),
    "batch_sampler": lambda **kw: DataLoader(
        Augmented(), batch_sampler=BatchSampler(RandomSampler(range(N)), BATCH, drop_last=True), **kw
    ),
    "batch_sampler_in_order": lambda **kw: DataLoader(
        Augmented(), batch_sampler=BatchSampler(SequentialSampler(range(N)), BATCH, drop_last=False), **kw
    ),
    "numpy_sampler": lambda **kw: DataLoader(Augmented(), BATCH, sampler=NumpyOrder(), **kw),
    "lazy_global_sampler": lambda **kw: DataLoader(Augmented(), BATCH, sampler=LazyGlobal(), **kw),
    "live_sampler": lambda **kw: DataLoader(Augmented(), BATCH, sampler=Live(), **kw),
    "getitems": lambda **kw: DataLoader(Fetching(), BATCH, shuffle=True, **kw),
    "subset": lambda **kw: DataLoader(Subset(Augmented(64), range(0, 64, 2)), BATCH, shuffle=True, **kw),
    "no_batching": lambda **kw: DataLoader(Augmented(4), batch_size=None, shuffle=True, **kw),
    "subclass_with_iter": lambda **kw: Wrapped(Augmented(), BATCH, shuffle=True, **kw),
    "drop_last": lambda **kw: DataLoader(Augmented(35), BATCH, shuffle=True, drop_last=True, **kw),
    "stream": lambda **kw: DataLoader(Stream(), BATCH, **kw),
    "stream_with_buffer": lambda **kw: DataLoader(Buffered(), BATCH, **kw),
    "dataset_with_generator": lambda **kw: DataLoader(OwnGenerator(), BATCH, shuffle=True, **kw),
}
KINDS["collate_with_generators"] = lambda **kw: DataLoader(
    Augmented(), BATCH, shuffle=True, collate_fn=Mixing(), **kw
)
KINDS["collate_of_an_object"] = lambda **kw: DataLoader(Augmented(), BATCH, collate_fn=Mixing().__call__, **kw)
MODES = {
    "main": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


def run_over(make):
    def script(run):
        job, loader = Job(), make()
        run.track(**job.tracked())
        for _ in run.epochs(4):
            for x in run.batches(loader):
                job.step(x)
        return job

    return script


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loader_deals_the_same_batches_after_a_kill(tmp_path, kind, mode):
    cuts = (2, 4, 5, 12)  # in the first epoch, at its end, in the second, after three
    check_exact(run_over(lambda: KINDS[kind](**MODES[mode])), tmp_path, cuts)


@pytest.mark.parametrize(
    "kind", ["shuffle", "shuffle_with_generator", "live_sampler", "lazy_global_sampler", "stream"]
)
@pytest.mark.parametrize("mode", MODES)
def test_an_endless_stream_over_the_loader_goes_on_where_it_was(tmp_path, kind, mode):
    def script(run):
        job = Job()
        stream = run.cycle(KINDS[kind](**MODES[mode]))
        run.track(**job.tracked())
        for _ in run.steps(10):
            job.step(next(stream) + next(stream))
        return job

    check_exact(script, tmp_path, (1, 2, 3, 5))


@pytest.mark.parametrize("make", [OwnLoader, lambda: [Augmented().x[i : i + 8] for i in range(0, N, 8)]])
def test_an_own_loader_class_and_a_list(tmp_path, make):
    check_exact(run_over(make), tmp_path, (2, 4, 5, 12))


def test_workers_started_by_forkserver(tmp_path):
    def make():
        return DataLoader(Augmented(), BATCH, shuffle=True, num_workers=1, multiprocessing_context="forkserver")

    def script(run):
        job, loader = Job(), make()
        run.track(**job.tracked())
        for _ in run.epochs(1):
            for x in run.batches(loader):
                job.step(x)
        return job

    check_exact(script, tmp_path, (2,))


def test_a_loader_with_its_own_seed_in_each_epoch_begins_as_it_was_made(tmp_path):
    def script(run):
        job = Job()
        run.track(**job.tracked())
        for epoch in run.epochs(3):
            loader = DataLoader(Augmented(), BATCH, shuffle=True, generator=generator(epoch))
            for x in run.batches(loader):
                job.step(x)
        return job

    check_exact(script, tmp_path, (2, 4, 5, 8))


def test_a_generator_that_is_seeded_otherwise_in_each_session_goes_on_too(tmp_path):
    def make():
        return DataLoader(Augmented(), BATCH, shuffle=True, generator=generator(int(torch.randint(99, ()))))

    check_exact(run_over(make), tmp_path, (2, 4, 5, 8))


def test_loaders_that_take_turns_keep_their_own_generators(tmp_path):
    def script(run):
        job = Job()
        loaders = [DataLoader(Augmented(), BATCH, shuffle=True, generator=generator(s)) for s in (1, 2)]
        run.track(**job.tracked())
        for epoch in run.epochs(4):
            for x in run.batches(loaders[epoch % 2]):
                job.step(x)
        return job

    check_exact(script, tmp_path, (2, 4, 5, 8, 9, 12))


class Restarting(Live):
    """Its __iter__ begins a whole pass wherever it was: after a resume the pass would be longer."""

    def __iter__(self):
        for _ in range(N):
            if self.at % N == 0:
                self.order = torch.randperm(N, generator=self.g).tolist()
            self.at += 1
            yield self.order[(self.at - 1) % N]


def test_a_sampler_that_does_not_end_its_pass_after_a_resume_is_refused(tmp_path, capfd):
    make = lambda: DataLoader(Augmented(), BATCH, sampler=Restarting())
    with pytest.raises(Died):
        check_exact(run_over(make), tmp_path, (2,))
    assert "after a resume the sampler deals more than the 4 batches" in capfd.readouterr().err
