"""Small, seeded training situations that checkpoint and resume tools are known to get wrong.

Nothing here knows Perdure. Every scenario is a function ``build_<name>()`` without arguments that returns a plain
dict, the *world*:

  model        nn.Module that is trained (an nn.ModuleDict where there are several nets)
  optimizer    one optimizer, or a dict name -> optimizer (order = stepping order)
  scheduler    None, one scheduler, or a dict name -> scheduler
  scaler       None or a torch.amp.GradScaler
  dataset      () -> dataset, the same content on every call (its data never depends on the seed)
  loader       (dataset, epoch) -> iterable of batches for that epoch
  train_step   (batch, progress) -> float; forward, backward, and the optimizer step when due
  end_epoch    None or (progress) -> None, runs after the last batch of an epoch
  extra        dict name -> further things that training depends on: modules, objects with
               state_dict/load_state_dict, or plain dict/list/deque (to be restored IN PLACE)
  calls        number of train_step calls that give >= 12 optimizer steps (12 unless accumulating)
  per_epoch    train_step calls per epoch, or None for an endless loader
  live         True: the loader's position lives in an ``extra`` object, so a resumed run makes
               a new loader and simply goes on; False: position = batches already consumed
  prime        None or (batch) -> None: must be called on a fresh world before loading a
               checkpoint that was taken after the first step (modules made on first use)
  alt          None or () -> world: the same training written in another legal way
               (unwrapped, on meta); ``alt_expect`` says what loading across should do
"""

import collections
import copy
import hashlib
import math
import os
import random

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import lr_scheduler as lrs
from torch.optim import swa_utils
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    get_worker_info,
    random_split,
)

torch.set_num_threads(1)

SCENARIOS = {}


def scenario(trap, rows="", cuts=(3, 6, 8), exact=True):
    """Register build_<name>.  trap: what a careless resume loses.  cuts: calls after which to interrupt.
    exact=False: no tool can resume this bit for bit; the right behaviour is to say so."""

    def deco(fn):
        SCENARIOS[fn.__name__[len("build_") :]] = dict(build=fn, trap=trap, rows=rows, cuts=cuts, exact=exact)
        return fn

    return deco


# ------------------------------------------------------------------ shared little pieces
def world(model, optimizer, dataset, loader, train_step, **more):
    w = dict(
        model=model,
        optimizer=optimizer,
        scheduler=None,
        scaler=None,
        dataset=dataset,
        loader=loader,
        train_step=train_step,
        end_epoch=None,
        extra={},
        calls=12,
        per_epoch=4,
        live=False,
        prime=None,
        alt=None,
        alt_expect="",
    )
    unknown = set(more) - set(w)
    assert not unknown, unknown
    w.update(more)
    return w


def xy(n=32, d=6, k=3, salt=1):
    """Fixed classification data; independent of the global seed."""
    g = torch.Generator().manual_seed(1000 + salt)
    x = torch.randn(n, d, generator=g)
    y = (x @ torch.randn(d, k, generator=g)).argmax(1)
    return TensorDataset(x, y)


def shuffled(batch=8, **kw):
    return lambda ds, epoch: DataLoader(ds, batch_size=batch, shuffle=True, **kw)


def mlp(d=6, h=10, k=3, act=nn.Tanh):
    return nn.Sequential(nn.Linear(d, h), act(), nn.Linear(h, k))


def plain_step(model, opt, sched=None, loss_fn=F.cross_entropy):
    def step(batch, p):
        opt.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        opt.step()
        if sched is not None:
            sched.step()
        return loss.item()

    return step


# ================================================================== model shape and naming
@scenario("two names, one tensor: a format that refuses or duplicates shared storage breaks the tie", "B20")
def build_tied_weights():
    class TinyLM(nn.Module):
        def __init__(self, vocab=17, dim=12):
            super().__init__()
            self.emb = nn.Embedding(vocab, dim)
            self.mix = nn.Linear(dim, dim)
            self.out = nn.Linear(dim, vocab, bias=False)
            self.out.weight = self.emb.weight

        def forward(self, tok):
            return self.out(torch.tanh(self.mix(self.emb(tok))))

    g = torch.Generator().manual_seed(5)
    tok = torch.randint(0, 17, (32, 9), generator=g)
    model = TinyLM()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(batch, p):
        opt.zero_grad()
        t = batch[0]
        loss = F.cross_entropy(model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())
        loss.backward()
        opt.step()
        return loss.item()

    return world(model, opt, lambda: TensorDataset(tok), shuffled(), step)


def _dp(wrap):
    net = mlp()
    model = nn.DataParallel(net) if wrap else net
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return world(
        model,
        opt,
        xy,
        shuffled(),
        plain_step(model, opt),
        alt=(lambda: _dp(not wrap)) if wrap else None,
        alt_expect="loads into the bare net (prefix 'module.' understood both ways)",
    )


@scenario("keys carry 'module.'; a bare net cannot load them", "B07")
def build_dataparallel_prefix():
    return _dp(True)


def _compiled(wrap):
    net = mlp()
    model = torch.compile(net, backend="eager") if wrap else net
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return world(
        model,
        opt,
        xy,
        shuffled(),
        plain_step(model, opt),
        alt=(lambda: _compiled(not wrap)) if wrap else None,
        alt_expect="loads into the uncompiled net (prefix '_orig_mod.' understood both ways)",
    )


@scenario("keys carry '_orig_mod.'; evaluation without compile cannot load them", "B08")
def build_compile_prefix():
    return _compiled(True)


@scenario("the head is created in the first forward; a fresh model has no such keys yet", "B44")
def build_lazy_head():
    class Grow(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 8)
            self.head = None

        def grow(self, x):
            if self.head is None:
                self.head = nn.Linear(self.body(x).shape[1], 3)
                return list(self.head.parameters())
            return []

        def forward(self, x):
            return self.head(torch.relu(self.body(x)))

    model = Grow()
    opt = torch.optim.Adam(model.body.parameters(), lr=5e-3)

    def prime(batch):
        fresh = model.grow(batch[0])
        if fresh:
            opt.add_param_group({"params": fresh, "lr": 1e-2})

    inner = plain_step(model, opt)

    def step(batch, p):
        prime(batch)
        return inner(batch, p)

    return world(model, opt, xy, shuffled(), step, prime=prime)


@scenario("uninitialised parameters: shapes are unknown until data is seen", "B44")
def build_lazy_linear():
    model = nn.Sequential(nn.LazyLinear(9), nn.Tanh(), nn.LazyLinear(3))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def prime(batch):
        with torch.no_grad():
            model(batch[0])

    return world(model, opt, xy, shuffled(), plain_step(model, opt), prime=prime)


def _meta(on_meta):
    with torch.device("meta" if on_meta else "cpu"):
        model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return world(
        model,
        opt,
        xy,
        shuffled(),
        plain_step(model, opt),
        alt=None if on_meta else (lambda: _meta(True)),
        alt_expect="materialised with assign, optimizer re-pointed to the new parameters; not a no-op copy",
    )


@scenario("model rebuilt on the meta device: copying into it does nothing and warns at most", "B45")
def build_meta_init():
    return _meta(False)


# ================================================================== buffers and dtypes
@scenario("running stats with momentum=None depend on the int64 0-dim counter num_batches_tracked", "B37")
def build_batchnorm_cumulative():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario("a frozen backbone kept in eval(): resuming with train() lets its BatchNorm drift", "B37")
def build_frozen_bn_eval():
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    model = nn.Sequential(body, nn.Dropout(0.2), nn.Linear(8, 3))
    for q in body.parameters():
        q.requires_grad_(False)
    model.train()
    body.eval()
    opt = torch.optim.AdamW(model[2].parameters(), lr=5e-3)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario("0-dim, empty, bool and int buffers that forward() changes", "B36")
def build_zero_dim_buffers():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("scale", torch.tensor(1.0, dtype=torch.float64))
            self.register_buffer("seen", torch.tensor(0, dtype=torch.int64))
            self.register_buffer("hot", torch.tensor(False))
            self.register_buffer("nothing", torch.empty(0, 4))
            self.register_buffer("table", torch.zeros(3, dtype=torch.uint8))

        def forward(self, x):
            if self.training:
                self.seen += x.shape[0]
                self.scale.mul_(0.97).add_(0.03 * x.abs().mean().double())
                self.hot.copy_(self.scale > 0.9)
                self.table[int(self.seen) % 3] += 1
            return self.net(x / self.scale.float()) * (1.5 if bool(self.hot) else 1.0)

    model = Odd()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario("an observer buffer grows from shape [0] to [features]: strict load reports a size mismatch", "B46")
def build_resizing_buffer():
    class Observed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
            self.register_buffer("peak", torch.empty(0))

        def forward(self, x):
            h = self.a(x)
            if self.training:
                top = h.detach().abs().amax(0)
                self.peak = top if self.peak.numel() == 0 else torch.maximum(self.peak, top)
            s = self.peak / 7
            return self.b(h + ((h / s).round() * s - h).detach())

    model = Observed()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario(
    "complex64 parameters and moments: a writer that knows real dtypes only fails or drops the imaginary part",
    "B34",
)
def build_complex_params():
    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64) * 0.3)
            self.b = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return (torch.fft.rfft(x)[:, :4] @ self.w).abs() + self.b

    model = Spectral()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario("float8 and packed uint8 weight storage refreshed during training", "B34")
def build_float8_buffer():
    class Q(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("w8", torch.randn(6, 6).to(torch.float8_e4m3fn))
            self.register_buffer("nib", torch.randint(0, 255, (6, 3), dtype=torch.uint8))

        def forward(self, x):
            if self.training:
                self.w8.copy_((self.w8.float() * 0.5 + 0.1 * x.mean(0)).to(torch.float8_e4m3fn))
                self.nib.copy_(self.nib ^ 3)
            lo = (self.nib & 15).float() / 15
            return self.net(x @ self.w8.float() * 0.3 + F.pad(lo.mean(0), (0, 3)))

    model = Q()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario("two buffers are views of one storage: in-place change of one must still show in the other", "B20")
def build_shared_view_buffers():
    class V(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(d=6)
            base = torch.zeros(2, 6)
            self.register_buffer("bank", base)
            self.register_buffer("row", base[1])

        def forward(self, x):
            if self.training:
                self.row.lerp_(x.mean(0), 0.2)
            return self.net(x - self.bank[1])

    model = V()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario("600 tiny tensors: per-file or per-tensor overheads, file-count limits", "B58")
def build_many_small_tensors():
    class Many(nn.Module):
        def __init__(self, n=300):
            super().__init__()
            self.w = nn.ParameterList([nn.Parameter(torch.randn(1) * 0.1) for _ in range(n)])
            self.b = nn.ParameterList([nn.Parameter(torch.zeros(())) for _ in range(n)])
            self.out = nn.Linear(n, 3)

        def forward(self, x):
            w, b = torch.cat(list(self.w)), torch.stack(list(self.b))
            return self.out(torch.tanh(x.sum(1, keepdim=True) * w + b))

    model = Many()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario("reparametrised weight: keys are parametrizations.*, plus power-iteration buffers", "B46")
def build_spectral_norm():
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)),
        nn.ReLU(),
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
    )
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


# ================================================================== optimizers
@scenario("closure optimizer; history lists and scalars live under the first parameter only", "B43")
def build_lbfgs_closure():
    model = mlp(h=6)
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=5, line_search_fn="strong_wolfe")

    def step(batch, p):
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(batch[0]), batch[1]) + 1e-3 * sum(
                q.pow(2).sum() for q in model.parameters()
            )
            loss.backward()
            return loss

        return opt.step(closure).item()

    return world(model, opt, xy, shuffled(16), step, per_epoch=2)


@scenario("sparse gradients, SparseAdam next to Adam: two optimizers, each with half of the parameters", "B34")
def build_sparse_embedding():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 6, sparse=True)
            self.out = nn.Linear(6, 3)

        def forward(self, tok):
            return self.out(self.emb(tok).mean(1))

    g = torch.Generator().manual_seed(8)
    tok, y = torch.randint(0, 40, (32, 5), generator=g), torch.randint(0, 3, (32,), generator=g)
    model = Bag()
    opts = dict(
        sparse=torch.optim.SparseAdam(model.emb.parameters(), lr=1e-2),
        dense=torch.optim.Adam(model.out.parameters(), lr=1e-2),
    )

    def step(batch, p):
        for o in opts.values():
            o.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        for o in opts.values():
            o.step()
        return loss.item()

    return world(model, opts, lambda: TensorDataset(tok, y), shuffled(), step)


@scenario("two optimizers stepping at different rates, noise from the global generator", "B42")
def build_gan_two_optimizers():
    nets = nn.ModuleDict(
        dict(
            g=nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)),
            d=nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(8, 1)),
        )
    )
    opts = dict(
        d=torch.optim.Adam(nets["d"].parameters(), lr=2e-3, betas=(0.5, 0.99)),
        g=torch.optim.RMSprop(nets["g"].parameters(), lr=1e-3),
    )

    def step(batch, p):
        real = batch[0]
        fake = nets["g"](torch.randn(len(real), 3))
        opts["d"].zero_grad()
        ld = F.softplus(-nets["d"](real)).mean() + F.softplus(nets["d"](fake.detach())).mean()
        ld.backward()
        opts["d"].step()
        if p.step % 3 == 2:
            opts["g"].zero_grad()
            F.softplus(-nets["d"](nets["g"](torch.randn(len(real), 3)))).mean().backward()
            opts["g"].step()
        return ld.item()

    return world(nets, opts, xy, shuffled(), step)


@scenario("backbone unfrozen after epoch 0 by add_param_group: saved groups and fresh groups differ", "B09")
def build_frozen_then_unfrozen():
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(body, nn.ReLU(), head)
    for q in body.parameters():
        q.requires_grad_(False)
    opt = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0.05)

    def end_epoch(p):
        if p.epoch == 0:
            for q in body.parameters():
                q.requires_grad_(True)
            opt.add_param_group({"params": list(body.parameters()), "lr": 2e-3, "weight_decay": 0.0})

    return world(model, opt, xy, shuffled(), plain_step(model, opt), end_epoch=end_epoch)


@scenario(
    "only adapters train; an adapter-only file must say which base it belongs to; base must be bit-equal", "B24"
)
def build_lora_adapters():
    class Adapted(nn.Module):
        def __init__(self, base, rank=2):
            super().__init__()
            self.base = base
            self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.2)
            self.up = nn.Parameter(torch.zeros(base.out_features, rank))
            for q in base.parameters():
                q.requires_grad_(False)

        def forward(self, x):
            return self.base(x) + F.dropout(x, 0.1, self.training) @ self.down.t() @ self.up.t()

    model = nn.Sequential(Adapted(nn.Linear(6, 8)), nn.Tanh(), Adapted(nn.Linear(8, 3)))
    opt = torch.optim.AdamW([q for q in model.parameters() if q.requires_grad], lr=1e-2)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


@scenario("the loss owns parameters (per-class margins) and sits outside the model", "B40")
def build_trainable_loss():
    class Margin(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = nn.Parameter(torch.rand(3))
            self.register_buffer("count", torch.zeros(3))

        def forward(self, z, y):
            self.count += F.one_hot(y, 3).sum(0)
            return F.cross_entropy(z + self.m - 0.1 * torch.log1p(self.count), y)

    model, crit = mlp(), Margin()
    opt = torch.optim.Adam([{"params": model.parameters()}, {"params": crit.parameters(), "lr": 2e-2}], lr=5e-3)
    return world(model, opt, xy, shuffled(), plain_step(model, opt, loss_fn=crit), extra=dict(criterion=crit))


# ================================================================== schedules
@scenario("per-batch OneCycle cycles lr AND momentum; rebuilding it resets both; one extra step raises", "B05")
def build_onecycle():
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sched = lrs.OneCycleLR(opt, max_lr=0.2, total_steps=12, pct_start=0.4)
    inner = plain_step(model, opt)

    def step(batch, p):
        loss = inner(batch, p)
        if p.step < 11:
            sched.step()
        return loss

    return world(model, opt, xy, shuffled(), step, scheduler=sched)


@scenario("Plateau counts bad epochs and the best value; fed by a validation pass", "B23")
def build_plateau():
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.9)
    sched = lrs.ReduceLROnPlateau(opt, factor=0.3, patience=1, threshold=0.2)
    val = xy(salt=9).tensors

    def end_epoch(p):
        model.eval()
        with torch.no_grad():
            v = F.cross_entropy(model(val[0]), val[1]).item()
        model.train()
        sched.step(v)

    return world(
        model, opt, xy, shuffled(16), plain_step(model, opt), scheduler=sched, end_epoch=end_epoch, per_epoch=2
    )


@scenario("warm-up then cosine by SequentialLR, per batch, two groups with their own peak", "B06")
def build_warmup_cosine():
    model = mlp()
    opt = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters()}], lr=2e-2
    )
    sched = lrs.SequentialLR(
        opt, [lrs.LinearLR(opt, 0.1, total_iters=5), lrs.CosineAnnealingLR(opt, 7)], milestones=[5]
    )
    return world(model, opt, xy, shuffled(), plain_step(model, opt, sched), scheduler=sched)


@scenario("a stateful callable inside LambdaLR and fractional-epoch warm restarts beside it", "B06")
def build_schedule_callable():
    class Decay:
        def __init__(self):
            self.floor = 1.0

        def __call__(self, n):
            self.floor = max(0.2, self.floor * 0.93)
            return self.floor

    model = mlp()
    opt = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.8)
    opt2 = torch.optim.SGD(model[2].parameters(), lr=0.1)
    scheds = dict(a=lrs.LambdaLR(opt, Decay()), b=lrs.CosineAnnealingWarmRestarts(opt2, T_0=2))

    def step(batch, p):
        opt.zero_grad()
        opt2.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        opt.step()
        opt2.step()
        scheds["a"].step()
        scheds["b"].step(p.epoch + (p.batch + 1) / 4)
        return loss.item()

    return world(model, dict(a=opt, b=opt2), xy, shuffled(), step, scheduler=scheds)


@scenario("lr edited by hand in the loop from a python list of recent losses; no scheduler object", "B39")
def build_manual_lr():
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    recent = collections.deque(maxlen=4)
    inner = plain_step(model, opt)

    def step(batch, p):
        loss = inner(batch, p)
        recent.append(loss)
        if len(recent) == 4 and recent[-1] > sum(recent) / 4:
            opt.param_groups[0]["lr"] *= 0.7
        return loss

    return world(model, opt, xy, shuffled(), step, extra=dict(recent=recent))


# ================================================================== averaging
@scenario("SWA copy and its n_averaged counter, SWALR, starting half-way", "B38")
def build_swa():
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    avg = swa_utils.AveragedModel(model)
    sched = swa_utils.SWALR(opt, swa_lr=0.02, anneal_epochs=3)
    inner = plain_step(model, opt)

    def step(batch, p):
        loss = inner(batch, p)
        if p.step >= 4:
            avg.update_parameters(model)
            sched.step()
        return loss

    return world(model, opt, xy, shuffled(), step, scheduler=sched, extra=dict(swa=avg))


class Ema:
    """Moving average with a warm-up that depends on how many updates were made; includes buffers."""

    def __init__(self, model, decay=0.95):
        self.shadow, self.decay, self.updates = copy.deepcopy(model), decay, 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = self.decay * (1 - math.exp(-self.updates / 5))
        for a, b in zip(self.shadow.state_dict().values(), model.state_dict().values()):
            a.copy_(b) if not a.dtype.is_floating_point else a.lerp_(b, 1 - d)

    def state_dict(self):
        return dict(shadow=self.shadow.state_dict(), updates=self.updates)

    def load_state_dict(self, sd):
        self.shadow.load_state_dict(sd["shadow"])
        self.updates = sd["updates"]


@scenario(
    "EMA feeds back as a consistency target: restarting it from the weights, or the weights from it, changes training",
    "B10",
)
def build_ema():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ema = Ema(model)

    def step(batch, p):
        opt.zero_grad()
        ema.shadow.eval()
        z = model(batch[0] + 0.05 * torch.randn_like(batch[0]))
        with torch.no_grad():
            t = ema.shadow(batch[0])
        loss = F.cross_entropy(z, batch[1]) + 0.3 * F.mse_loss(z, t)
        loss.backward()
        opt.step()
        ema.update(model)
        return loss.item()

    return world(model, opt, xy, shuffled(), step, extra=dict(ema=ema))


# ================================================================== mixed precision and accumulation
@scenario("loss scale and growth counter; overflowed steps are skipped, so scheduler count != step count", "B11")
def build_gradscaler_cpu():
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    sched = lrs.StepLR(opt, 3, 0.6)
    book = dict(skipped=0)

    def step(batch, p):
        opt.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        scaled = scaler.scale(loss)
        # a pretend half-precision limit: too large a scale overflows, exactly like fp16 does
        (scaled if scaler.get_scale() < 2.0**12 else scaled * float("inf")).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() < before:
            book["skipped"] += 1
        else:
            sched.step()
        return loss.item()

    return world(model, opt, xy, shuffled(), step, scheduler=sched, scaler=scaler, extra=dict(book=book), calls=14)


@scenario("gradients clipped by a running quantile kept in a numpy array", "B39")
def build_adaptive_clip():
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    norms = dict(past=np.full(6, 1.0), i=0)

    def step(batch, p):
        opt.zero_grad()
        loss = F.cross_entropy(model(batch[0] * (1 + p.step % 3)), batch[1])
        loss.backward()
        limit = float(np.quantile(norms["past"], 0.5))
        n = nn.utils.clip_grad_norm_(model.parameters(), limit)
        norms["past"][norms["i"] % 6] = float(n)
        norms["i"] += 1
        opt.step()
        return loss.item()

    return world(model, opt, xy, shuffled(), step, extra=dict(norms=norms))


# ================================================================== data and randomness
@scenario("dropout masks follow the torch generator", "B13")
def build_dropout():
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    return world(model, opt, xy, shuffled(), plain_step(model, opt))


class Jitter(Dataset):
    """Augments with all three generators: python, numpy, torch."""

    def __init__(self, base):
        self.base = base

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        x, y = self.base[i]
        x = x + 0.1 * torch.randn(6) * float(np.random.rand())
        if random.random() < 0.5:
            x = x.flip(0)
        return x, y


@scenario(
    "augmentation in the main process uses python, numpy and torch generators, mixed with training's own draws",
    "B13",
)
def build_augment_main():
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Dropout(0.2), nn.Linear(10, 3))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    return world(model, opt, lambda: Jitter(xy()), shuffled(), plain_step(model, opt))


def _seed_worker(_):
    s = torch.initial_seed() % 2**32
    np.random.seed(s)
    random.seed(s)


@scenario(
    "augmentation in 2 workers seeded per epoch; prefetched batches must be neither lost nor redone differently",
    "B14",
)
def build_augment_workers():
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Dropout(0.2), nn.Linear(10, 3))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    return world(
        model,
        opt,
        lambda: Jitter(xy()),
        shuffled(num_workers=2, worker_init_fn=_seed_worker),
        plain_step(model, opt),
    )


@scenario(
    "one loader object with persistent workers: their generators run on over epochs and live in other processes",
    "B14",
    exact=False,
)
def build_persistent_workers():
    model = mlp()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    keep = {}

    def loader(ds, epoch):
        if "dl" not in keep:
            keep["dl"] = DataLoader(
                ds, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True, worker_init_fn=_seed_worker
            )
        return keep["dl"]

    return world(model, opt, lambda: Jitter(xy()), loader, plain_step(model, opt))


@scenario("DistributedSampler orders by set_epoch(); a resume that forgets it deals epoch 0 again", "B49")
def build_distributed_sampler():
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    def loader(ds, epoch):
        sampler = DistributedSampler(ds, num_replicas=2, rank=1, shuffle=True, seed=4, drop_last=True)
        sampler.set_epoch(epoch)
        return DataLoader(ds, batch_size=4, sampler=sampler)

    return world(model, opt, xy, loader, plain_step(model, opt))


class Stream(IterableDataset):
    """Shards over workers, shuffles in a small buffer with its own per-epoch generator."""

    def __init__(self, base):
        self.base, self.epoch = base, 0

    def __iter__(self):
        info = get_worker_info()
        wid, n = (info.id, info.num_workers) if info else (0, 1)
        g = random.Random(77 * self.epoch + wid)
        buf = []
        for i in range(wid, len(self.base), n):
            buf.append(self.base[i])
            if len(buf) == 5:
                yield buf.pop(g.randrange(5))
        g.shuffle(buf)
        yield from buf


@scenario(
    "IterableDataset with a shuffle buffer over 2 workers: no indices to skip by, set the epoch, fast-forward",
    "B15",
)
def build_iterable_stream():
    model = mlp()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loader(ds, epoch):
        ds.epoch = epoch
        return DataLoader(ds, batch_size=4, num_workers=2)

    return world(model, opt, lambda: Stream(xy()), loader, plain_step(model, opt), per_epoch=8)


class Endless(Sampler):
    """Never ends; own generator; reshuffles at every pass; position is state."""

    def __init__(self, n, seed=3):
        self.n, self.g, self.order, self.at = n, torch.Generator().manual_seed(seed), [], 0

    def __iter__(self):
        while True:
            if self.at == len(self.order):
                self.order, self.at = torch.randperm(self.n, generator=self.g).tolist(), 0
            self.at += 1
            yield self.order[self.at - 1]

    def state_dict(self):
        return dict(g=self.g.get_state(), order=list(self.order), at=self.at)

    def load_state_dict(self, sd):
        self.g.set_state(sd["g"])
        self.order, self.at = list(sd["order"]), sd["at"]


@scenario(
    "no epochs at all: an endless sampler whose generator and position are its state; len() is undefined", "B16"
)
def build_endless_sampler():
    model = mlp()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    sampler = Endless(32)
    return world(
        model,
        opt,
        xy,
        lambda ds, epoch: DataLoader(ds, batch_size=7, sampler=sampler),
        plain_step(model, opt),
        extra=dict(sampler=sampler),
        per_epoch=None,
        live=True,
    )


class Hard(Sampler):
    """Draws samples with weights that training updates: earlier batches decide later ones."""

    def __init__(self, n):
        self.w, self.g = torch.ones(n), torch.Generator().manual_seed(11)

    def __iter__(self):
        while True:
            yield int(torch.multinomial(self.w, 1, generator=self.g))

    def state_dict(self):
        return dict(w=self.w.clone(), g=self.g.get_state())

    def load_state_dict(self, sd):
        self.w.copy_(sd["w"])
        self.g.set_state(sd["g"])


@scenario("sampling weights learn from the losses, so replaying a seed from the start gives other batches", "B16")
def build_adaptive_sampler():
    base = xy()
    ids = TensorDataset(*base.tensors, torch.arange(32))
    model = mlp()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    sampler = Hard(32)

    def step(batch, p):
        x, y, i = batch
        opt.zero_grad()
        each = F.cross_entropy(model(x), y, reduction="none")
        each.mean().backward()
        opt.step()
        sampler.w[i] = 0.5 * sampler.w[i] + each.detach()
        return each.mean().item()

    return world(
        model,
        opt,
        lambda: ids,
        lambda ds, epoch: DataLoader(ds, batch_size=8, sampler=sampler),
        step,
        extra=dict(sampler=sampler),
        per_epoch=None,
        live=True,
    )


@scenario(
    "random_split without a generator: after a resume the split differs and validation leaks into training", "B25"
)
def build_random_split():
    class Split:
        """Where the indices of this run's split live once made."""

        def __init__(self):
            self.idx = None

        def make(self, ds):
            if self.idx is None:
                a, b = random_split(ds, [24, 8])
                self.idx = dict(train=list(a.indices), val=list(b.indices))
            return Subset(ds, self.idx["train"])

        def state_dict(self):
            return dict(idx=self.idx)

        def load_state_dict(self, sd):
            self.idx = sd["idx"]

    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    split = Split()
    return world(
        model,
        opt,
        xy,
        lambda ds, epoch: DataLoader(split.make(ds), batch_size=8, shuffle=True),
        plain_step(model, opt),
        extra=dict(split=split),
        per_epoch=3,
    )


@scenario("python variables steer the data: difficulty, best loss and patience", "B39")
def build_curriculum():
    model = mlp()
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    course = dict(level=0.2, best=float("inf"), bad=0, sums=[0.0, 0])

    class Course(Dataset):
        def __init__(self, base, level):
            self.base, self.level = base, level

        def __len__(self):
            return len(self.base)

        def __getitem__(self, i):
            x, y = self.base[i]
            return x * (1 - self.level) + self.level * x.roll(1), y

    inner = plain_step(model, opt)

    def step(batch, p):
        loss = inner(batch, p)
        course["sums"][0] += loss
        course["sums"][1] += 1
        return loss

    def end_epoch(p):
        mean = course["sums"][0] / course["sums"][1]
        course["sums"] = [0.0, 0]
        if mean < course["best"]:
            course["best"], course["bad"], course["level"] = mean, 0, min(1.0, course["level"] + 0.25)
        else:
            course["bad"] += 1

    return world(
        model,
        opt,
        xy,
        lambda ds, e: DataLoader(Course(ds, course["level"]), batch_size=8, shuffle=True),
        step,
        end_epoch=end_epoch,
        extra=dict(course=course),
    )


@scenario("hidden state is carried from batch to batch (truncated BPTT) and reset at epoch start", "B39")
def build_carried_hidden_state():
    g = torch.Generator().manual_seed(21)
    tape = torch.randn(4, 8, 5, 4, generator=g)
    rnn, out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 4)
    model = nn.ModuleDict(dict(rnn=rnn, out=out))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    carry = dict(h=None)

    def step(batch, p):
        opt.zero_grad()
        x = batch[0][0]
        y, h = rnn(x, carry["h"])
        loss = F.mse_loss(out(y[:, :-1]), x[:, 1:])
        loss.backward()
        opt.step()
        carry["h"] = h.detach()
        return loss.item()

    def end_epoch(p):
        carry["h"] = None

    return world(
        model,
        opt,
        lambda: TensorDataset(tape),
        lambda ds, e: DataLoader(ds, batch_size=1),
        step,
        end_epoch=end_epoch,
        extra=dict(carry=carry),
    )


@scenario("a replay memory filled during training and sampled with python's generator", "B39")
def build_replay_memory():
    model = mlp()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    memory = collections.deque(maxlen=20)

    def step(batch, p):
        memory.extend((x.clone(), int(y)) for x, y in zip(*batch))
        pick = random.sample(list(memory), 6)
        x, y = torch.stack([a for a, _ in pick]), torch.tensor([b for _, b in pick])
        opt.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1]) + F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return world(model, opt, xy, shuffled(), step, extra=dict(memory=memory))


# ================================================================== driving a world
class Progress:
    def __init__(self, step=0, epoch=0, batch=0):
        self.step, self.epoch, self.batch = step, epoch, batch


def seed_all(s):
    random.seed(s)
    np.random.seed(s % 2**32)
    torch.manual_seed(s)


def get_rng():
    return dict(py=random.getstate(), np=np.random.get_state(), torch=torch.get_rng_state())


def set_rng(r):
    random.setstate(r["py"])
    np.random.set_state(r["np"])
    torch.set_rng_state(r["torch"])


def drive(w, p=None, stop=None, epoch_rng=None, now_rng=None):
    """Train until ``stop`` calls were made.  Resuming inside an epoch: epoch_rng is the RNG at that epoch's
    start (so the loader deals the same batches), now_rng the RNG at the interruption.  Returns progress, epoch RNG."""
    p, stop, ds = p or Progress(), stop or w["calls"], w["dataset"]()
    while p.step < stop:
        skip = 0 if w["live"] else p.batch
        if epoch_rng is None or w["live"]:
            if now_rng is not None:
                set_rng(now_rng)
                now_rng = None
            epoch_rng = get_rng()
        else:
            set_rng(epoch_rng)
        it = iter(w["loader"](ds, p.epoch))
        for _ in range(skip):
            next(it)
        if now_rng is not None:
            set_rng(now_rng)
            now_rng = None
        for batch in it:
            w["train_step"](batch, p)
            p.step += 1
            p.batch += 1
            if w["per_epoch"] and p.batch == w["per_epoch"]:
                if w["end_epoch"]:
                    w["end_epoch"](p)
                p.epoch, p.batch = p.epoch + 1, 0
            if p.step >= stop or p.batch == 0:
                break
        del it
        if p.batch == 0:
            epoch_rng = None
    return p, epoch_rng


# ------------------------------------------------------------------ a world as data
def as_dict(x):
    return {} if x is None else (x if isinstance(x, dict) else {"": x})


def modules_of(w):
    m = {"model": w["model"]}
    for k, v in w["extra"].items():
        if isinstance(v, nn.Module):
            m[k] = v
    return m


def params_of(w):
    out = []
    for mk, m in modules_of(w).items():
        out += [(f"{mk}/{n}", q) for n, q in m.named_parameters()]
    return out


def export_world(w, p, epoch_rng):
    """Everything, in a form pickle can write.  Shared storages stay shared inside one torch.save."""
    index = {id(q): i for i, (_, q) in enumerate(params_of(w))}
    s = dict(progress=(p.step, p.epoch, p.batch), rng=get_rng(), epoch_rng=epoch_rng, modules={}, grads={}, opts={})
    for mk, m in modules_of(w).items():
        s["modules"][mk] = dict(
            params={n: q.detach() for n, q in m.named_parameters(remove_duplicate=False)},
            buffers={n: b for n, b in m.named_buffers(remove_duplicate=False)},
            flags={n: c.training for n, c in m.named_modules()},
            grad_on={n: q.requires_grad for n, q in m.named_parameters()},
        )
    for n, q in params_of(w):
        if q.grad is not None:
            s["grads"][n] = q.grad
    for k, o in as_dict(w["optimizer"]).items():
        s["opts"][k] = dict(
            groups=[
                {**{a: b for a, b in g.items() if a != "params"}, "params": [index[id(q)] for q in g["params"]]}
                for g in o.param_groups
            ],
            state={index[id(q)]: v for q, v in o.state.items()},
        )
    s["scheds"] = {k: x.state_dict() for k, x in as_dict(w["scheduler"]).items()}
    s["scaler"] = w["scaler"].state_dict() if w["scaler"] else None
    s["extra"] = {}
    for k, v in w["extra"].items():
        if not isinstance(v, nn.Module):
            s["extra"][k] = v.state_dict() if hasattr(v, "state_dict") else v
    return s


# ------------------------------------------------------------------ digests
def _feed(h, x):
    if isinstance(x, torch.Tensor):
        t = x.detach()
        h.update(f"T{tuple(t.shape)}{t.dtype}".encode())
        if t.layout != torch.strided:
            t = t.to_dense()
        if t.numel():
            t = torch.view_as_real(t) if t.is_complex() else t
            h.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(x, np.ndarray):
        h.update(f"A{x.shape}{x.dtype}".encode() + x.tobytes())
    elif isinstance(x, dict):
        h.update(b"D")
        for k in sorted(x, key=repr):
            h.update(repr(k).encode())
            _feed(h, x[k])
    elif isinstance(x, (list, tuple, collections.deque)):
        h.update(b"L%d" % len(x))
        for v in x:
            _feed(h, v)
    else:
        h.update(repr(x).encode())


def digest(*things):
    h = hashlib.sha256()
    for t in things:
        _feed(h, t)
    return h.hexdigest()[:16]


def params_digest(w):
    return digest([(n, q) for n, q in params_of(w)])


def full_digest(w):
    """Parameters, buffers, optimizer state, schedulers, scaler, extras (not the RNG)."""
    s = export_world(w, Progress(), None)
    scheds = {k: {a: b for a, b in v.items() if not callable(b)} for k, v in s["scheds"].items()}
    for v in scheds.values():  # nested schedulers carry object addresses in their repr
        for a in list(v):
            if a in ("_schedulers", "lr_lambdas", "anneal_func", "_anneal_func_type"):
                v[a] = repr(type(v[a]))
    return digest(s["modules"], s["grads"], s["opts"], scheds, s["scaler"], s["extra"])
