"""Coverage of the intervals of `calib curvature`, by simulation against dense Hessians.

    python benchmarks/curvature_coverage.py [--seeds 500] [--samples 300] [--part PART] [--only NAME] [--tf32]
                                            [--studies 1000] [--resampled RUNS]

1. Estimator: over seeds, the 95 % intervals of the traces against the exact ones of seven networks, and their bias; and
   that of the share of negative eigenvalues from 40 Lanczos steps, which may be wider than what it claims.
2. Bounds: on every one of them and for every seed, an eigenvalue lies within the printed residual, at loose and tight
   tolerances; and how often it is the largest, to the tolerance.
3. Sample: over data sets drawn (with replacement) from a population of 8,000 rows, the 95 % intervals of trace and λmax
   against the population's, of the measures that no rescaling moves, and of all after the network's own temperature
   (which those rows choose). The networks are fitted to other rows than those drawn, as the intervals assume.
4. Difference: as a study judges it, the difference of two arms over fresh seeds and fresh rows, the same for all runs,
   against that of all seeds on the population: its 95 % interval from the terms of the rows (`rows.npz`).

`--part` is `estimator` (1 and 2), `sample` (3), `difference` (4) or all of them; `--only` a part of a network's or a
population's name.
`--resampled` is the trace alone over many more runs: the probes of a
cell are drawn from 12,000 quadratic forms of its dense H - G, centred at its trace. Pilot, allocation, exact cells and
interval are the package's. Tr(G) is taken as known.
`--tf32`: 1 and 2 in float32, and as on a device whose Krylov products are in TF32: their factors are rounded to it.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from _curvature_hard import Encoder
from _harness import arguments
from _populations import Covered
from _zoo_truth import Truth, by_hand
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor, nn
from torch.func import functional_call, hessian, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from calibcli.core.statistics import student_quantile
from calibcli.lab.study._readings import draws, means
from calibcli.lab.study.claims import DRAWS, MeasuredArm, SeedMean
from calibcli.networks.curvature import QUANTITIES, Tensors, measure
from calibcli.networks.curvature import trace as traces
from calibcli.networks.curvature.engine import SHARE, Engine, Shared
from calibcli.networks.curvature.loss import logit_hessian
from calibcli.networks.curvature.problem import CurvatureProblem, second_order
from calibcli.networks.losses import CrossEntropy, final

torch.set_num_threads(1)
TOLERANCES = (0.3, 0.03, 1e-3)
TRACES = ("trace:precision=0.05", "trace", "trace_ggn", "adaptive_trace:precision=0.05", "adaptive_trace")
PLAIN = ("trace", "lambda_max", "fisher_rao", "adaptive_trace", "adaptive_lambda")
LEVEL = 0.95
FORMS, AT_ONCE, MOST = 12_000, 2_000, 1024  # quadratic forms of a cell, those at once, and probes at most
PRODUCTS = {getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm", "convolution")} | {
    torch.ops.aten.convolution_backward.default
}


class Block(nn.Module):
    """LayerNorm and attention over four tokens of four features."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.norm, self.qkv, self.head = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x.view(-1, 4, 4))).chunk(3, 2)
        return self.head((x.view(-1, 4, 4) + nn.functional.scaled_dot_product_attention(q, k, v)).mean(1))


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.SiLU(), nn.Linear(5, 5), nn.SiLU(), nn.Linear(5, 3))


def networks() -> dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]]:
    """Fitted model, its inputs and labels by name."""

    def fitted(model: nn.Module, width: int = 4, classes: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
        x, y = data(128, width, 1.0, classes=max(classes, 3))
        train(model.double(), x, y % classes)
        return model, x, y % classes

    def dominated() -> tuple[nn.Module, Tensor, Tensor]:
        model, x, _ = fitted(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)))
        return model, x, one_row(model, x)

    return {
        "MLP, tanh": lambda: fitted(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))),
        "MLP, SiLU and LayerNorm": lambda: fitted(smooth()),
        "attention": lambda: fitted(Block(), 16),
        "attention, 10 classes": lambda: fitted(Block(10), 16, 10),
        "two classes": lambda: fitted(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), classes=2),
        "one row dominates": dominated,
        "transformer, 2 classes, one row": transformer,
    }


def held(model: nn.Module, x: Tensor) -> float:
    """The largest share of a row in Σ p (1 - p), to which its Gauss-Newton matrix is proportional."""
    with torch.no_grad():
        p = model(x).double().softmax(1)[:, 0]
    mass = p * (1 - p)
    return float(mass.max() / mass.sum())


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    """Two layers, trained to tell which half of 8 tokens is larger until one row, met with both labels, holds nearly
    all of Tr(G)."""
    x = torch.randint(0, 8, (128, 8))
    y = (x[:, ::2].sum(1) > x[:, 1::2].sum(1)).long()
    model = Encoder(8, 2, 8, 2).double()
    rows, labels = torch.cat([x, x[:1].expand(7, -1)]), torch.cat([y, (y[0] + torch.tensor([1, 0, 0, 0, 1, 1, 1])) % 2])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(150):
        parts = [torch.randperm(len(rows))[:64] for _ in range(20)]
        fit(model, ((rows[part], labels[part]) for part in parts), optimizer)
        if held(model, x) > 0.9:
            break
    return model, x, y


class TF32(TorchDispatchMode):
    """Factors of products are rounded to TF32, wherever a device would be told to."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS and torch.backends.cuda.matmul.allow_tf32:
            first = int(func in (torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default))
            args = (*args[:first], *(rounded(a) for a in args[first : first + 2]), *args[first + 2 :])
        return func(*args, **(kwargs or {}))


def rounded(x: Tensor) -> Tensor:
    """10 bits after the leading one, of 23."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x


def one_row(model: nn.Module, inputs: Tensor) -> Tensor:
    """Make every row sure but row 14, which is put between two classes, in place; the labels are the predictions."""
    with torch.no_grad():
        model[2].weight.mul_(40)  # type: ignore[index,operator,union-attr]
        classes = model(inputs).argmax(1)
        low, high = inputs[0], inputs[int((classes != classes[0]).nonzero()[0])]
        for _ in range(60):
            inputs[14] = (low + high) / 2
            same = model(inputs[14:15]).argmax() == classes[0]
            low, high = (inputs[14].clone(), high) if same else (low, inputs[14].clone())
        return model(inputs).argmax(1)


def data(n: int, width: int, spread: float, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Classes around random centres; small spread of the centres makes it hard."""
    stream = torch.Generator().manual_seed(0)
    centres = spread * torch.randn(classes, width, generator=stream)
    labels = torch.randint(0, classes, (n,), generator=stream)
    return (centres[labels] + torch.randn(n, width, generator=stream)).double(), labels


def fit(model: nn.Module, batches: Any, optimizer: torch.optim.Optimizer) -> None:
    for inputs, labels in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def train(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int = 200) -> None:
    fit(model, ((inputs, labels) for _ in range(steps)), torch.optim.Adam(model.parameters(), 2e-2))


def share(p: float, count: int) -> str:
    return f"{100 * p:5.1f} % (± {196 * math.sqrt(max(p * (1 - p), 1e-9) / count):.1f})"


def of(hits: list[bool]) -> str:
    return share(sum(hits) / len(hits), len(hits))


def estimator(seeds: int, only: str, tf32: bool) -> None:
    print(f"1. 95 % estimator intervals; 2. λmax's residual; {seeds} seeds{', TF32' if tf32 else ''}")
    for name, make in networks().items():
        if only in name:
            torch.manual_seed(1)
            one_network(name, *make(), seeds=seeds, tf32=tf32)


def set_up(model: nn.Module, x: Tensor, y: Tensor, tf32: bool = False) -> Shared:
    dtype = torch.float32 if tf32 else torch.float64
    problem = CurvatureProblem(model, Tensors(x, y), device=torch.device("cpu"), dtype=dtype, batch_size=256, tf32=tf32)
    problem.classes = model(x[:1]).shape[1]
    return Shared(problem, 0, LEVEL, None)


def one_network(name: str, model: nn.Module, x: Tensor, y: Tensor, *, seeds: int, tf32: bool) -> None:
    if tf32:
        model, x = model.float(), x.float() if x.is_floating_point() else x
    with by_hand():
        exact = Truth(model, x, y)
        h = exact.hessian()
        true, spectrum = {"trace": float(h.trace()), "trace_ggn": exact.ggn_trace()}, torch.linalg.eigvalsh(h)
        true["adaptive_trace"] = measures(exact, h)["adaptive_trace"]
    top = float(spectrum[-1])
    shared = set_up(model, x, y, tf32)  # once: only the seed changes
    hits: dict[str, list[bool]] = {what: [] for what in (*TRACES, "share")}
    errors: dict[str, list[float]] = {what: [] for what in TRACES}
    width = dict.fromkeys(hits, 0.0)
    inside: dict[float, list[bool]] = {tol: [] for tol in TOLERANCES}
    largest: dict[float, list[bool]] = {tol: [] for tol in TOLERANCES}
    for seed in range(seeds):
        shared.seed = seed
        engine = Engine(shared, CrossEntropy())
        ask = partial(one_estimate, engine)
        for what in TRACES:
            t, (value, low, high, detail) = true[what.partition(":")[0]], ask(what)
            near = (1e-5 if tf32 else 1e-9) * abs(t)
            hits[what].append(low - near <= t <= high + near)
            errors[what].append((value - t) / max(detail["estimator_se"], near))
            width[what] += (high - low) / abs(t) / seeds
        for tol in TOLERANCES:  # loose first: the run goes on, its certificate is new each time
            engine._certificates.clear()
            value, _, _, detail = ask(f"lambda_max:tol={tol}")
            inside[tol].append(float((spectrum - value).abs().min()) <= detail["residual"] + 1e-12)
            largest[tol].append(abs(value - top) <= tol * top)
        _, low, high, detail = ask("density:steps=40")
        hits["share"].append(low <= float((spectrum < -detail["sigma"]).double().mean()) <= high)
        width["share"] += (high - low) / seeds
    print(f"   {name}, {len(spectrum)} parameters, Tr(H) {true['trace']:.4g}, Tr(G) {true['trace_ggn']:.4g}")
    for what in TRACES:
        bias, worst = sum(errors[what]) / seeds, max(map(abs, errors[what]))
        print(f"      {what:22} covers {of(hits[what])}, {width[what]:.3f} of it wide; ", end="")
        print(f"errors in standard errors: mean {bias:+.2f}, largest {worst:.1f}", flush=True)
    print(f"      share of negatives     covers {of(hits['share'])}, {width['share']:.2f} wide")
    for tol in TOLERANCES:
        print(f"      tol={tol:g}: an eigenvalue within the residual {of(inside[tol])}, ", end="")
        print(f"λmax within the tolerance {of(largest[tol])}", flush=True)


def one_estimate(engine: Engine, what: str) -> tuple[float, float, float, dict[str, Any]]:
    """A value with the ends of its estimator's interval."""
    (e,) = QUANTITIES.choose(what)(engine).estimates
    detail: dict[str, Any] = e.detail
    return float(e.value), detail["estimator_low"], detail["estimator_high"], detail  # type: ignore[arg-type]


def sample(samples: int, only: str) -> None:
    print(f"3. 95 % intervals over {samples} samples against the population of 8,000")
    ce, focal = CrossEntropy(), final("focal:gamma=2")
    for label, spread, criterion, rows in (
        ("hard", 0.8, ce, 256),
        ("easy, heavy tails", 2.0, ce, 256),
        ("hard, focal", 0.8, focal, 200),  # indefinite in the logits, ragged groups
        ("hard, few rows", 0.8, ce, 64),
    ):
        torch.manual_seed(1)
        models = {
            "ReLU": nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double(),
            "tanh": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(),
            "SiLU and LayerNorm": smooth().double(),
        }
        x, y = data(10_000, 4, spread)
        for kind, model in models.items():
            if only not in f"{label} {kind}":
                continue
            train(model, x[8000:], y[8000:], 300)
            covered = sampled(model, x[:8000], y[:8000], criterion, rows, samples)
            print(f"   {label:18} {kind:18} n = {rows:3}:", end="")
            for k, one in covered.items():
                print(f" {k} {share(one.share, samples)}, too high {one.above}, too low {one.below};", end="")
            print(flush=True)


def measures(exact: Truth, h: Tensor) -> dict[str, float]:
    """The true values of the quantities of `PLAIN` at these weights, from the dense Hessian and the rows' Jacobians."""
    theta = torch.cat([t.detach().reshape(-1) for t in exact.tensors])
    relative = theta[:, None] * h * theta
    z = exact.logits()
    w = torch.zeros_like(z, requires_grad=True)
    slopes = torch.autograd.grad((w * z).sum(), exact.tensors, create_graph=True, materialize_grads=True)
    along = torch.autograd.grad(sum((g * t.detach()).sum() for g, t in zip(slopes, exact.tensors)), w)[0]
    each = CrossEntropy() if exact.loss is nn.functional.cross_entropy else exact.loss
    a = logit_hessian(each, z.detach(), exact.labels)
    values = [h.trace(), torch.linalg.eigvalsh(h)[-1], torch.einsum("ni,nij,nj->n", along, a, along).mean()]
    return dict(zip(PLAIN, map(float, [*values, relative.trace(), torch.linalg.eigvalsh(relative)[-1]])))


def tempered(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """The network with the temperature of the smallest NLL of these rows in its last layer."""
    z = model(x).detach().numpy()
    own = z[range(len(y)), y.numpy()]
    found = minimize_scalar(
        lambda u: (logsumexp(z * math.exp(u), axis=1) - own * math.exp(u)).mean(),
        bounds=(-6, 6),
        options={"xatol": 1e-9},
    )
    other = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in other[-1].parameters():  # type: ignore[index]
            tensor.mul_(math.exp(found.x))
    return other


def sampled(
    model: nn.Module, x: Tensor, y: Tensor, criterion: Any, rows: int, samples: int, names: Sequence[str] = PLAIN
) -> dict[str, Covered]:
    """How often the printed intervals of so many samples of rows hold the population's values, also after T."""
    with by_hand():
        plain, after = (Truth(one, x, y, loss=criterion) for one in (model, tempered(model, x, y)))
        true = measures(plain, plain.hessian())
        true |= {f"{k} after": v for k, v in measures(after, after.hessian()).items()}
    asked = [*names, *(f"{name} after" for name in names)]
    covered = {k: Covered(samples) for k in asked}
    for i in range(samples):
        index = torch.randint(0, len(x), (rows,), generator=torch.Generator().manual_seed(i))
        found = measure(model, (x[index], y[index]), *asked, loss=criterion, seed=i)
        for k, one in covered.items():
            one.add(found[k].low, found[k].high, true[k])
    return covered


# Differences of two arms, as a study judges them.


@dataclass
class Pool:
    """Runs of one arm: their Hessians row by row.

    Attributes:
        rows: for each run (N, P, P) float32, of the loss of each row of the population.
        true: (runs, 2) trace and λmax of the population.
    """

    rows: list[Tensor]
    true: Tensor

    @classmethod
    def of(cls, models: Sequence[nn.Module], x: Tensor, y: Tensor) -> Pool:
        every = [hessians(model, x, y) for model in models]
        means = [one.mean(0, dtype=torch.float64) for one in every]
        return cls(every, torch.stack([torch.stack([h.trace(), torch.linalg.eigvalsh(h)[-1]]) for h in means]))

    def terms(self, run: int, rows: Tensor) -> dict[str, Tensor]:
        """The terms of these rows: their traces, and xᵀH_n x of the eigenvector x of their mean's λmax."""
        h = self.rows[run][rows]
        x = torch.linalg.eigh(h.mean(0))[1][:, -1]
        return {"trace": h.diagonal(dim1=1, dim2=2).sum(1).double(), "lambda_max": ((h @ x) @ x).double()}


def hessians(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(N, P, P) of each row's cross-entropy in all parameters."""
    weights = {name: t.detach() for name, t in model.named_parameters()}
    flat = torch.cat([t.reshape(-1) for t in weights.values()])
    sizes = [t.numel() for t in weights.values()]

    def loss(theta: Tensor, one: Tensor, label: Tensor) -> Tensor:
        at = {k: piece.view(t.shape) for (k, t), piece in zip(weights.items(), torch.split(theta, sizes))}
        return nn.functional.cross_entropy(functional_call(model, at, (one[None],)), label[None])

    each = vmap(hessian(loss), (None, 0, 0))
    parts = zip(torch.split(x, 500), torch.split(y, 500))
    return torch.cat([each(flat, some, labels).detach().float() for some, labels in parts])


def pools(kind: str, seeds: int, x: Tensor, y: Tensor, n: int = 8000) -> tuple[Pool, Pool]:
    """Two arms, plain training and with weight decay, fitted to rows after the first n, which are the population."""
    arms: tuple[list[nn.Module], list[nn.Module]] = ([], [])
    for seed in range(seeds):
        for arm, decay in zip(arms, (0.0, 0.02)):
            torch.manual_seed(seed)
            part = n + torch.randperm(len(x) - n)[:300]
            act = nn.ReLU() if kind == "ReLU" else nn.Tanh()
            model = nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 3)).double()
            optimizer = torch.optim.AdamW(model.parameters(), 2e-2, weight_decay=10 * decay)
            fit(model, ((x[part], y[part]) for _ in range(150)), optimizer)
            arm.append(model)
    return Pool.of(arms[0], x[:n], y[:n]), Pool.of(arms[1], x[:n], y[:n])


def differing(arms: tuple[Pool, Pool], seeds: int, rows: int, runs: int) -> dict[str, Covered]:
    """How often a study's interval of the difference of two arms holds that of all their seeds on the population."""
    true = dict(zip(("trace", "lambda_max"), (arms[0].true.mean(0) - arms[1].true.mean(0)).tolist()))
    covered = {name: Covered(runs) for name in true}
    times = draws(rows, DRAWS)
    for i in range(runs):
        stream = torch.Generator().manual_seed(i)
        index = torch.randint(0, len(arms[0].rows[0]), (rows,), generator=stream)
        found: list[dict[str, MeasuredArm]] = []
        for arm in arms:
            chosen = torch.randint(0, len(arm.rows), (seeds,), generator=stream).tolist()
            terms = [arm.terms(run, index) for run in chosen]
            sums = {name: [means(one[name].numpy()) for one in terms] for name in true}
            found.append(
                {
                    k: MeasuredArm(np.array([s.value for s in v]), np.stack([s.drawn(times) for s in v]))
                    for k, v in sums.items()
                }
            )
        for name, one in covered.items():
            one.add(*SeedMean.of(found[0][name] - found[1][name]).interval(), true[name])
    return covered


def difference(runs: int, only: str) -> None:
    print(f"4. 95 % intervals of the difference of two arms, {runs} studies of fresh seeds and rows each")
    x, y = data(10_000, 4, 0.8)
    for kind in ("ReLU", "tanh"):
        if only not in kind:
            continue
        arms = pools(kind, 16, x, y)
        for rows in (128, 512):
            for seeds in (3, 10):
                print(f"   {kind:5} {rows:4} rows, {seeds:2} seeds:", end="")
                for name, one in differing(arms, seeds, rows, runs).items():
                    low, high = one.surely()
                    print(f" {name} {share(one.share, runs)} [{100 * low:.1f}, {100 * high:.1f}];", end="")
                print(flush=True)


@dataclass
class Cells:
    """What a run needs of a network: forms (cells, FORMS), traces (cells,), and its engine."""

    forms: Tensor
    true: Tensor
    engine: Engine
    rows: int

    @property
    def n(self) -> int:
        return self.engine.problem.layout.n

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, y: Tensor) -> Cells:
        engine, rows = Engine(set_up(model, x, y), CrossEntropy()), traces.coarse(len(x))
        problem = engine.problem
        on = torch.cat([torch.full((size,), bool(bends)) for size, bends in zip(problem.sizes, engine.has_curvature)])
        forms, true = [], []
        for start in range(0, len(x), rows):
            h = dense(problem, engine, range(start, min(start + rows, len(x))), on)
            stream = torch.Generator().manual_seed(start)
            drawn = []
            for _ in range(FORMS // AT_ONCE):
                v = (torch.randint(0, 2, (AT_ONCE, len(h)), generator=stream) * 2 - 1).float()
                drawn.append(((v @ h) * v).double().sum(1))
            found = torch.cat(drawn)
            true.append(h.diagonal().double().sum())
            forms.append(found - found.mean() + true[-1])
        return cls(torch.stack(forms), torch.stack(true), engine, rows)

    def draw(self, count: Tensor, stream: torch.Generator) -> traces.Probes:
        """So many (cells,) probes; a cell of none is known."""
        found = torch.zeros(len(count), 3, dtype=torch.float64)
        for cell, number in enumerate(count.tolist()):
            at = torch.randint(FORMS, (number,), generator=stream)
            f = self.forms[cell, at] if number else self.true[cell][None]
            found[cell] = torch.stack([torch.tensor(float(len(f)), dtype=f.dtype), f.sum(), f.square().sum()])
        return traces.Probes(found, torch.zeros(len(count), 0, 3, dtype=torch.float64), self.rows)


def dense(problem: CurvatureProblem, engine: Engine, rows: range, on: Tensor) -> Tensor:
    """(elements, elements) of H - G of these rows, in the tensors whose logits bend."""
    gradients = problem.gradients(rows, engine.rest)
    live, out = [g for g in gradients if g.requires_grad], []
    for part in on.nonzero()[:, 0].split(64):
        unit = torch.zeros(len(part), problem.size, dtype=torch.float64)
        unit[torch.arange(len(part)), part] = 1
        along = [v for v, g in zip(problem.pieces(unit), gradients) if g.requires_grad]
        found = torch.autograd.grad(
            live, problem.tensors, along, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
        kept = [f.flatten(1) if f is not None else unit.new_zeros(len(part), s) for f, s in zip(found, problem.sizes)]
        out.append(torch.cat(kept, 1)[:, on].float())
    return torch.cat(out)


def resampled(name: str, model: nn.Module, x: Tensor, y: Tensor, runs: int) -> None:
    cells, stream = Cells.of(model, x, y), torch.Generator().manual_seed(0)
    g = cells.engine.ggn(1e-3)
    assert g is not None
    n, steepness = cells.n, cells.engine.steepness
    elements = int(torch.tensor(cells.engine.problem.sizes)[cells.engine.has_curvature].sum())
    heavy = int(cells.forms.var(1).argmax())
    for precision in (0.05, None):
        hits, known, errors = [], [], []
        for _ in range(runs):
            pilot = cells.draw(torch.full((len(cells.true),), traces.pilot(n)), stream)
            size = abs(g.value + traces.summarise(pilot, n).value)
            layout = cells.engine.problem.layout
            sampling = traces.sampling_error(g.rows, *traces.by_group(pilot, layout), layout)
            wish = precision * size if precision else max(SHARE * sampling, 1e-3 * size)
            count = traces.allocate(pilot, steepness, wish, MOST, cells.rows, LEVEL, elements)
            mean = traces.summarise(cells.draw(count, stream), n, steepness)
            error = mean.value - float(cells.true.sum()) / n
            hits.append(abs(error) <= student_quantile(0.5 + LEVEL / 2, mean.dof) * mean.se + 1e-12)
            known.append(int(count[heavy]) == 0)
            errors.append(error / max(mean.se, 1e-300))
        far = math.sqrt(sum(e * e for e in errors) / runs)
        spec = f"trace:precision={precision}" if precision else "trace"
        print(
            f"   {name}, {spec}: {runs} runs resampled cover {of(hits)}, errors {far:.2f} standard errors in ",
            end="",
        )
        print(f"root mean square; the heaviest cell taken exactly in {100 * sum(known) / runs:.0f} %", flush=True)


if __name__ == "__main__":
    given = arguments(
        __doc__,
        seeds=500,
        samples=300,
        studies=1000,
        only="",
        part=("all", "estimator", "sample", "difference"),
        what=[str],
        resampled=0,
        tf32=False,
    )
    with second_order(torch.device("cpu")), TF32() if given.tf32 else contextlib.nullcontext():
        if given.resampled:
            for name, make in networks().items():
                if given.only in name:
                    torch.manual_seed(1)
                    resampled(name, *make(), given.resampled)
        elif given.part in ("all", "estimator"):
            estimator(given.seeds, given.only, given.tf32)
    if given.part in ("all", "sample") and not given.resampled:
        sample(given.samples, given.only)
    if given.part in ("all", "difference") and not given.resampled:
        difference(given.studies, given.only)
